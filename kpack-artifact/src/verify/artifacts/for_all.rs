//! Verifies that files for all targets have an entry for each target.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::unstable::target_names;

use super::Member;
use crate::names::Role;
use crate::shared::Entries;
use crate::verify::Options;
use crate::verify::VerifyReport;
use crate::verify::artifact_sets::ArtifactSet;
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_split::input::{or_refused, read_manifest};
use kpack_tree::place::Merge;
use kpack_tree::{Class, Entry};

/// A target that a manifest lists.
struct Promised {
    target: TargetId,
    by: PathBuf,
    /// Its archive's path in the artifact.
    archive: PathBuf,
}

impl ArtifactSet {
    /// Checks that each file for all targets has an entry for every target that the manifests of
    /// its prefix list.
    pub(super) fn files_for_all(
        &self,
        members: &[Member],
        options: &Options,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let generic = members.iter().find(|member| member.role == Role::Generic);
        for prefix in generic.iter().flat_map(|generic| &generic.tree.prefixes) {
            let entries = generic.iter().flat_map(|generic| &generic.tree.entries);
            let own = entries.filter(|item| *item.origin.prefix == **prefix);
            let mut listed = Vec::new();
            let mut for_all = Vec::new();
            for item in own {
                if item.is_manifest() {
                    listed.extend(promised(item, options)?);
                } else if let Some(kind) = item.shared().filter(|kind| *kind != Merge::Lines) {
                    for_all.push((item, kind));
                }
            }
            for (item, kind) in for_all {
                has_each(item, kind, &listed, members, report)?;
            }
        }
        Ok(())
    }
}

fn has_each(
    item: &Entry,
    kind: Merge,
    listed: &[Promised],
    members: &[Member],
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let full = item.full();
    let read = report.accepted(full, Entries::read(full, kind))?;
    // A file of another form is an ordinary host file.
    let Some(Ok(entries)) = read else {
        return Ok(());
    };
    let own = entries.targets();
    let database = targets_beside(&item.path, members);
    // What other files of the database are for is reported with what they lack.
    let lacks = |listed: &&Promised| {
        let mut others = own.iter().chain(&database);
        !others.any(|own| own.agrees_with(&listed.target))
    };
    let mut lacking: Vec<&Promised> = listed.iter().filter(lacks).collect();
    lacking.sort_by(|a, b| a.target.cmp(&b.target));
    lacking.dedup_by(|a, b| a.target == b.target);
    // A library may have kernels for more targets than its database.
    let (without, lost): (Vec<_>, Vec<_>) = lacking.into_iter().partition(|listed| {
        let mut trees = members.iter().map(|member| &member.tree);
        trees.any(|tree| tree.entries.contains(&*listed.archive))
    });
    let names = |promised: &[&Promised]| list(promised.iter().map(|promised| &promised.target));
    if let Some(first) = lost.first() {
        let text = format!(
            "is for all targets, but lists no kernels for {}, which is in {}; merge the \
             artifacts of all machines with `kpack artifact recombine`",
            names(&lost),
            first.by.display()
        );
        report.fault(ids::INCOMPLETE_DATABASE, full, text);
    }
    if !without.is_empty() {
        let text = format!(
            "lists no kernels for {}, and neither does any other file of the database",
            names(&without)
        );
        report.note(ids::INCOMPLETE_DATABASE, full, text);
    }
    if listed.is_empty() {
        let text = "is for all targets, but no manifest in its prefix lists them";
        report.note(ids::INCOMPLETE_DATABASE, full, text);
    }
    Ok(())
}

/// The targets of all files in and below the directory of `path`, in all artifacts.
fn targets_beside(path: &Path, members: &[Member]) -> BTreeSet<TargetId> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut targets = BTreeSet::new();
    for member in members {
        for item in member.tree.at_and_below(directory) {
            if let (Class::Target { target, .. }, false) = (&*item.class, item.is_directory()) {
                targets.insert(target.clone());
            }
        }
    }
    targets
}

/// The wanted targets that a manifest lists; none if it is unreadable, which is reported elsewhere.
fn promised(item: &Entry, options: &Options) -> Result<Vec<Promised>, Error> {
    let Ok(manifest) = or_refused(read_manifest(item.full()))? else {
        return Ok(Vec::new());
    };
    let listed: Vec<String> = manifest.kpack_files.keys().cloned().collect();
    let files =
        manifest.kpack_files.into_iter().filter(|(target, _)| options.wants(target, &listed));
    let promised = files.filter_map(|(target, file)| {
        Some(Promised {
            target: target_names::exact(&target).filter(|t| t.processor().starts_with("gfx"))?,
            by: item.installed()?.to_owned(),
            archive: item.path.with_file_name(file.filename),
        })
    });
    Ok(promised.collect())
}
