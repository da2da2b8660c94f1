//! Artifacts together: each path in one of them, and nothing without its other half.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Member, Set};
use crate::Error;
use crate::artifact::names;
use crate::artifact::rules::{Content, Host, Owner, Owners, kernels_without_host};
use crate::artifact::tree::{Item, Role};
use crate::input::open_archive;
use crate::verify::{Report, Subject, without_host};

/// Whether each path is installed by one artifact only, of those that lie in one directory.
pub(super) fn owners(sets: &[(&Set, Vec<Member>)], report: &mut Report) -> Result<(), Error> {
    let mut owners: BTreeMap<&Path, Owners<'_>> = BTreeMap::new();
    for (set, members) in sets {
        let has_groups = members.iter().any(|member| member.role == Role::Group);
        for Member { tree, role, .. } in members {
            // One that is not split is not installed beside what was made of it.
            let place = match set.is_split {
                true => &set.parent,
                false => &tree.root,
            };
            let owners = owners.entry(place).or_default();
            for (installed, item) in tree.installed() {
                let owner = Owner {
                    component: &set.component,
                    artifact: &tree.root,
                    may_share: has_groups && *role != Role::Generic,
                    path: &item.from,
                    content: match item.is_directory() {
                        true => Content::Directory,
                        false => Content::File(&item.from),
                    },
                };
                let Some((first, same)) = owners.add(installed, owner)? else {
                    continue;
                };
                let other = first.path.display();
                let at = installed.display();
                let path = &item.from;
                if first.artifact == owner.artifact {
                    let text =
                        format!("is not the same as {other}, and both are installed as {at}");
                    report.fault(Subject::Artifact, path, text);
                } else if first.component == owner.component {
                    let other = first.artifact.display();
                    let text = format!("is in {other} as well; expected it in one only");
                    report.fault(Subject::Artifact, path, text);
                } else if same {
                    let text = format!(
                        "is the same as {other} of another component, and both are installed as {at}"
                    );
                    report.note(Subject::Artifact, path, text);
                } else {
                    let text = format!(
                        "is not the same as {other} of another component, and both are installed as \
                         {at}"
                    );
                    report.fault(Subject::Artifact, path, text);
                }
            }
        }
    }
    Ok(())
}

impl Set {
    /// Whether each kernel is of some binary.
    pub(super) fn verify(&self, members: &[Member], report: &mut Report) -> Result<(), Error> {
        if !members.iter().any(|member| member.role == Role::Generic) {
            let text = format!(
                "has no {}_{} beside it, so nothing loads its device code",
                self.component,
                names::GENERIC
            );
            if let Some(first) = members.first() {
                report.note(Subject::Artifact, &first.tree.root, text);
            }
            return Ok(());
        }
        let entries = || members.iter().flat_map(|member| &member.tree.entries);
        let entry = |path: &Path| {
            let mut trees = members.iter().map(|member| &member.tree);
            trees.find_map(|tree| tree.entries.get(path))
        };
        for (path, item) in entries().filter(|(_, item)| item.is_kpack()) {
            kernels_have_binaries(path, item, &entry, report)?;
        }
        Ok(())
    }
}

fn kernels_have_binaries<'t>(
    path: &Path,
    item: &Item,
    entry: &dyn Fn(&Path) -> Option<&'t Item>,
    report: &mut Report,
) -> Result<(), Error> {
    let archive = match open_archive(&item.from) {
        Ok(archive) => archive,
        // That is a fault already.
        Err(Error::Refused { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    for (binary, host) in kernels_without_host(path, archive.toc(), entry) {
        let text = match host {
            Host::Missing => format!("has kernels of `{binary}`, which no artifact has"),
            Host::NotSplit(_) => without_host(&binary),
        };
        report.fault(Subject::Artifact, &item.from, text);
    }
    Ok(())
}
