//! Inspects archives.

use std::collections::BTreeMap;
use std::path::Path;

use kpack_format::archive::{Encoder, Targets, Toc, TocEntry};
use kpack_format::names::KernelName;

use kpack_core::archives::{Content, debug_advice};
use kpack_core::{Error, Finding};
use kpack_split::input::open_archive;

/// A `.kpack` archive.
#[derive(Debug)]
pub struct Archive {
    /// Its table of contents.
    pub toc: Toc,
    /// The stored size in bytes of each code object, and how many entries share it, by ordinal.
    pub stored: BTreeMap<u32, (u64, usize)>,
}

/// zstd's default level.
const LEVEL: i32 = 3;
/// Bytes of code objects that tell how much of an archive is debug information. Larger ones are not read.
const SAMPLE: u64 = 4 << 20;
/// The number of these code objects.
const SAMPLES: usize = 4;

/// A note on the archive at `path` if much of it is debug information, estimated from a sample.
///
/// # Errors
/// [`Error::Refused`] for damage; [`Error::Io`].
pub fn debug_note(path: &Path) -> Result<Option<Finding>, Error> {
    let failed = |error| Error::archive(path, "read", error);
    let mut archive = open_archive(path)?;
    let toc = archive.toc().clone();
    let mut entries = BTreeMap::new();
    for (kernel, targets) in &toc.kernels {
        for (target, entry) in targets {
            if entry.original_size <= SAMPLE {
                let known = entries.entry(entry.ordinal);
                known.or_insert((kernel, target, entry));
            }
        }
    }
    let step = entries.len().div_ceil(SAMPLES).max(1);
    let mut encoder = Encoder::new(toc.scheme, LEVEL).map_err(failed)?;
    let (mut left, mut stored, mut debug) = (SAMPLE, 0, 0);
    for (kernel, target, entry) in entries.into_values().step_by(step) {
        let Some(rest) = left.checked_sub(entry.original_size) else {
            continue;
        };
        left = rest;
        let size = archive.stored(entry.ordinal).map_err(failed)?.1;
        let code = Content::Held(archive.read(kernel, target).map_err(failed)?);
        // What is no code object has no debug sections.
        let of_debug = code.stored_debug(&mut encoder).unwrap_or(0);
        stored += size;
        debug += of_debug.min(size);
    }
    Ok(debug_advice(path, debug, stored))
}

impl Archive {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let mut archive = open_archive(path)?;
        let toc = archive.toc().clone();
        let mut stored = BTreeMap::new();
        for entry in toc.kernels.values().flat_map(Targets::values) {
            let place = archive.stored(entry.ordinal);
            let (_, size) = place.map_err(|error| Error::archive(path, "read", error))?;
            stored.entry(entry.ordinal).or_insert((size, 0)).1 += 1;
        }
        Ok(Self { toc, stored })
    }

    /// Its entries with kernel and target, by binary and index.
    pub fn entries(&self) -> Vec<(&str, &str, &TocEntry)> {
        let kernels = self.toc.kernels.iter();
        let mut entries: Vec<_> = kernels
            .flat_map(|(kernel, targets)| {
                let targets = targets.iter();
                targets.map(|(target, entry)| (kernel.as_str(), target.as_str(), entry))
            })
            .collect();
        entries.sort_by_key(|(kernel, target, _)| (KernelName::parse(kernel), *target));
        entries
    }

    /// Bytes of the stored code objects.
    pub fn stored_size(&self) -> u64 {
        self.stored.values().map(|(size, _)| size).sum()
    }

    /// Uncompressed bytes of the code objects. One that entries share counts once.
    pub fn original_size(&self) -> u64 {
        let entries = self.toc.kernels.values().flat_map(Targets::values);
        let sizes = entries.map(|entry| (entry.ordinal, entry.original_size));
        let sizes = BTreeMap::from_iter(sizes).into_values();
        sizes.fold(0, u64::saturating_add)
    }
}
