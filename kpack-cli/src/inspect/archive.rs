//! Describes archives.

use std::collections::BTreeMap;
use std::path::Path;

use kpack_format::archive::Targets;
use kpack_format::names::KernelName;
use serde::Serialize;

use kpack_core::Error;
use kpack_split::input::open_archive;

/// A `.kpack` archive.
#[derive(Debug, Serialize)]
pub(crate) struct ArchiveDescription {
    /// Module and component, such as `rocblas_lib`.
    pub(crate) group_name: String,
    pub(crate) target: String,
    pub(crate) targets: Vec<String>,
    #[serde(rename = "compression_scheme")]
    pub(crate) scheme: &'static str,
    pub(crate) checksums: bool,
    pub(crate) stored_objects: usize,
    pub(crate) stored_size: u64,
    /// Uncompressed bytes of the code objects. One that entries share counts once.
    pub(crate) original_size: u64,
    /// Its entries, by binary, index and target.
    #[serde(rename = "kernels")]
    pub(crate) entries: Vec<ArchivedKernel>,
}

/// An entry of an archive.
#[derive(Debug, Serialize)]
pub(crate) struct ArchivedKernel {
    /// The binary and the index of its wrapper: `lib/libvec.so#0`.
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) original_size: u64,
    /// Its size in the archive.
    pub(crate) stored_size: u64,
    pub(crate) ordinal: u32,
    /// Number of entries that have this code object.
    pub(crate) shared_by: usize,
    /// Its type, if that is not `hsaco`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Box<str>>,
    /// Its metadata, if JSON can express them: it lacks some of MessagePack's types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<serde_json::Value>,
}

impl ArchiveDescription {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let mut archive = open_archive(path)?;
        let toc = archive.toc().clone();
        // By ordinal: stored size, original size, and number of entries.
        let mut stored: BTreeMap<u32, (u64, u64, usize)> = BTreeMap::new();
        for entry in toc.kernels.values().flat_map(Targets::values) {
            let place = archive.stored(entry.ordinal);
            let (_, size) = place.map_err(|error| Error::archive(path, "read", error))?;
            let (_, original_size, shared_by) = stored.entry(entry.ordinal).or_insert((size, 0, 0));
            *original_size = entry.original_size;
            *shared_by += 1;
        }
        let mut entries = Vec::new();
        for (kernel, targets) in &toc.kernels {
            for (target, entry) in targets.iter() {
                let (stored_size, _, shared_by) = stored[&entry.ordinal];
                let metadata = entry.metadata.as_deref().map(rmp_serde::from_slice);
                entries.push(ArchivedKernel {
                    name: kernel.clone(),
                    target: target.to_string(),
                    original_size: entry.original_size,
                    stored_size,
                    ordinal: entry.ordinal,
                    shared_by,
                    kind: entry.kind.clone(),
                    metadata: metadata.and_then(Result::ok),
                });
            }
        }
        entries.sort_by(|one, other| one.order().cmp(&other.order()));
        Ok(Self {
            group_name: toc.group_name,
            target: toc.gfx_arch_family,
            targets: toc.gfx_arches,
            scheme: toc.scheme.as_str(),
            checksums: toc.checksums.is_some(),
            stored_objects: stored.len(),
            stored_size: stored.values().map(|(size, ..)| size).sum(),
            original_size: stored.values().fold(0, |sum, (_, size, _)| sum.saturating_add(*size)),
            entries,
        })
    }
}

impl ArchivedKernel {
    fn order(&self) -> (KernelName<'_>, &str) {
        (KernelName::parse(&self.name), &self.target)
    }
}
