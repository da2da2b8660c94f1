//! Manifests as files.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use kpack_format::manifest;
use kpack_format::names::Group;

use crate::Error;

/// No manifest of a real module comes near this: an entry takes about 150 bytes.
const MAX_SIZE: u64 = 16 << 20;

/// Reads a manifest. Damage is [`Error::Refused`].
pub fn read_manifest(path: &Path) -> Result<manifest::Manifest, Error> {
    parse_manifest(path, super::open(path)?)
}

/// Reads a manifest that is at `path`, or is to be there.
pub(crate) fn parse_manifest(path: &Path, source: impl Read) -> Result<manifest::Manifest, Error> {
    let mut bytes = Vec::new();
    source
        .take(MAX_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io(path, "read", e))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(Error::refused(
            path,
            "larger than 16 MiB, so not a manifest",
        ));
    }
    manifest::Manifest::read(&bytes).map_err(|e| Error::refused(path, e.to_string()))
}

/// The parts of a module's manifest in `directory`, `<name>.<part>.kpm`: what single packages have
/// of the module, where it is in several.
pub fn manifest_parts(
    directory: &Path,
    group: &Group,
) -> Result<Vec<(PathBuf, manifest::Manifest)>, Error> {
    let failed = |error| Error::io(directory, "list", error);
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if group.part_of(&file).is_none() || !path.is_file() {
            continue;
        }
        match read_manifest(&path) {
            // `vec_lib.x.kpm` is another module's whole manifest where that is called so.
            Ok(manifest) if manifest.component_name == **group => parts.push((path, manifest)),
            // Verifying it says why it cannot be read.
            Ok(_) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(parts)
}
