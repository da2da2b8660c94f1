//! One file of any kind, with the code for chosen GPUs only.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, FileTimes};
use std::io::{self, BufReader};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::digest::Blake3;
use kpack_format::offload_bundle::{Bundle, BundleError, Format};

use super::bundle::{BundleFailure, BundleSource, SizeByTarget, TrimmedBundle};
use super::{Keep, Scratch};
use crate::device_code::{DeviceCode, NewCode};
use crate::elf::{BinaryError, Wrapper};
use crate::host::JoinPlan;
use crate::input::{
    self, CompressedCode, FileKind, LinkedBinary, RangeReader, SharedFile, binary_error,
    bundle_error, by_bundle, identify, in_sections, open_bundle, or_refused, wrapper_error,
};
use crate::publish::{self, Directory, Identity, StagedFile};
use crate::split::padding;
use crate::{Error, Finding, Severity, ids};
use kpack_build::internal::{FatObjects, ResizedObjects};
use kpack_core::files::first_difference;
use kpack_core::parallel;
use kpack_core::platform::{FileExt, MetadataExt};
use kpack_core::words::list;

/// The unit of [`MetadataExt::blocks`], in bytes, whatever the file system's is.
const BLOCK: u64 = 512;

/// What becomes of a file.
#[derive(Debug)]
pub enum Trim {
    /// It has no device code that kpack can remove.
    Nothing(NoCode),
    /// It has code for these GPUs only.
    Done,
    /// It stays as it is, for a reason to tell.
    LeftAlone(Finding),
    /// Some of its code goes.
    Planned(Box<TrimPlan>),
}

/// Why a file has no device code that kpack can remove, whatever the GPUs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoCode {
    /// kpack does not read files of its kind.
    Unknown,
    /// It could have device code, and has none.
    Host,
    /// It was split, so that its code is in archives.
    Split,
    /// It is device code alone, or lists it: an archive, a manifest, a code object. Such a file goes as a whole or stays.
    Whole,
}

/// How to make the smaller file.
pub struct TrimPlan {
    identity: Identity,
    kind: Kind,
    bundles: Vec<TrimmedBundle>,
    scratch: Option<File>,
    size_after: u64,
    left: Option<Finding>,
}

enum Kind {
    /// A linked binary, and where its bundles go: those of wrappers, and then those in data, each in its room.
    Linked { plan: Box<JoinPlan>, offsets: Vec<u64> },
    /// Objects that are not linked yet: a file, or a static library.
    Objects { plan: Box<ResizedObjects>, offsets: Vec<u64> },
    /// The file is its only bundle.
    Bundle,
    /// Its bundles are in its data and stay there, each in its room.
    InData(Vec<Range<u64>>),
    /// The file is a bundle, compressed as a whole: in a scratch file. The digest is of the bundle.
    Compressed { packed: File, digest: Blake3 },
}

/// Where a trimmed file goes: a name in an open directory.
#[derive(Debug)]
pub struct TrimDestination<'a> {
    /// The directory.
    pub directory: &'a Arc<Directory>,
    /// The name of the file in it.
    pub name: &'a OsStr,
    /// The symbolic link of that name, if the trimmed file takes the place of a link: then the file that the link leads to
    /// stays as it is.
    pub link: Option<Identity>,
}

/// A trimmed file that was written.
#[derive(Debug)]
#[non_exhaustive]
pub struct WrittenFile {
    /// Tells whether another file has taken its place since.
    pub identity: Identity,
    /// A message for each attribute that could not be kept.
    pub lost: Vec<String>,
    /// How many bytes less than the old file it takes on the disk.
    pub freed: u64,
}

/// Plans what becomes of the open `file`, which is shown as `path`. Compressed code is compressed again, into a nameless
/// file, unless it is only measured.
///
/// # Errors
/// [`Error::Refused`] if the file is damaged, or its code cannot be removed; [`Error::Io`].
pub fn plan(path: &Path, file: File, keep: &Keep, scratch: Scratch<'_>) -> Result<Trim, Error> {
    match identify(path, &file)? {
        Some(FileKind::Linked) => linked(path, file, keep, scratch),
        Some(FileKind::Object | FileKind::StaticLibrary) => objects(path, &file, keep, scratch),
        Some(FileKind::Bundle) => bundle_file(path, &file, keep, scratch),
        Some(_) => Ok(Trim::Nothing(NoCode::Whole)),
        None => compressed_file(path, &file, keep, scratch),
    }
}

fn linked(path: &Path, file: File, keep: &Keep, scratch: Scratch<'_>) -> Result<Trim, Error> {
    let again = file.try_clone().map_err(|error| Error::io(path, "read", error))?;
    let linked = match LinkedBinary::read(path, file) {
        // Python's packages contain launchers for other machines, and damaged files for tests.
        Err(Error::Refused { .. }) if !input::may_have_code(path, &again)? => {
            return Ok(Trim::Nothing(NoCode::Host));
        }
        linked => linked?,
    };
    let fat = match &linked.code {
        DeviceCode::Fat(fat) if fat.joined.is_none() && fat.split_before.is_empty() => Some(fat),
        DeviceCode::Fat(_) => {
            let text =
                "stays as it is: it was joined, or some of its objects were split before the link";
            return Ok(left_alone(Severity::Note, ids::UNCHANGED, path, text));
        }
        DeviceCode::Split(_) | DeviceCode::None(_) => None,
    };
    let input = linked.image.source();
    let mut source = BundleSource::new(input, scratch);
    let wrappers = fat.map_or(&[][..], |fat| &fat.wrappers);
    let (mut bundles, ranges) = new_bundles(path, wrappers, keep, &source)?;
    source.in_place = true;
    let mut in_data = in_data(path, &linked, keep, &source)?;
    let own = bundles.len();
    bundles.append(&mut in_data.bundles);
    if let Some(trim) = nothing_goes(path, &bundles, keep) {
        return Ok(match (trim, in_data.left) {
            (Trim::Done, Some(left)) => Trim::LeftAlone(left),
            (Trim::Done, None) if bundles.is_empty() => Trim::Nothing(match linked.code {
                DeviceCode::Split(_) => NoCode::Split,
                _ => NoCode::Host,
            }),
            (trim, _) => trim,
        });
    }
    let identity = Identity::of(path, input)?;
    let (kind, size_after) = match fat.filter(|_| bundles[..own].iter().any(TrimmedBundle::changes))
    {
        Some(fat) => {
            let in_file = ranges.values().map(|range| range.1.clone());
            padding::check(path, input, fat.section(), in_file)?;
            let wrappers = fat.wrappers.iter().map(|w| (w.address, ranges[&w.bundle_offset].0));
            let code = NewCode {
                wrappers: &Vec::from_iter(wrappers),
                sizes: &Vec::from_iter(bundles[..own].iter().map(|bundle| bundle.size)),
                marker: fat.addresses.start..fat.addresses.start,
            };
            let mut plan = JoinPlan::trimmed(&linked.image, fat, &code)
                .map_err(|error| binary_error(path, error))?;
            let mut offsets = plan.bundles().to_vec();
            offsets.extend(plan.leave_out(&in_data.rooms));
            let size = plan.output_size();
            (Kind::Linked { plan: Box::new(plan), offsets }, size)
        }
        None => {
            bundles.drain(..own);
            (Kind::InData(in_data.rooms), identity.size())
        }
    };
    Ok(Trim::Planned(Box::new(TrimPlan {
        identity,
        kind,
        bundles,
        scratch: source.file.into_inner(),
        size_after,
        left: in_data.left,
    })))
}

/// By the offset of each bundle: its position, and its range in the file.
type Ranges = BTreeMap<u64, (usize, Range<u64>)>;

/// Objects and static libraries. Wrappers get other addends, and what follows the bundles moves up.
fn objects(path: &Path, file: &File, keep: &Keep, scratch: Scratch<'_>) -> Result<Trim, Error> {
    // Most have no device code, whatever they are.
    if !input::has_bundle(path, file)? {
        return Ok(Trim::Nothing(NoCode::Host));
    }
    let objects = FatObjects::read(path, file)?;
    let source = BundleSource::new(file, scratch);
    let (bundles, ranges) = new_bundles(path, &objects.wrappers(), keep, &source)?;
    if let Some(trim) = nothing_goes(path, &bundles, keep) {
        return Ok(if bundles.is_empty() { Trim::Nothing(NoCode::Host) } else { trim });
    }
    let sizes = ranges
        .iter()
        .map(|(at, (index, range))| (*at, (range.end - range.start, bundles[*index].size)));
    let plan = objects.resized(file, &sizes.collect())?;
    Ok(Trim::Planned(Box::new(TrimPlan {
        identity: Identity::of(path, file)?,
        size_after: plan.size(),
        kind: Kind::Objects {
            offsets: plan.bundles().values().copied().collect(),
            plan: Box::new(plan),
        },
        bundles,
        scratch: source.file.into_inner(),
        left: None,
    })))
}

/// Plans each bundle of these wrappers once, even if several of them point to it.
fn new_bundles(
    path: &Path,
    wrappers: &[Wrapper],
    keep: &Keep,
    source: &BundleSource<'_>,
) -> Result<(Vec<TrimmedBundle>, Ranges), Error> {
    let mut reader = BufReader::new(SharedFile::of(source.input));
    let (mut bundles, mut ranges) = (Vec::new(), Ranges::new());
    for wrappers in by_bundle(wrappers.iter()) {
        let at = wrappers[0].bundle_offset;
        let failed = |error| wrapper_error(path, wrappers[0].co_index, at, error);
        let bundle = open_bundle(&mut reader, wrappers[0]).map_err(failed)?;
        ranges.insert(at, (bundles.len(), at..at.saturating_add(bundle.size)));
        let new = TrimmedBundle::plan(&bundle, at, keep, source);
        bundles.push(new.map_err(|error| error.error(path, failed))?);
    }
    Ok((bundles, ranges))
}

fn bundle_file(path: &Path, file: &File, keep: &Keep, scratch: Scratch<'_>) -> Result<Trim, Error> {
    let failed = |error: BundleError| bundle_error(path, "", error);
    let identity = Identity::of(path, file)?;
    let size = identity.size();
    let bundle =
        Bundle::read(&mut BufReader::new(RangeReader::new(file, 0..size)), size).map_err(failed)?;
    padding::check(path, file, 0..size, std::iter::once(0..bundle.size))?;
    let source = BundleSource::new(file, scratch);
    let new = TrimmedBundle::plan(&bundle, 0, keep, &source)
        .map_err(|error| error.error(path, failed))?;
    let (size_after, bundles) = (new.size, vec![new]);
    if let Some(trim) = nothing_goes(path, &bundles, keep) {
        return Ok(trim);
    }
    let (kind, scratch) = (Kind::Bundle, source.file.into_inner());
    let left = None;
    Ok(Trim::Planned(Box::new(TrimPlan { identity, kind, bundles, scratch, size_after, left })))
}

/// A bundle that was compressed as a whole, with zstd or gzip, and will be again.
fn compressed_file(
    path: &Path,
    file: &File,
    keep: &Keep,
    scratch: Scratch<'_>,
) -> Result<Trim, Error> {
    let identity = Identity::of(path, file)?;
    // Any file may begin like a compressed one.
    let Ok(Some(code)) = or_refused(CompressedCode::find(path, file))?
        .map(|found| found.filter(|code| code.kind() == FileKind::Bundle))
    else {
        return Ok(Trim::Nothing(NoCode::Unknown));
    };
    let compression = code.compression();
    let mut plain = scratch.file()?;
    code.decompress_into(path, &mut plain, |error| scratch.failed(error))?;
    // Its size tells nothing about that of the compressed file.
    let within = Scratch { only_measured: false, ..scratch };
    let trimmed = match bundle_file(path, &plain, keep, within)? {
        Trim::Planned(plan) => *plan,
        other => return Ok(other),
    };
    let new = scratch.file()?;
    trimmed.write(scratch.directory, &plain, &new)?;
    trimmed.check(path, &plain, &new)?;
    let packed = scratch.file()?;
    let failed = |error| scratch.failed(error);
    let digest = compression.compress(&new, &packed).map_err(failed)?;
    let size_after = packed.metadata().map_err(failed)?.len();
    if size_after > identity.size() {
        let text =
            "stays as it is: it would be larger, because kpack compresses less than what wrote it";
        return Ok(left_alone(Severity::Note, ids::UNCHANGED, path, text));
    }
    let kind = Kind::Compressed { packed, digest };
    Ok(Trim::Planned(Box::new(TrimPlan { identity, kind, scratch: None, size_after, ..trimmed })))
}

/// Bundles in read-only data, which the program finds by itself. They cannot move.
#[derive(Default)]
struct InData {
    bundles: Vec<TrimmedBundle>,
    /// Where each of them is.
    rooms: Vec<Range<u64>>,
    /// Why all of them stay as they are.
    left: Option<Finding>,
}

/// Plans them, or says why they stay.
fn in_data(
    path: &Path,
    linked: &LinkedBinary,
    keep: &Keep,
    source: &BundleSource<'_>,
) -> Result<InData, Error> {
    let mut planned = InData::default();
    let found = linked.image.bundles_in_data().map_err(|error| binary_error(path, error))?;
    for section in &found {
        for start in &section.starts {
            // One within a code object belongs to that.
            if planned.rooms.last().is_some_and(|room| *start < room.end) {
                continue;
            }
            let stay = |why: &dyn std::fmt::Display| {
                let text = format!(
                    "all bundles in its data stay as they are ({}): the one at file offset {start:#x}, in `{}`, cannot be trimmed in its place: {why}",
                    in_sections(&found),
                    section.section
                );
                let left = Finding::new(Severity::Warning, ids::BUNDLES_IN_DATA, path, text);
                Ok(InData { left: Some(left), ..InData::default() })
            };
            let available = section.end - start;
            let mut reader = BufReader::new(RangeReader::new(source.input, *start..section.end));
            let bundle = Bundle::read(&mut reader, available).map_err(BundleFailure::Bundle);
            let new = bundle.and_then(|bundle| {
                let new = TrimmedBundle::plan(&bundle, *start, keep, source)?;
                Ok((bundle, new))
            });
            let (bundle, new) = match new {
                Ok(planned) => planned,
                Err(failure) => match failure.error(path, |error| bundle_error(path, "", error)) {
                    Error::Refused { reason, .. } => return stay(&reason),
                    error => return Err(error),
                },
            };
            if let Format::Compressed { version: 1, .. } = bundle.format
                && new.changes()
            {
                return stay(&"its header, of version 1, does not say where it ends");
            }
            if new.size > bundle.size {
                return stay(&format_args!(
                    "compressed again, it takes {} bytes, and has room for {}",
                    new.size, bundle.size
                ));
            }
            planned.rooms.push(*start..start + bundle.size);
            planned.bundles.push(new);
        }
    }
    Ok(planned)
}

fn left_alone(
    severity: Severity,
    id: kpack_core::Id,
    path: &Path,
    text: impl Into<kpack_core::Reason>,
) -> Trim {
    Trim::LeftAlone(Finding::new(severity, id, path, text))
}

/// Why a file with these bundles stays as it is, if it does.
fn nothing_goes(path: &Path, bundles: &[TrimmedBundle], keep: &Keep) -> Option<Trim> {
    if !bundles.iter().any(TrimmedBundle::changes) {
        return Some(Trim::Done);
    }
    if bundles.iter().any(|bundle| !bundle.stays.is_empty()) {
        return None;
    }
    let there = BTreeSet::from_iter(bundles.iter().flat_map(|bundle| bundle.goes.keys()));
    if there.is_empty() {
        return Some(Trim::Nothing(NoCode::Host));
    }
    let text = format!(
        "stays as it is: it has no code for {}, only for {}",
        list(&keep.gpus),
        list(there)
    );
    Some(left_alone(Severity::Warning, ids::MISSING_TARGET, path, text))
}

impl TrimPlan {
    /// Size of the file in bytes, as it is.
    pub fn size_before(&self) -> u64 {
        self.identity.size()
    }

    /// Size of the file in bytes, as it will be.
    pub fn size_after(&self) -> u64 {
        self.size_after
    }

    /// Size in bytes of what it keeps in a scratch file until it is applied or dropped.
    pub fn scratch_size(&self) -> u64 {
        let packed = if let Kind::Compressed { .. } = self.kind { self.size_after } else { 0 };
        packed + self.bundles.iter().map(TrimmedBundle::scratch_size).sum::<u64>()
    }

    /// What else has code and stays as it is: bundles in its data.
    pub fn left(&self) -> Option<&Finding> {
        self.left.as_ref()
    }

    /// The targets whose code stays, with its bytes.
    pub fn stays(&self) -> BTreeMap<TargetId, u64> {
        sum(self.bundles.iter().map(|bundle| &bundle.stays))
    }

    /// The targets some of whose code goes, with its bytes.
    pub fn goes(&self) -> BTreeMap<TargetId, u64> {
        sum(self.bundles.iter().map(|bundle| &bundle.goes))
    }

    /// The file that it is for, as it was planned.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Writes the smaller file, checks it, and lets it replace what is at the destination: the planned file `input`, which
    /// is shown as `path`, or a symbolic link.
    ///
    /// # Errors
    /// [`Error::Changed`] if a file is not the planned one any more; [`Error::Refused`]; [`Error::Io`].
    pub fn apply(
        &self,
        path: &Path,
        input: &File,
        to: &TrimDestination<'_>,
    ) -> Result<WrittenFile, Error> {
        if Identity::of(path, input)? != self.identity {
            return Err(Error::changed(path));
        }
        let fill = |staged: &mut StagedFile| {
            if to.link.is_none() {
                staged.replaces(input)?;
                staged.check()?;
            }
            let ((), lost) = staged.fill(input, |file| self.write(path, input, file))?;
            // This completes a file for Windows, which changes its times.
            self.check(path, input, staged.file())?;
            keep_times(staged.file(), input).map_err(|e| Error::io(path, "set the times of", e))?;
            Ok(lost)
        };
        let directory = Arc::clone(to.directory);
        let (staged, lost) = match to.link {
            Some(link) => StagedFile::write_over_link(directory, to.name, link, fill)?,
            None => StagedFile::write_in(directory, to.name, fill)?,
        };
        let identity = Identity::of(staged.path(), staged.file())?;
        let blocks = |file: &File| Ok::<_, std::io::Error>(file.metadata()?.blocks());
        let freed = blocks(input)
            .and_then(|old| Ok(BLOCK * old.saturating_sub(blocks(staged.file())?)))
            .map_err(|error| Error::io(path, "read", error))?;
        publish::replace(staged)?;
        Ok(WrittenFile { identity, lost, freed })
    }

    /// Writes the smaller file to the empty file `output`, and checks it. It reads the planned file `input`, which is shown
    /// as `path`.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn write_to(&self, path: &Path, input: &File, output: &File) -> Result<(), Error> {
        if Identity::of(path, input)? != self.identity {
            return Err(Error::changed(path));
        }
        self.write(path, input, output)?;
        self.check(path, input, output)
    }

    fn offsets(&self) -> Vec<u64> {
        match &self.kind {
            Kind::Linked { offsets, .. } | Kind::Objects { offsets, .. } => offsets.clone(),
            Kind::Bundle | Kind::Compressed { .. } => vec![0],
            Kind::InData(rooms) => rooms.iter().map(|room| room.start).collect(),
        }
    }

    /// What is around the rooms of bundles in data, which stays.
    fn around(&self, rooms: &[Range<u64>]) -> Vec<Range<u64>> {
        let starts = std::iter::once(0).chain(rooms.iter().map(|room| room.end));
        let ends = rooms.iter().map(|room| room.start).chain([self.size_after]);
        starts.zip(ends).map(|(start, end)| start..end).collect()
    }

    fn write(&self, path: &Path, input: &File, output: &File) -> Result<(), Error> {
        let failed = |error| Error::io(path, "write the trimmed file of", error);
        let host = match &self.kind {
            Kind::Linked { plan, .. } => plan.write(input, output),
            Kind::Objects { plan, .. } => plan.write(input, output),
            _ => Ok(()),
        };
        host.map_err(|error| match error {
            BinaryError::Io(error) => failed(error),
            error => binary_error(path, error),
        })?;
        if let Kind::Compressed { packed, .. } = &self.kind {
            return publish::copy_range(packed, output, 0..self.size_after, 0).map_err(failed);
        }
        if let Kind::InData(rooms) = &self.kind {
            // The rooms become holes.
            for range in self.around(rooms) {
                publish::copy_range(input, output, range.clone(), range.start).map_err(failed)?;
            }
        }
        for (bundle, at) in self.bundles.iter().zip(self.offsets()) {
            bundle.write(input, self.scratch.as_ref(), output, at).map_err(failed)?;
            // A bundle that is a whole file may be written to a scratch file.
            if !matches!(self.kind, Kind::Bundle) {
                publish::begin_flush(output, at, bundle.size);
            }
        }
        let grown = output.metadata().map_err(failed)?.len() < self.size_after;
        // A bundle may end with room for an entry without content.
        if grown { output.set_len(self.size_after).map_err(failed) } else { Ok(()) }
    }

    /// Reads the result back.
    fn check(&self, path: &Path, input: &File, output: &File) -> Result<(), Error> {
        if let Kind::Linked { plan, .. } = &self.kind {
            plan.finish(input, output).map_err(|error| binary_error(path, error))?;
        }
        let unsound = |wrong: String| {
            let text = format!(
                "kpack cannot write a sound trimmed file for it, which is a bug in kpack; please report it: {wrong}"
            );
            Err(Error::rejected(ids::UNSOUND_OUTPUT, path, text))
        };
        let failed = |error| Error::io(path, "read", error);
        if let Kind::Compressed { digest, .. } = &self.kind {
            let found =
                CompressedCode::find(path, output)?.map(|code| code.digest(path)).transpose()?;
            return match found == Some(*digest) {
                true => Ok(()),
                false => unsound("the compressed bundle is another one".to_owned()),
            };
        }
        if let Kind::InData(rooms) = &self.kind {
            for range in self.around(rooms) {
                let read = |file: &File, from: u64, out: &mut [u8]| {
                    file.read_exact_at(out, range.start + from)
                };
                let differs = first_difference(
                    range.end - range.start,
                    |from, out| read(input, from, out),
                    |from, out| read(output, from, out),
                );
                if let Some(at) = differs.map_err(failed)? {
                    return unsound(format!("file offset {:#x} changed", range.start + at));
                }
            }
        }
        let check = |(bundle, at): (&TrimmedBundle, u64)| match bundle.check(input, output, at) {
            Err(error @ BundleError::Malformed { .. }) => unsound(error.to_string()),
            Err(error) => Err(bundle_error(path, "", error)),
            Ok(Some(wrong)) => unsound(wrong),
            Ok(None) => Ok(()),
        };
        let bundles = self.bundles.iter().zip(self.offsets());
        // To read a compressed one takes as much memory as its window has.
        let (compressed, plain): (Vec<_>, Vec<_>) =
            bundles.partition(|(bundle, _)| bundle.scratch_size() > 0);
        parallel::try_map(plain, check)?;
        compressed.into_iter().try_for_each(check)
    }
}

impl std::fmt::Debug for TrimPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrimPlan").field("size_after", &self.size_after).finish_non_exhaustive()
    }
}

/// Makes `file` replace the file `old`, which is at `name` in `directory`, as another of its names. Whether the system can.
///
/// # Errors
/// [`Error::Changed`] if `old` is not there any more; [`Error::Io`].
pub fn link_again(
    file: &File,
    directory: &Arc<Directory>,
    name: &OsStr,
    old: &File,
) -> Result<bool, Error> {
    let Some(mut staged) = StagedFile::adopt(directory, name, file)? else {
        return Ok(false);
    };
    staged.replaces(old)?;
    publish::replace(staged).map(|()| true)
}

/// Gives a new file the times of an old one.
fn keep_times(new: &File, old: &File) -> io::Result<()> {
    let old = old.metadata()?;
    let times = FileTimes::new().set_modified(old.modified()?).set_accessed(old.accessed()?);
    new.set_times(times)
}

fn sum<'a>(all: impl Iterator<Item = &'a SizeByTarget>) -> BTreeMap<TargetId, u64> {
    let mut sum = BTreeMap::new();
    for (target, size) in all.flatten() {
        *sum.entry(target.clone()).or_default() += size;
    }
    sum
}
