//! The code objects to put back into one binary, from the archives that its marker leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;

use kpack_core::files::directory_of;
use kpack_core::platform::FileExt;
use kpack_format::code_id;
use kpack_format::digest::Blake3;
use kpack_format::marker::of_another_build;
use kpack_format::names::{GFXARCH, KernelName};
use kpack_format::offload_bundle::{Entry, HOST_ENTRY, Layout};
use kpack_format::{Delivery, TargetId};

use super::binary::MarkedBinary;
use super::options::JoinOptions;
use crate::elf::DeviceCode;
use crate::input::{
    CodePlace, LinkedBinary, Lookup, Obstacle, RangeReader, Resolver, check_code_object_in,
};
use crate::parallel::{self, lock};
use crate::pe::Sums;
use crate::publish;
use crate::publish::copy_range;
use crate::report::Progress;
use crate::{Error, ids};

/// The chosen code objects of one binary.
pub(super) struct ChosenCode {
    /// The targets to put code back for.
    wanted: Vec<TargetId>,
    /// The targets that there is code for.
    known: BTreeSet<String>,
    /// The chosen ones.
    targets: BTreeSet<String>,
    /// The bundles to write, in order of their first wrappers.
    bundles: Vec<JoinedBundle>,
    /// The directories of the archives that it is in.
    directories: BTreeSet<PathBuf>,
    /// Where archives for the chosen GPUs would be, if nothing says which ones there are.
    unlisted: Vec<PathBuf>,
    /// The chosen GPUs that some wrappers have code for, and the code object indices of the others.
    incomplete: Vec<(TargetId, Vec<u32>)>,
    /// Says that wrappers share code that is stored once.
    sharing: Option<String>,
}

/// A bundle to write.
struct JoinedBundle {
    /// The positions of its wrappers.
    wrappers: Vec<usize>,
    code: Vec<ChosenObject>,
}

/// A chosen code object.
#[derive(PartialEq)]
struct ChosenObject {
    target: String,
    place: CodePlace,
    /// The ID of its entry in the bundle.
    entry_id: String,
}

impl ChosenCode {
    /// Chooses the code objects of `binary`.
    ///
    /// # Errors
    /// [`Error::Refused`] if an archive for a chosen target is missing, damaged, or of another build; with
    /// [`installed`](JoinOptions::installed), if it is damaged or of another build, or if an archive for a variant has
    /// the only copies of its code.
    pub(super) fn choose(
        binary: &MarkedBinary,
        options: &JoinOptions,
        lookup: &Lookup,
    ) -> Result<Self, Error> {
        let resolver = open(binary, lookup)?;
        let promised = resolver
            .kpacks
            .targets()
            .map(str::to_owned)
            .chain(binary.marker.code_ids.keys().cloned());
        let mut known: BTreeSet<String> = promised.collect();
        let ids: Vec<TargetId> = known.iter().filter_map(|id| id.parse().ok()).collect();
        let mut wanted = options.architectures.clone();
        if options.all_architectures {
            wanted.extend(ids.iter().cloned());
        }
        let chosen = &*wanted;
        let of_gpu = |target: &&TargetId| chosen.iter().any(|gpu| target.may_run_on(gpu));
        let (own, others): (Vec<&TargetId>, Vec<&TargetId>) = ids.iter().partition(of_gpu);
        let (spirv, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|id| id.is_spirv());
        let generic = others.into_iter().filter(|target| {
            let mut gpus = chosen.iter();
            gpus.any(|gpu| target.is_generic_for(gpu, Delivery::Bundle))
        });
        let mut targets = BTreeSet::new();
        let mut wrappers = Vec::from_iter(binary.indices.iter().map(|_| Vec::new()));
        let entries = resolver.entries();
        // The GPUs' own first: they tell which wrappers need generic code, and both tell which need SPIR-V.
        for id in own.into_iter().chain(generic).chain(spirv) {
            let target = id.to_string();
            let is_own = of_gpu(&id);
            let needs = |wrapper: &Vec<ChosenObject>| is_own || needs_other(wrapper, id, chosen);
            if !wrappers.iter().any(needs) {
                continue;
            }
            if options.installed
                && let Some(Obstacle::Missing(_)) = resolver.obstacle(&target)
            {
                known.remove(&target);
                continue;
            }
            check_archive(binary, &resolver, &target)?;
            all_are_asked_for(binary, &entries, &target)?;
            let has = |index: &u32| resolver.find(*index, &target).is_some();
            let mut places = wrappers.iter().zip(&binary.indices);
            if !is_own && !places.any(|(wrapper, index)| needs(wrapper) && has(index)) {
                continue;
            }
            // All of a target's code or none: its ID in the marker is that of all.
            let (mut found, mut has_copies) = (false, false);
            let wrappers = wrappers.iter_mut().zip(&binary.indices);
            for (wrapper, index) in wrappers.filter(|(_, index)| !binary.kept.contains_key(index)) {
                if let Some(place) = resolver.find(*index, &target) {
                    // A bundle needs it once, and its own target's archive has it, too. Without that, it would be lost: a
                    // bundle cannot have it for this target, which its ELF header does not name.
                    if let Some(plain) = resolver.less_specific(place, *index, &target) {
                        check_archive(binary, &resolver, &plain.to_string())?;
                        has_copies = true;
                        continue;
                    }
                    wrapper.push(ChosenObject {
                        target: target.clone(),
                        place,
                        entry_id: resolver.entry_id(place, *index, &target),
                    });
                    found = true;
                }
            }
            // Not every binary of a module has code for each target.
            if found {
                targets.insert(target);
            } else if !has_copies && binary.marker.code_ids.contains_key(&target) {
                let text = format!("the archive for {target} has no code object of it");
                return Err(Error::rejected(ids::MISSING_KERNEL, &binary.located.path, text));
            } else {
                known.remove(&target);
            }
        }
        let unlisted = chosen.iter().flat_map(|gpu| resolver.unlisted(gpu)).collect();
        let absent_of = chosen.iter().map(|gpu| {
            let places = wrappers.iter().zip(&binary.indices);
            let moved = places.filter(|(_, index)| !binary.kept.contains_key(index));
            let absent = moved.filter(|(wrapper, _)| !has_code_for(target_ids(wrapper), gpu));
            (gpu.clone(), Vec::from_iter(absent.map(|(_, index)| *index)))
        });
        let some = 1..binary.indices.len() - binary.kept.len();
        let incomplete = absent_of.filter(|(_, absent)| some.contains(&absent.len())).collect();
        let sharing = resolver.sharing_note(binary.indices.len());
        let archives = wrappers.iter().flatten().map(|code| resolver.path(code.place));
        let directories = archives.map(|archive| directory_of(archive).to_owned()).collect();
        let bundles = bundles(binary, wrappers, resolver.is_shared());
        Ok(Self { wanted, known, targets, bundles, directories, unlisted, incomplete, sharing })
    }

    pub(super) fn targets(&self) -> &BTreeSet<String> {
        &self.targets
    }

    /// The directories of the archives that it is in.
    pub(super) fn directories(&self) -> &BTreeSet<PathBuf> {
        &self.directories
    }

    /// Where archives for the chosen GPUs would be, as a list, if nothing says which ones there are.
    pub(super) fn unlisted(&self) -> Option<String> {
        let places = self.unlisted.iter().map(|place| place.display().to_string());
        (!self.unlisted.is_empty()).then(|| Vec::from_iter(places).join("`, `"))
    }

    /// The targets that there is code for, as a list.
    pub(super) fn known(&self) -> String {
        if self.known.is_empty() {
            "no target".to_owned()
        } else {
            Vec::from_iter(self.known.iter().cloned()).join(", ")
        }
    }

    /// The wanted targets that there is no code for, as a list.
    pub(super) fn lacking(&self) -> String {
        self.lacking_of(&self.wanted)
    }

    /// Those of some targets that there is no code for, as a list.
    pub(super) fn lacking_of(&self, targets: &[TargetId]) -> String {
        let lacking = targets.iter().filter(|gpu| !self.has_code_for(gpu));
        Vec::from_iter(lacking.map(ToString::to_string)).join(", ")
    }

    /// The chosen GPUs that some wrappers have code for, and the code object indices of the others.
    pub(super) fn incomplete(&self) -> &[(TargetId, Vec<u32>)] {
        &self.incomplete
    }

    /// Says that wrappers share code that is stored once.
    pub(super) fn sharing(&self) -> Option<&str> {
        self.sharing.as_deref()
    }

    fn has_code_for(&self, gpu: &TargetId) -> bool {
        has_code_for(self.ids(), gpu)
    }

    fn ids(&self) -> impl Iterator<Item = TargetId> {
        self.targets.iter().filter_map(|target| target.parse().ok())
    }

    /// What to know about generic code and SPIR-V: which is put back, and which no HIP runtime would take.
    pub(super) fn about_generic(&self) -> Vec<String> {
        let chosen = &*self.wanted;
        let mut notes = Vec::new();
        if self.ids().any(|id| id.is_spirv()) && !chosen.iter().any(TargetId::is_spirv) {
            let text = "some kernels have no code for the chosen targets, so their SPIR-V is put back; HIP runtimes \
                        that can compile it accept it";
            notes.push(text.to_owned());
        }
        for gpu in chosen {
            let Some(generic) = gpu.generic(Delivery::Bundle) else {
                continue;
            };
            if self.ids().any(|id| id.may_run_on(&generic.target)) {
                notes.push(format!(
                    "some kernels have no code for {gpu}, so their code for {} is put back; HIP runtimes accept it \
                     from {} on",
                    generic.target.processor(),
                    generic.since
                ));
            }
        }
        let known: Vec<TargetId> = self.known.iter().filter_map(|id| id.parse().ok()).collect();
        let lacks = |gpu: &&TargetId| !self.has_code_for(gpu);
        for gpu in chosen.iter().filter(lacks) {
            let why = known.iter().filter_map(|id| gpu.why_not_generic(id, Delivery::Bundle));
            notes.extend(why);
        }
        notes
    }

    /// Size of all code objects in bytes.
    pub(super) fn size(&self) -> u64 {
        let all = self.bundles.iter().flat_map(|bundle| &bundle.code);
        all.fold(0, |sum, code| sum.saturating_add(code.place.size))
    }

    /// The size of each bundle in bytes.
    pub(super) fn bundle_sizes(&self, binary: &MarkedBinary) -> Vec<u64> {
        let size = |bundle: &JoinedBundle| match bundle.kept(binary) {
            Some(kept) => kept.end - kept.start,
            None => bundle.layout().size,
        };
        self.bundles.iter().map(size).collect()
    }

    /// The bundle of each wrapper, by position.
    pub(super) fn bundle_of_wrappers(&self) -> Vec<usize> {
        let bundles = self.bundles.iter().enumerate();
        let wrappers = bundles.flat_map(|(bundle, JoinedBundle { wrappers, .. })| {
            wrappers.iter().map(move |wrapper| (*wrapper, bundle))
        });
        BTreeMap::from_iter(wrappers).into_values().collect()
    }

    /// Writes the bundles to these offsets in `output`, and checks every code object. Records in `sums` what it wrote of
    /// them.
    pub(super) fn write(
        &self,
        binary: &MarkedBinary,
        input: &File,
        (offsets, sums): (&[u64], Option<&Sums>),
        output: &File,
        lookup: &Lookup,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let failed = |error| Error::io(&binary.located.path, "write the joined binary of", error);
        let mut pieces = Vec::new();
        for (bundle, &start) in self.bundles.iter().zip(offsets) {
            if let Some(kept) = bundle.kept(binary) {
                copy_range(input, output, kept.clone(), start).map_err(failed)?;
                continue;
            }
            let layout = bundle.layout();
            output.write_all_at(&layout.table, start).map_err(failed)?;
            // The host's entry comes first.
            let places = layout.offsets.iter().skip(1);
            for (code, place) in bundle.code.iter().zip(places) {
                pieces.push((bundle, code, start + place));
            }
        }
        let resolver = open(binary, lookup)?;
        let idle = Mutex::new(Vec::new());
        let digests = parallel::try_map(pieces, |(bundle, code, at)| {
            let known = lock(&idle).pop();
            let mut resolver = known.unwrap_or_else(|| resolver.share());
            let digest = put(binary, &mut resolver, (bundle, code), (output, sums, at))?;
            progress.advance(code.place.size);
            lock(&idle).push(resolver);
            Ok((bundle, &code.target, digest))
        })?;
        let mut computed: BTreeMap<&String, BTreeMap<u32, Blake3>> = BTreeMap::new();
        for (bundle, target, digest) in digests {
            if let Some(digest) = digest {
                let indices = bundle.wrappers.iter().map(|at| (binary.indices[*at], digest));
                computed.entry(target).or_default().extend(indices);
            }
        }
        for (target, checksums) in computed {
            let found = code_id(&checksums);
            if !binary.marker.accepts(target, found) {
                return Err(of_other_build(binary, target));
            }
        }
        Ok(())
    }

    /// Reads the bundles of the joined binary back.
    pub(super) fn check(&self, binary: &MarkedBinary, written: &LinkedBinary) -> Result<(), Error> {
        let fault = || {
            let text = "kpack cannot write a sound joined binary for it, which is a bug in kpack; please report it: its bundles differ from the plan";
            Error::rejected(ids::UNSOUND_OUTPUT, &written.path, text)
        };
        let DeviceCode::Fat(fat) = &written.code else {
            return Err(fault());
        };
        let mut found = Vec::new();
        for (wrapper, bundle) in fat.wrappers.iter().zip(written.bundles(&fat.wrappers)) {
            let mut bundle = bundle?;
            if binary.kept.contains_key(&wrapper.co_index) {
                bundle.entries.clear();
            }
            let entries = bundle.entries.iter().filter(|entry| entry.id.target().is_some());
            let entry = |entry: &Entry| (entry.id.to_string(), entry.size);
            found.push(Vec::from_iter(entries.map(entry)));
        }
        let planned = self.bundle_of_wrappers().into_iter().map(|bundle| {
            let code = self.bundles[bundle].code.iter();
            Vec::from_iter(code.map(|code| (code.entry_id.clone(), code.place.size)))
        });
        if found.into_iter().eq(planned) { Ok(()) } else { Err(fault()) }
    }
}

impl JoinedBundle {
    /// The code object index of its first wrapper.
    fn index(&self, binary: &MarkedBinary) -> u32 {
        binary.indices[self.wrappers[0]]
    }

    /// Where the binary has it: with SPIR-V, which the split kept.
    fn kept<'a>(&self, binary: &'a MarkedBinary) -> Option<&'a Range<u64>> {
        binary.kept.get(&self.index(binary))
    }

    /// Without code for the targets, a bundle without code objects, as compilers make it.
    fn layout(&self) -> Layout {
        let host = (HOST_ENTRY.to_owned(), 0);
        let code = self.code.iter().map(|code| (code.entry_id.clone(), code.place.size));
        Layout::new(&Vec::from_iter([host].into_iter().chain(code)))
    }
}

/// The bundles of wrappers with this code. Wrappers share one only if they did before the split, and still
/// have the same code: ROCm 5.2 to 6.2 know modules by the addresses of their bundles.
fn bundles(
    binary: &MarkedBinary,
    wrappers: Vec<Vec<ChosenObject>>,
    is_shared: bool,
) -> Vec<JoinedBundle> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum FormerBundle {
        /// In the file, at this offset.
        Kept(u64),
        /// The number in the marker.
        Moved(usize),
    }
    let mut bundles: Vec<JoinedBundle> = Vec::new();
    let mut known = BTreeMap::new();
    for (position, code) in wrappers.into_iter().enumerate() {
        let index = binary.indices[position];
        let former = match binary.kept.get(&index) {
            Some(kept) => Some(FormerBundle::Kept(kept.start)),
            None if is_shared => Some(FormerBundle::Moved(0)),
            None => binary.marker.shared_bundle(index).map(FormerBundle::Moved),
        };
        if let Some(former) = former {
            let first = *known.entry(former).or_insert(bundles.len());
            if let Some(bundle) = bundles.get_mut(first).filter(|first| first.code == code) {
                bundle.wrappers.push(position);
                continue;
            }
        }
        bundles.push(JoinedBundle { wrappers: vec![position], code });
    }
    bundles
}

/// Whether there is code for a GPU among code for these targets.
fn has_code_for(ids: impl IntoIterator<Item = TargetId>, gpu: &TargetId) -> bool {
    let mut ids = ids.into_iter();
    ids.any(|id| id.is_spirv() || id.may_be_taken_for(gpu, Delivery::Bundle))
}

fn target_ids(wrapper: &[ChosenObject]) -> impl Iterator<Item = TargetId> {
    wrapper.iter().filter_map(|code| code.target.parse().ok())
}

/// Whether the HIP runtime would take code for `id`, a generic target or SPIR-V, for a wrapper with this code.
fn needs_other(wrapper: &[ChosenObject], id: &TargetId, chosen: &[TargetId]) -> bool {
    let mut there: Vec<TargetId> = target_ids(wrapper).collect();
    let mut gpus = chosen.iter();
    if id.is_spirv() {
        return gpus.any(|gpu| gpu.lacks_code(&there, Delivery::Bundle));
    }
    there.push(id.clone());
    gpus.any(|gpu| gpu.taken(&there, Delivery::Bundle).contains(&id))
}

/// The archives of a binary.
fn open(binary: &MarkedBinary, lookup: &Lookup) -> Result<Resolver, Error> {
    let (loaded_as, name) = (&binary.loaded_as, &binary.kernel_name);
    Resolver::open(lookup, &binary.headers, loaded_as, &binary.marker, name)
}

fn of_other_build(binary: &MarkedBinary, target: &str) -> Error {
    let text = format!("the archive for {target} is {}", of_another_build(&binary.kernel_name));
    Error::rejected(ids::STALE_ARCHIVE, &binary.located.path, text)
}

/// Refuses a target whose archive is missing, damaged, or of another build.
fn check_archive(binary: &MarkedBinary, resolver: &Resolver, target: &str) -> Result<(), Error> {
    let place = match resolver.obstacle(target) {
        None => return Ok(()),
        Some(Obstacle::Damaged(archive, reason)) => {
            return Err(Error::rejected(ids::DAMAGED_ARCHIVE, archive, reason));
        }
        Some(Obstacle::OtherBuild(_)) => return Err(of_other_build(binary, target)),
        Some(Obstacle::Missing(Some(archive))) => archive.display().to_string(),
        Some(Obstacle::Missing(None)) => {
            let paths = binary.marker.kpack_search_paths.iter();
            Vec::from_iter(paths.map(|path| path.replace(GFXARCH, target))).join("`, `")
        }
    };
    let advice = match resolver.install_command(target)? {
        Some(command) => format!("run `{command}`"),
        None => {
            let advice = resolver.kpacks.advice_without_any();
            advice.unwrap_or_else(|| "install its package".to_owned())
        }
    };
    let text = format!("the archive for {target} is missing: `{place}`; {advice}");
    Err(Error::rejected(ids::MISSING_ARCHIVE, &binary.located.path, text))
}

/// Refuses a binary that lacks wrappers for some of its code. Its marker tells which code it was built
/// with.
fn all_are_asked_for(
    binary: &MarkedBinary,
    entries: &BTreeSet<(u32, String)>,
    target: &str,
) -> Result<(), Error> {
    if !binary.marker.code_ids.contains_key(target) {
        return Ok(());
    }
    let mut of_target = entries.iter().filter(|(_, of)| of == target);
    match of_target.find(|(index, _)| !binary.indices.contains(index)) {
        None => Ok(()),
        Some((index, _)) => {
            let text = format!(
                "has {} wrappers, but the archive for {target} has code for wrapper {index}; the binary is damaged, install it again",
                binary.indices.len()
            );
            Err(Error::rejected(ids::DAMAGED_BINARY, &binary.located.path, text))
        }
    }
}

/// Writes a code object, of which it holds only part, at an offset of `output`, and checks it. Returns its
/// BLAKE3 digest, if only that tells whether it is of the same build as the binary.
fn put(
    binary: &MarkedBinary,
    resolver: &mut Resolver,
    (bundle, code): (&JoinedBundle, &ChosenObject),
    (output, sums, at): (&File, Option<&Sums>, u64),
) -> Result<Option<Blake3>, Error> {
    let path = &binary.located.path;
    let index = bundle.index(binary);
    let ChosenObject { target, place, .. } = code;
    let size = place.size;
    let Some(place) = resolver.find(index, target).filter(|now| now.size == size) else {
        return Err(Error::changed(path));
    };
    let (mut end, mut unwritten) = (at, None);
    let read = resolver.read_parts(place, index, target, &mut |part| {
        if let Some(sums) = sums {
            sums.add(end, part);
        }
        let written = publish::write_at(output, part, end);
        end += part.len() as u64;
        unwritten = written.err();
        match unwritten {
            Some(_) => Err(io::ErrorKind::Other.into()),
            None => Ok(()),
        }
    });
    if let Some(error) = unwritten {
        return Err(Error::io(path, "write the joined binary of", error));
    }
    let archive = resolver.path(place);
    let digest = read.map_err(|error| Error::archive(archive, "read", error))?;
    let target_id: TargetId = target
        .parse()
        .map_err(|error| Error::rejected(ids::DAMAGED_ARCHIVE, archive, format!("{error}")))?;
    let written = RangeReader::new(output, at..end);
    check_code_object_in(written, size, &target_id).map_err(|reason| {
        let kernel = KernelName::new(&binary.kernel_name, index);
        Error::rejected(
            ids::DAMAGED_CODE_OBJECT,
            archive,
            format!("`{kernel}` for {target}: {reason}"),
        )
    })?;
    let is_told = !resolver.code_ids(target).is_empty();
    Ok((!is_told && binary.marker.code_ids.contains_key(target)).then_some(digest))
}
