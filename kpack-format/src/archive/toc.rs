//! The table of contents.

use std::collections::BTreeMap;

use crate::Sha256;

/// How code objects are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// As they are.
    None,
    /// A Zstandard frame each.
    ZstdPerKernel,
}

/// The table of contents of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toc {
    /// Module and component, such as `rocblas_lib`.
    pub group_name: String,
    /// The archive's target ID.
    pub gfx_arch_family: String,
    /// Every target ID in it.
    pub gfx_arches: Vec<String>,
    /// How code objects are stored.
    pub scheme: Scheme,
    /// Kernel name, then target ID.
    pub kernels: BTreeMap<String, BTreeMap<String, TocEntry>>,
    /// SHA-256 of each uncompressed code object, by ordinal, where the archive tells.
    pub checksums: Option<Vec<Sha256>>,
}

/// One kernel for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TocEntry {
    /// Which stored code object. Two entries may name one: an identical code object is stored once.
    pub ordinal: u32,
    /// Size of the code object in bytes.
    pub original_size: u64,
}
