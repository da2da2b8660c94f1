//! Inspects archives.

use std::collections::BTreeMap;
use std::path::Path;

use kpack_format::archive::{Scheme, Targets};
use kpack_format::names::KernelName;
use serde::Serialize;

use crate::Error;
use crate::input::open_archive;

/// A `.kpack` archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Archive {
    /// Module and component, such as `rocblas_lib`.
    pub group_name: String,
    /// The archive's target ID.
    pub target: String,
    /// Every target ID in it.
    pub targets: Vec<String>,
    /// `none` or `zstd-per-kernel`.
    pub compression_scheme: &'static str,
    /// Whether it has checksums of its code objects.
    pub checksums: bool,
    /// Number of stored code objects.
    pub stored_objects: usize,
    /// Bytes of the stored code objects.
    pub stored_size: u64,
    /// Uncompressed bytes of the entries' code objects, counting shared ones each time.
    pub original_size: u64,
    /// Its entries, by binary and index.
    pub kernels: Vec<Kernel>,
}

/// One entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Path of the binary in the prefix, `#`, and the code object index.
    pub name: String,
    /// Target ID.
    pub target: String,
    /// Size of the code object in bytes.
    pub original_size: u64,
    /// Stored size in bytes.
    pub stored_size: u64,
    /// Number of the stored code object.
    pub ordinal: u32,
    /// Number of entries that share the stored code object, including this one.
    pub shared_by: usize,
}

pub(super) fn inspect(path: &Path) -> Result<Archive, Error> {
    let mut archive = open_archive(path)?;
    let toc = archive.toc().clone();
    let mut shared: BTreeMap<u32, usize> = BTreeMap::new();
    for entry in toc.kernels.values().flat_map(Targets::values) {
        *shared.entry(entry.ordinal).or_default() += 1;
    }
    let mut stored = BTreeMap::new();
    for &ordinal in shared.keys() {
        let (_, size) = archive
            .stored(ordinal)
            .map_err(|e| Error::archive(path, "read", e))?;
        stored.insert(ordinal, size);
    }
    let mut kernels = Vec::new();
    for (name, targets) in &toc.kernels {
        for (target, entry) in targets {
            kernels.push(Kernel {
                name: name.clone(),
                target: target.clone(),
                original_size: entry.original_size,
                stored_size: stored[&entry.ordinal],
                ordinal: entry.ordinal,
                shared_by: shared[&entry.ordinal],
            });
        }
    }
    kernels.sort_by(|a, b| {
        (KernelName::parse(&a.name), &a.target).cmp(&(KernelName::parse(&b.name), &b.target))
    });
    Ok(Archive {
        group_name: toc.group_name,
        target: toc.gfx_arch_family,
        targets: toc.gfx_arches,
        compression_scheme: match toc.scheme {
            Scheme::None => "none",
            Scheme::ZstdPerKernel => "zstd-per-kernel",
        },
        checksums: toc.checksums.is_some(),
        stored_objects: stored.len(),
        stored_size: stored.values().sum(),
        original_size: kernels
            .iter()
            .map(|k| k.original_size)
            .fold(0, u64::saturating_add),
        kernels,
    })
}
