//! Compares a split binary with its unsplit original: every code object byte for byte, and the host
//! code.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::context::{Context, Options};
use super::report::VerifyReport;
use crate::input::{CodePlace, Resolver};
use crate::join;
use kpack_core::{Id, Severity, ids};
use kpack_format::TargetId;
use kpack_format::digest::{Blake3, Hasher};
use kpack_format::offload_bundle::{BundleError, CodeObjectReader, EntryId};

use crate::elf::{DeviceCode, FatBinary};
use crate::host;
use crate::input::{
    LinkedBinary, MarkerGroup, SharedFile, by_bundle, open_bundle, or_refused, wrapper_error,
};
use kpack_core::words::{counted, list};
use kpack_core::{Error, Reason};

/// Findings about device code and about host code that differ from the original's, or do not.
const CODE: (Id, Id) = (ids::CODE_DIFFERS, ids::CODE_MATCHES);
const HOST: (Id, Id) = (ids::HOST_DIFFERS, ids::HOST_MATCHES);

/// Compares the split binary at `path` with `original`.
pub(super) fn compare(
    binary: &LinkedBinary,
    original: &Path,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let path = &binary.path;
    let unsplit = context.parsed.open(original)?;
    let fat = match &unsplit.code {
        DeviceCode::Fat(fat) => fat,
        DeviceCode::Split(_) => {
            return Err(Error::rejected(
                ids::SPLIT_ARTIFACT,
                original,
                "the original is already split",
            ));
        }
        DeviceCode::None(_) => {
            return Err(Error::rejected(
                ids::NO_DEVICE_CODE,
                original,
                "the original has no device code",
            ));
        }
    };
    let wrappers = match &binary.code {
        DeviceCode::Split(wrappers) => wrappers,
        DeviceCode::Fat(FatBinary { joined: Some(_), .. }) => {
            let differences = join::differences(binary, &unsplit)?;
            let text = "the code objects and host code are the original's";
            report.faults_or(CODE, path, differences, text);
            return Ok(());
        }
        _ => {
            let text = "is not split, so there is nothing to compare with the original";
            report.fault(ids::FAT_BINARY, path, text);
            return Ok(());
        }
    };

    let count = fat.wrappers.len() + fat.split_before.len();
    let kept = BTreeSet::from_iter(
        binary.kept.iter().flat_map(|fat| &fat.wrappers).map(|wrapper| wrapper.co_index),
    );
    if let Some(own) = &binary.kept {
        let differences = join::kept_differences((binary, own), (&unsplit, fat), &kept)?;
        let text = "the bundles that stay in it, with SPIR-V, are the original's";
        report.faults_or(CODE, path, differences, text);
    }
    if wrappers.len() + kept.len() != count {
        let text = format!(
            "has {} with index {}; the original has {}",
            counted(wrappers.len(), "wrapper"),
            list(wrappers.iter().map(|wrapper| wrapper.co_index)),
            counted(count, "wrapper"),
        );
        report.fault(ids::CODE_DIFFERS, path, text);
    }
    // An unreadable marker has already been reported.
    if let Ok(groups) = binary.markers()
        && let Some(kernels) = SplitKernels::open(context, binary, &groups)?
    {
        let mut moved = fat.clone();
        moved.wrappers.retain(|wrapper| !kept.contains(&wrapper.co_index));
        compare_code(path, &unsplit, &moved, kernels, context.options, report)?;
    }
    let has_place = binary.image.has_place_of_code();
    if !has_place.map_err(|e| binary.error(e))? {
        let text = "was split before the link and linked again, so its host code is not compared";
        report.note(ids::SPLIT_BEFORE_LINK, path, text);
        return Ok(());
    }
    let differences = host::compare(&unsplit.image, &binary.image).map_err(|e| binary.error(e))?;
    let text = "all loaded content equals the original's, except device code and what points to it";
    report.faults_or(HOST, path, differences, text);
    Ok(())
}

/// A code object of the original, and the IDs of its entries.
struct OriginalCode {
    ids: Vec<EntryId>,
    content: OriginalContent,
}

enum OriginalContent {
    Held(Vec<u8>),
    /// Only its size and BLAKE3 digest are in memory.
    Large((u64, Blake3)),
}

/// Larger code objects, in bytes, are not held in memory to compare them.
const LARGE: u64 = 4 << 20;

impl OriginalCode {
    fn read<R: Read + Seek>(mut entry: CodeObjectReader<'_, R>) -> Result<Self, BundleError> {
        let (ids, size) = (entry.ids().to_vec(), entry.size());
        let content = if size <= LARGE {
            OriginalContent::Held(entry.read()?)
        } else {
            let mut hasher = Hasher::default();
            let mut part = Vec::new();
            while entry.append(&mut part, LARGE / 16)? > 0 {
                hasher.update(&part);
                part.clear();
            }
            OriginalContent::Large((size, hasher.finish()))
        };
        Ok(Self { ids, content })
    }
}

/// How code objects differ from one code object of the original, by resolver and location.
type Compared = BTreeMap<(usize, CodePlace), Option<String>>;

/// Code objects that differ from the original's, by the position of the wrapper and the target: the IDs of
/// their entries, and how they differ.
type Differing = BTreeMap<(u32, TargetId), (EntryId, Vec<String>)>;

/// The code objects of a split binary, by the positions of its wrappers.
struct SplitKernels {
    resolvers: Vec<Resolver>,
    /// The resolver of each wrapper, and its code object index there.
    wrappers: BTreeMap<u32, (usize, u32)>,
}

impl SplitKernels {
    /// Returns `None` if a marker does not name its kernels.
    fn open(
        context: &Context<'_>,
        binary: &LinkedBinary,
        groups: &[MarkerGroup],
    ) -> Result<Option<Self>, Error> {
        let mut resolvers = Vec::new();
        let mut wrappers = BTreeMap::new();
        for group in groups {
            let Some(kernel_name) = &group.marker.kernel_name else {
                return Ok(None);
            };
            for wrapper in &group.wrappers {
                wrappers.insert(wrapper.position, (resolvers.len(), wrapper.co_index));
            }
            resolvers.push(context.resolver(binary, &group.marker, kernel_name)?);
        }
        Ok(Some(Self { resolvers, wrappers }))
    }

    /// Compares a code object with `code`, the original's, in each archive that has it: archives of
    /// several groups of targets may. Returns the faults. `compared` has the results for other wrappers
    /// with the same original.
    fn faults(
        &mut self,
        position: u32,
        (code, id_of): (&OriginalCode, &EntryId),
        compared: &mut Compared,
    ) -> Result<Vec<String>, Error> {
        let target = id_of.target().map_or_else(String::new, ToString::to_string);
        let mut faults = Vec::new();
        let mut places = Vec::new();
        if let Some((resolver_of, index)) = self.wrappers.get(&position) {
            let resolver = &mut self.resolvers[*resolver_of];
            places = resolver.places(*index, &target);
            for &place in &places {
                let difference = match compared.entry((*resolver_of, place)) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let difference = match &code.content {
                            OriginalContent::Held(bytes) => {
                                resolver.read(place, *index, &target).map(|stored| {
                                    (stored != *bytes).then(|| difference(bytes, &stored))
                                })
                            }
                            OriginalContent::Large(original) => resolver
                                .digest(place, *index, &target)
                                .map(|stored| large_difference(*original, stored)),
                        };
                        let path = resolver.path(place);
                        let read = difference.map_err(|e| Error::archive(path, "read", e));
                        new.insert(or_refused(read)?.unwrap_or_else(|found| Some(found.text)))
                    }
                };
                let id = resolver.entry_id(place, *index, &target);
                let reason = match difference {
                    Some(reason) => reason.clone(),
                    None if id == id_of.as_str() => continue,
                    None => format!(
                        "`kpack join` would give it the entry ID `{id}`, the original has `{id_of}`"
                    ),
                };
                let path = resolver.path(place).display();
                faults.push(format!("{reason}, in `{path}`"));
            }
        }
        if places.is_empty() {
            let text = "the original has code for this target, the archives do not; if it was left out on \
                        purpose, pass the targets to compare with `--arch`";
            faults.push(text.to_owned());
        }
        Ok(faults)
    }

    /// Takes out of `differing` the code objects that equal those of the original without debug sections, and
    /// returns their number.
    fn stripped(
        &mut self,
        original: &LinkedBinary,
        fat: &FatBinary,
        differing: &mut Differing,
    ) -> Result<usize, Error> {
        if differing.is_empty() {
            return Ok(0);
        }
        let wanted = |index, target: &TargetId| differing.contains_key(&(index, target.clone()));
        let expected = join::stripped_digests(original, fat, &wanted)?;
        let count = differing.len();
        let mut left = BTreeMap::new();
        for ((position, target), (id, found)) in std::mem::take(differing) {
            let expected = expected.get(&target.to_string()).and_then(|all| all.get(&position));
            if expected.is_none_or(|digest| !self.all_have(position, &id, digest)) {
                left.insert((position, target), (id, found));
            }
        }
        *differing = left;
        Ok(count - differing.len())
    }

    /// Whether the code object of an entry has this digest in each archive that has it.
    fn all_have(&mut self, position: u32, id: &EntryId, digest: &Blake3) -> bool {
        let target = &id.target().map_or_else(String::new, ToString::to_string);
        let Some((resolver, index)) = self.wrappers.get(&position) else {
            return false;
        };
        let resolver = &mut self.resolvers[*resolver];
        let places = resolver.places(*index, target);
        let is_equal = |place| {
            let stored = resolver.digest(place, *index, target);
            stored.is_ok_and(|(_, stored)| stored == *digest)
                && resolver.entry_id(place, *index, target) == id.as_str()
        };
        !places.is_empty() && places.into_iter().all(is_equal)
    }

    /// Takes out of `more`, entries that the original lacks, the copies of its code for less specific targets, which
    /// complete archives for variants.
    fn take_copies(
        &mut self,
        original: &LinkedBinary,
        fat: &FatBinary,
        more: &mut BTreeSet<(u32, String)>,
    ) -> Result<(), Error> {
        let copies: BTreeMap<(u32, String), TargetId> =
            more.iter().filter_map(|entry| Some((entry.clone(), self.copied(entry)?))).collect();
        if copies.is_empty() {
            return Ok(());
        }
        let wanted = |index, target: &TargetId| {
            let mut copies = copies.iter();
            copies.any(|((position, _), plain)| *position == index && plain == target)
        };
        let expected = [
            join::digests(original, fat, &wanted)?,
            join::stripped_digests(original, fat, &wanted)?,
        ];
        more.retain(|entry| {
            let Some(plain) = copies.get(entry).map(ToString::to_string) else {
                return true;
            };
            let expected: BTreeSet<Blake3> =
                expected.iter().filter_map(|all| all.get(&plain)?.get(&entry.0)).copied().collect();
            !self.all_are(entry, &expected)
        });
        Ok(())
    }

    /// The less specific target whose code an entry is, in each archive that has it.
    fn copied(&self, (position, target): &(u32, String)) -> Option<TargetId> {
        let (resolver, index) = self.wrappers.get(position)?;
        let resolver = &self.resolvers[*resolver];
        let places = resolver.places(*index, target).into_iter();
        let mut plain = places.map(|place| resolver.less_specific(place, *index, target));
        let first = plain.next()??;
        plain.all(|other| other.as_ref() == Some(&first)).then_some(first)
    }

    /// Whether the code object of an entry has one of these digests in each archive that has it.
    fn all_are(&mut self, (position, target): &(u32, String), expected: &BTreeSet<Blake3>) -> bool {
        let Some((resolver, index)) = self.wrappers.get(position) else {
            return false;
        };
        let resolver = &mut self.resolvers[*resolver];
        resolver.places(*index, target).into_iter().all(|place| {
            let stored = resolver.digest(place, *index, target);
            stored.is_ok_and(|(_, stored)| expected.contains(&stored))
        })
    }

    /// Every entry that a wrapper uses: position and target.
    fn entries(&self) -> BTreeSet<(u32, String)> {
        let entries: Vec<BTreeSet<(u32, String)>> =
            self.resolvers.iter().map(Resolver::entries).collect();
        let of_wrapper = self.wrappers.iter().flat_map(|(position, (resolver, index))| {
            let all = entries[*resolver].iter();
            let own = all.filter(move |(entry, _)| entry == index);
            own.map(|(_, target)| (*position, target.clone()))
        });
        of_wrapper.collect()
    }
}

fn compare_code(
    path: &Path,
    original: &LinkedBinary,
    fat: &FatBinary,
    mut kernels: SplitKernels,
    options: &Options,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let faults = report.count(Severity::Fault);
    let wrappers = &fat.wrappers;
    let mut in_original = BTreeSet::new();
    let (mut equal, mut left_out) = (0, 0);
    let mut differing = Differing::new();
    for sharing in by_bundle(wrappers.iter()) {
        let (first, at) = (sharing[0], sharing[0].bundle_offset);
        let refused = |error| wrapper_error(&original.path, first.co_index, at, error);
        let mut reader = BufReader::new(SharedFile::of(original.image.source()));
        let bundle = open_bundle(&mut reader, first).map_err(refused)?;
        reader.seek(SeekFrom::Start(at)).map_err(|e| Error::io(&original.path, "read", e))?;
        let targets = bundle.entries.iter().filter_map(|entry| entry.id.target());
        let own: Vec<String> = targets.map(|target| target.to_string()).collect();
        for target in &own {
            left_out += sharing.len() * usize::from(!options.wants(target, &own));
            in_original.extend(sharing.iter().map(|w| (w.co_index, target.clone())));
        }
        let wanted = |target: &TargetId| options.wants(&target.to_string(), &own);
        let mut code_objects = bundle.code_objects(reader, wanted).map_err(refused)?;
        while let Some(entry) = code_objects.next_entry().map_err(refused)? {
            let code = OriginalCode::read(entry).map_err(refused)?;
            let mut compared = Compared::new();
            for (id, target) in code.ids.iter().filter_map(|id| Some((id, id.target()?))) {
                for index in sharing.iter().map(|wrapper| wrapper.co_index) {
                    let found = kernels.faults(index, (&code, id), &mut compared)?;
                    equal += usize::from(found.is_empty());
                    if !found.is_empty() {
                        differing.insert((index, target.clone()), (id.clone(), found));
                    }
                }
            }
        }
    }
    let stripped = kernels.stripped(original, fat, &mut differing)?;
    equal += stripped;
    for ((index, target), (_, found)) in differing {
        for what in found {
            let text = Reason::from(format!("index {index} for {target}: {what}"));
            report.fault(ids::CODE_DIFFERS, path, text.target(&target));
        }
    }
    let mut more: BTreeSet<_> = kernels.entries().difference(&in_original).cloned().collect();
    kernels.take_copies(original, fat, &mut more)?;
    for (index, target) in &more {
        let in_both = wrappers.iter().any(|w| w.co_index == *index);
        if in_both && options.wants(target, [target]) {
            let text = format!(
                "index {index} for {target}: the archives have a code object, the original has none"
            );
            report.fault(ids::CODE_DIFFERS, path, Reason::from(text).target(target));
        }
    }
    if report.count(Severity::Fault) == faults {
        let limited = match left_out {
            0 => String::new(),
            n => format!(", {n} for targets that were not asked for"),
        };
        let text = format!(
            "{} of {} equal to the original's{limited}",
            counted(equal, "code object"),
            counted(wrappers.len(), "wrapper"),
        );
        report.ok(ids::CODE_MATCHES, path, text);
        if stripped > 0 {
            let text = format!(
                "{} without the debug information of the original's",
                counted(stripped, "code object")
            );
            report.note(ids::DEBUG_INFORMATION, path, text);
        }
    }
    Ok(())
}

fn large_difference(original: (u64, Blake3), stored: (u64, Blake3)) -> Option<String> {
    if original == stored {
        None
    } else if original.0 == stored.0 {
        Some("differs from the original's".to_owned())
    } else {
        Some(sizes_differ(original.0, stored.0))
    }
}

fn sizes_differ(original: u64, stored: u64) -> String {
    format!("has {stored} bytes; the original's has {original}")
}

fn difference(original: &[u8], stored: &[u8]) -> String {
    let at = original.iter().zip(stored).position(|(a, b)| a != b);
    match at {
        Some(at) => format!("differs from the original's at byte {at:#x}"),
        None => sizes_differ(original.len() as u64, stored.len() as u64),
    }
}
