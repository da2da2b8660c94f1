//! Manifests as files.

use std::io::Read;
use std::path::{Path, PathBuf};

use kpack_format::manifest;
use kpack_format::names::Group;

use crate::{Error, ids};

/// Far above any real manifest: an entry takes about 150 bytes.
const MAX_SIZE: u64 = 16 << 20;

/// Reads a manifest. Damage is [`Error::Refused`].
pub fn read_manifest(path: &Path) -> Result<manifest::Manifest, Error> {
    parse_manifest(path, super::open(path)?)
}

/// Parses a manifest from `source`; `path` is its current or future location.
pub fn parse_manifest(path: &Path, source: impl Read) -> Result<manifest::Manifest, Error> {
    let mut bytes = Vec::new();
    source.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, "read", e))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(Error::rejected(
            ids::DAMAGED_MANIFEST,
            path,
            "larger than 16 MiB, so not a manifest",
        ));
    }
    manifest::Manifest::read(&bytes)
        .map_err(|e| Error::rejected(ids::DAMAGED_MANIFEST, path, e.to_string()))
}

/// The fragments of a module's manifest in `directory`, `<name>.<part>.kpm`: one for each package
/// of a module that several packages share.
pub fn manifest_parts(
    directory: &Path,
    group: &Group,
) -> Result<Vec<(PathBuf, manifest::Manifest)>, Error> {
    let mut parts = Vec::new();
    for path in super::list(directory)? {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if group.part_of(&file).is_none()
            || !super::metadata_of(&path)?.is_some_and(|found| found.is_file())
        {
            continue;
        }
        match read_manifest(&path) {
            // `vec_lib.x.kpm` may also be the whole manifest of another module.
            Ok(manifest) if manifest.component_name == **group => parts.push((path, manifest)),
            // Verification reports why it cannot be read.
            Ok(_) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(parts)
}
