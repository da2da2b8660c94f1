//! Inspects archives.

use std::collections::BTreeMap;
use std::path::Path;

use kpack_format::archive::{Targets, Toc, TocEntry};
use kpack_format::names::KernelName;

use kpack_core::Error;
use kpack_split::input::open_archive;

/// A `.kpack` archive.
#[derive(Debug)]
pub struct Archive {
    /// Its table of contents.
    pub toc: Toc,
    /// The stored size in bytes of each code object, and how many entries share it, by ordinal.
    pub stored: BTreeMap<u32, (u64, usize)>,
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
