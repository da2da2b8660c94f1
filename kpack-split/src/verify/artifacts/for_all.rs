//! Files that are for all targets: whether they have something for each.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::manifest::Manifest;
use kpack_format::names::is_manifest;
use walkdir::WalkDir;

use super::Set;
use crate::Error;
use crate::artifact::databases::{self, Place};
use crate::artifact::manifest_txt;
use crate::artifact::names;
use crate::artifact::shared::{Entries, Shared, shared};
use crate::artifact::target_name::either_agrees;
use crate::verify::{Options, Report, Subject};

/// A target that a manifest lists.
struct Listed {
    target: TargetId,
    /// The manifest.
    by: PathBuf,
    /// Its archive, in the prefix.
    archive: PathBuf,
}

impl Set {
    /// Whether the files for all targets in the generic artifact have something for each target
    /// that the manifests of their prefix list.
    pub(super) fn files_for_all(
        &self,
        options: &Options,
        report: &mut Report,
    ) -> Result<(), Error> {
        let (Some(generic), true) = (self.roots.first(), self.has_generic) else {
            return Ok(());
        };
        // A list that cannot be read is a fault of the artifact.
        for prefix in manifest_txt::read(generic).unwrap_or_default() {
            let root = generic.join(&prefix);
            let walk = WalkDir::new(&root).sort_by_file_name().into_iter();
            let files = walk.flatten().filter(|entry| entry.file_type().is_file());
            let within = |path: &Path| path.strip_prefix(&root).unwrap_or(path).to_owned();
            let mut listed = Vec::new();
            let mut for_all = Vec::new();
            for file in files {
                let path = within(file.path());
                if is_manifest(&path) {
                    listed.extend(read_listed(file.path(), &path, options)?);
                } else if let Some(kind @ (Shared::Bundle | Shared::ByTarget)) = shared(&path) {
                    for_all.push((path, kind));
                }
            }
            for (path, kind) in for_all {
                self.has_each(&prefix, &path, kind, &listed, report)?;
            }
        }
        Ok(())
    }

    fn has_each(
        &self,
        prefix: &str,
        path: &Path,
        kind: Shared,
        listed: &[Listed],
        report: &mut Report,
    ) -> Result<(), Error> {
        let generic = self.roots.first().map_or(Path::new(""), PathBuf::as_path);
        let full = &generic.join(prefix).join(path);
        let entries = match Entries::read(full, kind) {
            Ok(Ok(entries)) => entries,
            // It is made up in another way, and a file of the host like others.
            Ok(Err(_)) => return Ok(()),
            Err(Error::Refused { reason, .. }) => {
                report.fault(Subject::Artifact, full, reason);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let own: Vec<TargetId> = entries
            .keys()
            .filter_map(|key| names::target(&key))
            .collect();
        let lacks = |listed: &&Listed| !own.iter().any(|own| either_agrees(own, &listed.target));
        let mut lacking: Vec<&Listed> = listed.iter().filter(lacks).collect();
        lacking.sort_by(|a, b| a.target.cmp(&b.target));
        lacking.dedup_by(|a, b| a.target == b.target);
        let database = self.targets_beside(prefix, path);
        // A library may have kernels of its own for more targets than its database is built for.
        let (without, lost): (Vec<&Listed>, Vec<&Listed>) =
            lacking.into_iter().partition(|listed| {
                let archive = Path::new(prefix).join(&listed.archive);
                let is_there = self.roots.iter().any(|root| root.join(&archive).is_file());
                let mut database = database.iter();
                is_there && !database.any(|own| either_agrees(own, &listed.target))
            });
        let names = |listed: &[&Listed]| {
            let names: Vec<String> = listed.iter().map(|l| l.target.to_string()).collect();
            names.join(", ")
        };
        if let Some(first) = lost.first() {
            let text = format!(
                "is for all targets, and has nothing for {}, which {} lists; expected what each \
                 machine built put together, as `kpack recombine` does",
                names(&lost),
                first.by.display()
            );
            report.fault(Subject::Artifact, full, text);
        }
        if !without.is_empty() {
            let text = format!(
                "has nothing for {}, and there is nothing else for it in the database either",
                names(&without)
            );
            report.note(Subject::Artifact, full, text);
        }
        if listed.is_empty() {
            let text = "is for all targets; no manifest in its prefix says which these are";
            report.note(Subject::Artifact, full, text);
        }
        Ok(())
    }

    /// The targets of the files in the directory of `path`, and below it, in all artifacts, by their
    /// names.
    fn targets_beside(&self, prefix: &str, path: &Path) -> BTreeSet<TargetId> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut targets = BTreeSet::new();
        for root in self.roots.iter().map(|root| root.join(prefix)) {
            for entry in WalkDir::new(root.join(directory)).into_iter().flatten() {
                let within = entry.path().strip_prefix(&root).unwrap_or(entry.path());
                let place = databases::recognise(&within.to_string_lossy());
                if let (Some((_, Place::Target(target))), false) =
                    (place, entry.file_type().is_dir())
                {
                    targets.insert(target);
                }
            }
        }
        targets
    }
}

/// The targets that a manifest lists and that are asked for. One that cannot be read is a fault
/// already.
fn read_listed(full: &Path, path: &Path, options: &Options) -> Result<Vec<Listed>, Error> {
    let bytes = fs::read(full).map_err(|e| Error::io(full, "read", e))?;
    let files = Manifest::read(&bytes).map(|manifest| manifest.kpack_files);
    let files = files.unwrap_or_default().into_iter();
    let files = files.filter(|(target, _)| options.wants(target));
    Ok(files
        .filter_map(|(target, file)| {
            Some(Listed {
                target: names::target(&target).filter(|t| t.processor().starts_with("gfx"))?,
                by: path.to_owned(),
                archive: path.with_file_name(file.filename),
            })
        })
        .collect())
}
