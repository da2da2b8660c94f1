//! Inspects manifests.

use std::path::Path;

use serde::Serialize;

use crate::Error;
use crate::input::{hex, read_manifest};

/// A `.kpm` manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// Module and component, such as `rocblas_lib`.
    pub component_name: String,
    /// The directory in the install prefix that holds the kpack directory.
    pub prefix: String,
    /// How users install the archive of a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_hint: Option<String>,
    /// Its archives, by target.
    pub kpacks: Vec<ManifestEntry>,
}

/// One archive that a manifest lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestEntry {
    /// Target ID.
    pub target: String,
    /// File name, in the manifest's directory.
    pub filename: String,
    /// Declared size in bytes.
    pub size: u64,
    /// Declared number of entries.
    pub kernel_count: u64,
    /// Declared SHA-256 of the file, in hexadecimal.
    pub checksum: Option<String>,
    /// Whether the file exists.
    pub present: bool,
}

pub(super) fn inspect(path: &Path) -> Result<Manifest, Error> {
    let manifest = read_manifest(path)?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let kpacks = manifest
        .kpack_files
        .iter()
        .map(|(target, file)| ManifestEntry {
            target: target.clone(),
            filename: file.filename.clone(),
            size: file.size,
            kernel_count: file.kernel_count,
            checksum: file.checksum.as_ref().map(|digest| hex(digest)),
            present: directory.join(&file.filename).is_file(),
        });
    Ok(Manifest {
        component_name: manifest.component_name.clone(),
        prefix: manifest.prefix.clone(),
        install_hint: manifest.install_hint.clone(),
        kpacks: kpacks.collect(),
    })
}
