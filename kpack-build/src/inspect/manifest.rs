//! Manifests.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use kpack_format::manifest;
use serde::Serialize;

use crate::Error;

/// A `.kpm` manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// Module and component, such as `rocblas_lib`.
    pub component_name: String,
    /// The directory in the install prefix that holds the kpack directory.
    pub prefix: String,
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
    /// Whether the file is there.
    pub present: bool,
}

/// No manifest of a real module comes near this: an entry takes about 150 bytes.
const MAX_SIZE: u64 = 16 << 20;

/// Reads a manifest. Damage is [`Error::Refused`].
pub(crate) fn read_manifest(path: &Path) -> Result<manifest::Manifest, Error> {
    let mut bytes = Vec::new();
    super::open(path)?
        .take(MAX_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io(path, "read", e))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(Error::refused(
            path,
            "longer than 16 MiB, which no manifest is",
        ));
    }
    manifest::Manifest::read(&bytes).map_err(|e| Error::refused(path, e.to_string()))
}

/// The parts of a module's manifest in `directory`, `<name>.<part>.kpm`: what single packages have
/// of the module `name`, where it is in several.
pub(crate) fn manifest_parts(
    directory: &Path,
    name: &str,
) -> Result<Vec<(PathBuf, manifest::Manifest)>, Error> {
    let failed = |error| Error::io(directory, "list", error);
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let part = file
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(|rest| rest.strip_suffix(".kpm"));
        if part.is_none_or(str::is_empty) || !path.is_file() {
            continue;
        }
        match read_manifest(&path) {
            // `vec_lib.x.kpm` is another module's whole manifest where that is called so.
            Ok(manifest) if manifest.component_name == name => parts.push((path, manifest)),
            // Verifying it says why it cannot be read.
            Ok(_) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(parts)
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
        kpacks: kpacks.collect(),
    })
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
