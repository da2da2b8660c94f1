//! Parts of manifests, which the artifacts of groups of targets have.

use std::path::Path;

use kpack_format::names::{Group, is_manifest};
use walkdir::WalkDir;

/// Whether the manifest with this name is the part of a group: `rocblas_lib.gfx110X.kpm`.
pub(crate) fn is_part(manifest: &str, group: &str) -> bool {
    manifest.ends_with(&Group::from("").fragment(group))
}

/// The names of the manifests in an artifact directory.
pub(crate) fn manifest_names(artifact: &Path) -> Vec<String> {
    let files = WalkDir::new(artifact).into_iter().flatten();
    let files = files.filter(|entry| is_manifest(entry.path()));
    files
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Whether an artifact directory is a group's, by its name and the manifests in it.
pub(crate) fn is_of_group(artifact: &Path) -> bool {
    let real = artifact.canonicalize();
    let real = real.as_deref().unwrap_or(artifact);
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let groups: Vec<&str> = name
        .match_indices('_')
        .filter_map(|(at, _)| name.get(at + 1..))
        .collect();
    let manifests = manifest_names(artifact);
    let mut parts = manifests.iter();
    parts.any(|part| groups.iter().any(|group| is_part(part, group)))
}
