//! `.kpm`: which archives a module has.

use std::collections::BTreeMap;

use crate::Sha256;

/// A module's manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Module and component, such as `rocblas_lib`.
    pub component_name: String,
    /// The directory in the install prefix that holds the kpack directory, as installed: `lib`.
    pub prefix: String,
    /// By target ID.
    pub kpack_files: BTreeMap<String, KpackFile>,
}

/// One archive of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KpackFile {
    /// Target ID.
    pub architecture: String,
    /// File name, in the manifest's directory.
    pub filename: String,
    /// Size in bytes.
    pub size: u64,
    /// Number of entries.
    pub kernel_count: u64,
    /// SHA-256 of the file.
    pub checksum: Option<Sha256>,
}

/// Why bytes are no manifest.
#[derive(Debug, thiserror::Error)]
#[error("not a kpack manifest: {0}")]
pub struct ManifestError(pub(crate) String);

impl Manifest {
    /// The MessagePack form.
    pub fn to_bytes(&self) -> Vec<u8> {
        todo!()
    }

    /// Reads a manifest that fills `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let _ = bytes;
        todo!()
    }
}
