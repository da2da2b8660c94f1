//! Updates manifests of binaries that were split before: they list only archives that are kept.

use std::path::PathBuf;

use kpack_format::TargetId;
use kpack_format::manifest::Manifest;

use super::report::Report;
use super::sources::Trees;
use super::targets::Targets;
use crate::Error;
use crate::input::{or_refused, read_manifest};

/// A manifest of the input.
pub(super) struct Listed {
    pub(super) from: PathBuf,
    manifest: Manifest,
}

impl Listed {
    /// The targets that it lists.
    pub(super) fn targets(&self) -> impl Iterator<Item = TargetId> {
        let names = self.manifest.kpack_files.keys();
        names.filter_map(|name| name.parse().ok())
    }

    /// Its new bytes; `None` if everything in it is kept. An empty list is kept as well: it tells that
    /// no archives are expected.
    pub(super) fn rewritten(&self, targets: &Targets) -> Option<Vec<u8>> {
        let mut manifest = self.manifest.clone();
        retain(&mut manifest, targets);
        let is_changed = manifest.kpack_files.len() != self.manifest.kpack_files.len();
        is_changed.then(|| manifest.to_bytes())
    }
}

/// Removes skipped archives from a manifest.
pub(super) fn retain(manifest: &mut Manifest, targets: &Targets) {
    let kept = |name: &str| name.parse().is_ok_and(|target| targets.keeps(&target));
    manifest.kpack_files.retain(|name, _| kept(name));
}

/// The manifests in the input. An unreadable one is copied like any other file.
pub(super) fn read(trees: &Trees, report: &mut Report) -> Result<Vec<Listed>, Error> {
    let mut manifests = Vec::new();
    for (owner, _, item) in trees.entries() {
        let is_listed = owner.is_some() || !item.prefix.is_empty();
        if !is_listed || !item.is_manifest() {
            continue;
        }
        let from = item.from.clone();
        match or_refused(read_manifest(&from))? {
            Ok(manifest) => manifests.push(Listed { from, manifest }),
            Err((path, reason)) => report.warn(path, format!("copied unchanged: {reason}")),
        }
    }
    Ok(manifests)
}
