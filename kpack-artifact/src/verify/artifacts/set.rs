//! Verifies the artifacts of a component together: no path in two of them, and no half of a pair
//! alone.

use std::collections::BTreeMap;
use std::path::Path;

use super::Member;
use crate::names::{self, Role};
use crate::rules::{EntryContent, HostFault, InstalledEntry, conflicts, kernels_without_host};
use crate::verify::TreeContext;
use crate::verify::VerifyReport;
use crate::verify::artifact_sets::ArtifactSet;
use crate::verify::databases;
use kpack_core::{Error, ids};
use kpack_split::input::{Archives, or_refused};
use kpack_split::verify::without_host;
use kpack_tree::gaps::gaps;

/// Checks that no path is installed by two artifacts of one directory.
pub(super) fn owners(
    sets: &[(&ArtifactSet, Vec<Member>)],
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let mut places: BTreeMap<&Path, Vec<_>> = BTreeMap::new();
    for (set, members) in sets {
        let has_groups = members.iter().any(|member| member.role == Role::Group);
        for Member { tree, role, .. } in members {
            // An unsplit artifact is not installed together with the artifacts split from it.
            let parent = set.roots.first().and_then(|(root, _)| root.parent());
            let place = parent.filter(|_| set.is_split()).unwrap_or(&tree.root);
            let may_share = has_groups && *role != Role::Generic;
            let installed = tree.in_prefixes().map(|(at, item)| InstalledEntry {
                at,
                component: &set.component,
                artifact: &tree.root,
                may_share,
                path: &item.path,
                content: if item.is_directory() {
                    EntryContent::Directory
                } else {
                    EntryContent::File(item.full(), &[])
                },
            });
            places.entry(place).or_default().extend(installed);
        }
    }
    for installed in places.into_values() {
        for conflict in conflicts(installed.iter().copied())? {
            let path = conflict.entry.artifact.join(conflict.entry.path);
            if conflict.is_harmless {
                report.note(ids::CONFLICTING_FILES, &path, conflict.text)
            } else {
                report.fault(ids::CONFLICTING_FILES, &path, conflict.text)
            }
        }
    }
    Ok(())
}

impl ArtifactSet {
    /// Checks that the kernel databases of the artifacts, installed together, lack nothing.
    pub(super) fn databases(
        &self,
        members: &[Member],
        context: &TreeContext<'_>,
        report: &mut VerifyReport,
    ) {
        let asked_for: Vec<&Path> = members
            .iter()
            .filter(|member| member.asked_for)
            .map(|member| member.tree.root.as_path())
            .collect();
        let mut gaps = gaps(members.iter().flat_map(|member| &member.tree.entries));
        gaps.retain(|gap| asked_for.iter().any(|root| gap.from.starts_with(root)));
        databases::report_gaps(gaps, context, report);
    }

    /// Checks that every kernel belongs to a binary.
    pub(super) fn verify(
        &self,
        members: &[Member],
        archives: &Archives,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let generic = members.iter().find(|member| member.role == Role::Generic);
        let Some(generic) = generic else {
            let text = format!(
                "nothing loads its device code, because {}_{} is missing",
                self.component,
                names::GENERIC
            );
            if let Some(first) = members.first() {
                report.note(ids::MISSING_ARTIFACT, &first.tree.root, text);
            }
            return Ok(());
        };
        let entries = || members.iter().flat_map(|member| &member.tree.entries);
        let entry = |path: &Path| {
            let mut trees = members.iter().map(|member| &member.tree);
            trees.find_map(|tree| tree.entries.get(path))
        };
        for item in entries().filter(|item| item.is_kpack()) {
            let prefixes = &generic.tree.prefixes;
            // A damaged one was reported already.
            let Ok(toc) = or_refused(archives.toc(item.full()))? else {
                continue;
            };
            for (binary, host) in kernels_without_host(&item.path, &toc, prefixes, &entry) {
                let text = match host {
                    HostFault::Missing => {
                        format!("has kernels of `{binary}`, which no artifact has")
                    }
                    HostFault::NotSplit(_) => without_host(&binary),
                };
                report.fault(ids::UNUSED_KERNELS, item.full(), text);
            }
        }
        Ok(())
    }
}
