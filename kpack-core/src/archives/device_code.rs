//! The bundles of one file's wrappers, and the code objects in them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::offload_bundle::{Bundle, Entry, EntryId};

use super::budget::Budget;
use super::content::{LARGE_CODE_OBJECT, UncompressedCode};
use super::spirv::Spirv;
use crate::Error;
use crate::elf;
use crate::files::{self, RangeReader, SharedFile};
use crate::publish::Identity;

/// The device code of a linked binary, a relocatable object, or a static library member.
pub struct PackedCode {
    /// Path of the file.
    pub path: PathBuf,
    identity: Identity,
    wrapper_count: usize,
    bundles: Vec<LocatedBundle>,
    kept: Vec<KeptBundle>,
    /// Bytes of SPIR-V code that are removed.
    dropped: u64,
}

/// A bundle with SPIR-V, which stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBundle {
    /// File offset.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// The indices of its wrappers.
    pub wrappers: Vec<u32>,
    /// The targets of its code.
    pub targets: BTreeSet<TargetId>,
}

/// A bundle, and the wrappers that point to it.
struct LocatedBundle {
    /// File offset.
    offset: u64,
    bundle: Bundle,
    wrappers: Vec<u32>,
}

impl LocatedBundle {
    fn device_entries(&self) -> impl Iterator<Item = (&TargetId, &Entry)> {
        let used = self.bundle.entries.iter().filter(|entry| entry.size > 0);
        used.filter_map(|entry| Some((entry.id.target()?, entry)))
    }
}

/// Reads the table of each bundle once, even if several wrappers point to it.
fn bundles(
    path: &Path,
    file: &File,
    wrappers: &[elf::Wrapper],
) -> Result<Vec<LocatedBundle>, Error> {
    let mut bundles: Vec<LocatedBundle> = Vec::new();
    let mut reader = BufReader::new(SharedFile::of(file));
    for wrapper in wrappers {
        let (index, offset) = (wrapper.co_index, wrapper.bundle_offset);
        // They mostly come in order.
        let at = bundles.partition_point(|bundle| bundle.offset < offset);
        if let Some(known) = bundles.get_mut(at).filter(|known| known.offset == offset) {
            known.wrappers.push(index);
            continue;
        }
        let bundle = files::open_bundle(&mut reader, wrapper)
            .map_err(|error| files::wrapper_error(path, index, offset, error))?;
        let located = LocatedBundle { offset, bundle, wrappers: vec![index] };
        bundles.insert(at, located);
    }
    Ok(bundles)
}

impl PackedCode {
    /// Reads the tables of the bundles of `wrappers` in `file`, found at `path`.
    pub fn read(
        path: &Path,
        file: &File,
        wrappers: &[elf::Wrapper],
        spirv: Spirv,
    ) -> Result<Self, Error> {
        let identity = Identity::of(path, file)?;
        let stays = |located: &LocatedBundle| spirv == Spirv::Keep && located.bundle.has_spirv();
        let all = bundles(path, file, wrappers)?;
        let (kept, mut bundles): (Vec<_>, Vec<_>) = all.into_iter().partition(stays);
        let mut dropped = 0;
        for located in bundles.iter_mut().filter(|_| spirv == Spirv::Drop) {
            located.bundle.entries.retain(|entry| {
                let is_spirv = entry.is_spirv();
                dropped += if is_spirv { entry.size } else { 0 };
                !is_spirv
            });
        }
        let kept = kept.into_iter().map(|located| KeptBundle {
            offset: located.offset,
            size: located.bundle.size,
            targets: located.device_entries().map(|(target, _)| target.clone()).collect(),
            wrappers: located.wrappers,
        });
        Ok(Self {
            path: path.to_owned(),
            identity,
            wrapper_count: bundles.iter().map(|located| located.wrappers.len()).sum(),
            bundles,
            kept: kept.collect(),
            dropped,
        })
    }

    /// The bundles with SPIR-V that stay, in order of offset.
    pub fn kept(&self) -> &[KeptBundle] {
        &self.kept
    }

    /// What becomes of SPIR-V that is not moved like other code.
    pub fn note(&self) -> Option<String> {
        let wrappers: usize = self.kept.iter().map(|kept| kept.wrappers.len()).sum();
        let size: u64 = self.kept.iter().map(|kept| kept.size).sum();
        if wrappers > 0 {
            let all = wrappers + self.wrapper_count;
            return Some(format!(
                "{wrappers} of {all} wrappers have SPIR-V code, which HIP runtimes do not read from archives: their bundles, {size} bytes, stay in it (--spirv drop removes the SPIR-V, --spirv archive moves it)"
            ));
        }
        let dropped = self.dropped;
        (dropped > 0).then(|| format!("removing {dropped} bytes of SPIR-V code"))
    }

    /// Reopens the file: holding a descriptor for each of a thousand binaries would be too many.
    ///
    /// # Errors
    /// [`Error::Changed`] if the file was replaced or modified.
    pub fn open(&self) -> Result<File, Error> {
        self.identity.open(&self.path)
    }

    /// Size of the file in bytes.
    pub fn file_size(&self) -> u64 {
        self.identity.size()
    }

    /// The indices of each bundle's wrappers, whose code is moved.
    pub fn wrappers_by_bundle(&self) -> impl Iterator<Item = &[u32]> {
        self.bundles.iter().map(|located| &*located.wrappers)
    }

    /// Number of wrappers whose code is moved.
    pub fn wrapper_count(&self) -> usize {
        self.wrapper_count
    }

    /// File ranges of all bundles, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let bundles = self.bundles.iter();
        let moved = bundles.map(|located| (located.offset, located.bundle.size));
        let kept = self.kept.iter().map(|kept| (kept.offset, kept.size));
        let mut all = Vec::from_iter(moved.chain(kept));
        all.sort_unstable();
        let ranges = all.into_iter();
        ranges.map(|(offset, size)| offset..offset.saturating_add(size))
    }

    /// The first wrapper of each code object, its target, and its size in bytes.
    pub fn entries(&self) -> impl Iterator<Item = (u32, &TargetId, u64)> {
        self.bundles.iter().flat_map(|located| {
            let wrapper = located.wrappers.first().copied().unwrap_or_default();
            let entries = located.device_entries();
            entries.map(move |(target, entry)| (wrapper, target, entry.size))
        })
    }

    /// The most bytes that [`code_objects`](Self::code_objects) keeps in a scratch file: those of a large code
    /// object of a compressed bundle.
    pub fn scratch_size(&self) -> u64 {
        let is_compressed = |located: &&LocatedBundle| !located.bundle.format.is_in_place();
        let bundles = self.bundles.iter().filter(is_compressed);
        let sizes = bundles.flat_map(LocatedBundle::device_entries).map(|(_, entry)| entry.size);
        let large = sizes.filter(|size| *size > LARGE_CODE_OBJECT);
        large.max().unwrap_or(0)
    }

    /// The targets of its device code.
    pub fn targets(&self) -> BTreeSet<TargetId> {
        self.entries().map(|(_, target, _)| target.clone()).collect()
    }

    /// Size in bytes of the code objects for the wanted targets.
    pub fn device_size(&self, wanted: &dyn Fn(&TargetId) -> bool) -> u64 {
        let entries = self.bundles.iter().flat_map(LocatedBundle::device_entries);
        let sizes = entries.filter(|(target, _)| wanted(target)).map(|(_, entry)| entry.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Leaves out the bundles that none of the wrappers that `keep` accepts points to; they still count.
    pub fn keep_wrappers(&mut self, keep: &dyn Fn(u32) -> bool) {
        let is_kept = |located: &LocatedBundle| located.wrappers.iter().any(|index| keep(*index));
        self.bundles.retain(is_kept);
    }

    /// Each wanted code object with its target and the indices of its wrappers. Large ones of compressed
    /// bundles are in files in the directory `scratch`; decompressing takes memory from `budget`. Reads every
    /// bundle to its end and compares the hash in its header, also of those that are kept, so that damage anywhere is
    /// found.
    pub fn code_objects<'a>(
        &'a self,
        wanted: &'a (dyn Fn(&TargetId) -> bool + Sync),
        scratch: &'a Path,
        budget: &'a Budget,
    ) -> impl Iterator<Item = Result<WrapperCode<'a>, Error>> + Send + 'a {
        let (file, failed) = match self.open() {
            Ok(file) => (Some(Arc::new(file)), None),
            Err(error) => (None, Some(Err(error))),
        };
        let of_bundle = move |file: &Arc<File>, located| {
            let code_objects = self.of_bundle(file.clone(), located, wanted, scratch, budget);
            let (code_objects, failed) = match code_objects {
                Ok(code_objects) => (Some(code_objects), None),
                Err(error) => (None, Some(Err(error))),
            };
            code_objects.into_iter().flatten().chain(failed)
        };
        let bundles = move |file: Arc<File>| {
            let kept = self.kept.iter().map(|kept| self.check_kept(&file, kept));
            let damaged = Vec::from_iter(kept.filter_map(Result::err));
            let bundles = self.bundles.iter();
            let code_objects = bundles.flat_map(move |located| of_bundle(&file, located));
            damaged.into_iter().map(Err).chain(code_objects)
        };
        file.into_iter().flat_map(bundles).chain(failed)
    }

    fn check_kept(&self, file: &File, kept: &KeptBundle) -> Result<(), Error> {
        let reader =
            || BufReader::new(RangeReader::new(file, kept.offset..kept.offset + kept.size));
        let checked =
            Bundle::read(&mut reader(), kept.size).and_then(|bundle| bundle.check_hash(reader()));
        let wrapper = kept.wrappers.first().copied().unwrap_or_default();
        checked.map_err(|error| files::wrapper_error(&self.path, wrapper, kept.offset, error))
    }

    fn of_bundle<'a>(
        &'a self,
        file: Arc<File>,
        located: &'a LocatedBundle,
        wanted: &'a (dyn Fn(&TargetId) -> bool + Sync),
        scratch: &'a Path,
        budget: &'a Budget,
    ) -> Result<impl Iterator<Item = Result<WrapperCode<'a>, Error>> + Send + 'a, Error> {
        let wrapper = located.wrappers.first().copied().unwrap_or_default();
        let failed = move |error| files::wrapper_error(&self.path, wrapper, located.offset, error);
        // Meanwhile, other threads read its large code objects.
        let mut reader = SharedFile::of(Arc::clone(&file));
        let start = reader.seek(SeekFrom::Start(located.offset));
        start.map_err(|error| Error::io(&self.path, "read", error))?;
        let mut code_objects = located.bundle.code_objects(reader, wanted).map_err(failed)?;
        let window = budget.take_window(code_objects.window());
        // Entries of further targets that name the same bytes.
        let mut same = Vec::new();
        let mut next = move || {
            if let Some(code_object) = same.pop() {
                return Ok(Some(code_object));
            }
            let Some(entry) = code_objects.next_entry().map_err(failed)? else {
                return Ok(None);
            };
            let mut ids = entry.ids().to_vec();
            let is_in_place = located.bundle.format.is_in_place();
            let in_place = is_in_place.then_some((&file, located.offset));
            let content = UncompressedCode::read(entry, in_place, scratch, &failed)?;
            let last = ids.pop();
            for id in ids {
                same.push((&*located.wrappers, id, content.clone()));
            }
            Ok(last.map(|id| (&*located.wrappers, id, content)))
        };
        let mut ended = false;
        Ok(std::iter::from_fn(move || {
            // Held until the bundle is read.
            let _window = &window;
            let result = if ended { Ok(None) } else { next() };
            ended |= result.is_err();
            result.transpose()
        }))
    }
}

/// A code object, with the indices of its wrappers and the ID of its entry.
pub(super) type WrapperCode<'a> = (&'a [u32], EntryId, UncompressedCode);
