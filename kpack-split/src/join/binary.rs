//! One split binary, and what its wrappers ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kpack_core::files::describe_package;
use kpack_format::marker::Marker;
use kpack_format::names::SearchPath;

use crate::elf::{DeviceCode, FatBinary, SplitWrapper};
use crate::host::Image;
use crate::input::{
    self, FileKind, LinkedBinary, LocatedBinary, MarkerGroup, RangeReader, wrapper_error,
};
use crate::publish::Identity;
use crate::split::code_ids;
use crate::{Error, ids};

/// What a file is to a join.
pub(super) enum Joinable {
    /// A split binary, or one that was joined before.
    Binary(Box<MarkedBinary>),
    /// It is left alone; says why.
    LeftAlone(String),
}

/// A binary with a marker.
pub(super) struct MarkedBinary {
    pub(super) located: LocatedBinary,
    /// The path by which a loader knows it.
    pub(super) loaded_as: PathBuf,
    pub(super) identity: Identity,
    pub(super) headers: Image<()>,
    pub(super) marker: Marker,
    pub(super) kernel_name: String,
    /// Addresses of the marker, with the room that a marker of a later split needs.
    pub(super) marker_at: Range<u64>,
    /// Addresses of the wrappers, in order.
    pub(super) wrappers: Vec<u64>,
    /// Their code object indices.
    pub(super) indices: Vec<u32>,
    /// The targets that were put back by an earlier run.
    pub(super) joined: BTreeSet<String>,
    /// The bundles with SPIR-V, which the split kept: their ranges in the file, by code object index.
    pub(super) kept: BTreeMap<u32, Range<u64>>,
}

impl MarkedBinary {
    /// Reads the binary.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is no linked file, is damaged, or has markers that name no archives or
    /// those of several binaries.
    pub(super) fn read(located: LocatedBinary, check: bool) -> Result<Joinable, Error> {
        let path = located.path.clone();
        let file = input::open(&path)?;
        if input::identify(&path, &file)? != Some(FileKind::Linked) {
            let package = describe_package(&path, &file)?;
            let text = package.unwrap_or_else(|| "not an executable or library (ELF or PE)".into());
            return Err(Error::rejected(ids::UNKNOWN_FILE, &path, text));
        }
        Self::of(located, &LinkedBinary::read(&path, file)?, check)
    }

    /// Reads the binary, which was opened. With `check`, compares the hashes of bundles that it keeps.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is damaged, or has markers that name no archives or those of several
    /// binaries.
    pub(super) fn of(
        located: LocatedBinary,
        linked: &LinkedBinary,
        check: bool,
    ) -> Result<Joinable, Error> {
        let path = &located.path;
        let reason = match &linked.code {
            DeviceCode::Split(wrappers) => {
                let marker = only_marker(path, linked.markers()?)?;
                let at = main_marker(linked, wrappers)?;
                let wrappers = wrappers.iter().map(|w| (w.address, w.co_index));
                let kept = linked.kept.iter().flat_map(|fat| &fat.wrappers);
                let mut all = BTreeMap::from_iter(wrappers);
                all.extend(kept.map(|w| (w.address, w.co_index)));
                let mut new = Self::new(linked, located, (marker, at), all.into_iter())?;
                if let Some(fat) = &linked.kept {
                    new.kept = bundle_ranges(linked, fat, check, &|_| true)?;
                }
                return Ok(Joinable::Binary(Box::new(new)));
            }
            DeviceCode::Fat(fat) => match (&fat.joined, linked.kept_marker()?) {
                (Some(kept), Some(marker)) => {
                    let wrappers = fat.wrappers.iter().map(|w| (w.address, w.co_index));
                    let spirv = linked.with_spirv(fat, Some(&marker))?;
                    let marker = (marker, kept.address);
                    let mut new = Self::new(linked, located, marker, wrappers)?;
                    new.joined = linked.targets(fat, &|index| !spirv.contains(&index))?;
                    new.kept = bundle_ranges(linked, fat, check, &|index| spirv.contains(&index))?;
                    return Ok(Joinable::Binary(Box::new(new)));
                }
                _ => "a fat binary, which has its device code".to_owned(),
            },
            DeviceCode::None(reason) => reason.to_string(),
        };
        Ok(Joinable::LeftAlone(reason))
    }

    fn new(
        linked: &LinkedBinary,
        located: LocatedBinary,
        (marker, at): (Marker, u64),
        wrappers: impl Iterator<Item = (u64, u32)>,
    ) -> Result<Self, Error> {
        let Some(kernel_name) = marker.kernel_name.clone().filter(|name| !name.is_empty()) else {
            let text = "the marker is in the early plain-text form, which names no kernels; install the unsplit binary again";
            return Err(Error::rejected(ids::EARLY_MARKER, &located.path, text));
        };
        let (wrappers, indices): (_, Vec<u32>) = wrappers.unzip();
        // Another order would give wrappers each other's code.
        if let Some((position, index)) = (0..).zip(&indices).find(|(at, index)| at != *index) {
            let text = format!(
                "wrapper {position} has code object index {index} (expected {position}); the binary is damaged, install it again"
            );
            return Err(Error::rejected(ids::DAMAGED_BINARY, &located.path, text));
        }
        let room = code_ids::with_room(&marker, usize::MAX).len() as u64;
        Ok(Self {
            identity: Identity::of(&located.path, linked.image.source())?,
            headers: linked.image.over(()),
            loaded_as: linked.loaded_as(),
            located,
            marker,
            kernel_name,
            marker_at: at..at + room,
            wrappers,
            indices,
            joined: BTreeSet::new(),
            kept: BTreeMap::new(),
        })
    }

    /// Whether its marker refers to archives of `module`, if that is named.
    pub(super) fn is_of(&self, module: Option<&str>) -> bool {
        let Some(module) = module else {
            return true;
        };
        let mut paths = self.marker.kpack_search_paths.iter();
        paths.any(|path| {
            let group = SearchPath::new(path).split().and_then(|p| p.group());
            group.is_some_and(|group| group.module() == module)
        })
    }

    /// Reopens the file.
    pub(super) fn open(&self) -> Result<File, Error> {
        self.identity.open(&self.located.path)
    }
}

/// The ranges of the bundles of some wrappers in the file, by code object index.
fn bundle_ranges(
    linked: &LinkedBinary,
    fat: &FatBinary,
    check: bool,
    wanted: &dyn Fn(u32) -> bool,
) -> Result<BTreeMap<u32, Range<u64>>, Error> {
    let mut ranges = BTreeMap::new();
    for (wrapper, bundle) in fat.wrappers.iter().zip(linked.bundles(&fat.wrappers)) {
        let start = wrapper.bundle_offset;
        let bundle = bundle?;
        let range = start..start.saturating_add(bundle.size);
        if wanted(wrapper.co_index) {
            if check {
                let source = RangeReader::new(linked.image.source(), range.clone());
                let failed = |error| wrapper_error(&linked.path, wrapper.co_index, start, error);
                bundle.check_hash(source).map_err(failed)?;
            }
            ranges.insert(wrapper.co_index, range);
        }
    }
    Ok(ranges)
}

/// The marker of all wrappers.
fn only_marker(path: &Path, groups: Vec<MarkerGroup>) -> Result<Marker, Error> {
    match <[MarkerGroup; 1]>::try_from(groups) {
        Ok([group]) => Ok(group.marker),
        Err(_) => Err(Error::rejected(
            ids::SPLIT_BEFORE_LINK,
            path,
            "the objects were split before the link, each with its own marker; run `kpack split` on the binary first",
        )),
    }
}

/// Address of the marker that took the place of device code. Those of objects that were split before
/// the link are elsewhere.
fn main_marker(linked: &LinkedBinary, wrappers: &[SplitWrapper]) -> Result<u64, Error> {
    let marker = linked.image.main_marker(wrappers).map_err(|e| linked.error(e))?;
    marker.ok_or_else(|| {
        Error::rejected(
            ids::DAMAGED_MARKER,
            &linked.path,
            "no marker is in the place of its device code",
        )
    })
}
