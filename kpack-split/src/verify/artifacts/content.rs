//! Verifies that an artifact directory contains what belongs there, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::TargetId;

use super::Member;
use crate::artifact::classify::{Class, Observation, Topic};
use crate::artifact::manifest_txt;
use crate::artifact::pairs::named_beside;
use crate::artifact::rules::{Misplaced, belongs};
use crate::artifact::tree::{Item, Role};
use crate::verify::archive::counted;
use crate::verify::{Report, Subject};

impl Member {
    /// Verifies its content. `members` are the artifacts of its component.
    pub(super) fn verify(&self, members: &[Self]) -> Report {
        let mut report = Report::default();
        let root = &self.tree.root;
        let list = manifest_txt::FILE_NAME;
        let unlisted = self.tree.unlisted_files();
        for path in unlisted.filter(|_| self.role != Role::Unsplit) {
            let text = format!("is in no prefix that {list} lists");
            match self.role {
                // Splitting keeps such files and reports them.
                Role::Generic => report.note(Subject::Artifact, path, text),
                _ => report.fault(Subject::Artifact, path, text),
            }
        }
        for prefix in &self.tree.missing {
            let text = format!("lists the prefix `{prefix}`, which does not exist");
            report.note(Subject::Artifact, &root.join(list), text);
        }
        let mut seen = Seen::default();
        for (path, item) in &self.tree.entries {
            if item
                .installed(path)
                .is_none_or(|path| path == Path::new(""))
            {
                continue;
            }
            seen.add(item);
            match belongs(&self.role_for(item, members), item) {
                Some(Misplaced::Wrong(text)) => report.fault(Subject::Artifact, &item.from, text),
                Some(Misplaced::Unexplained(text)) => {
                    report.note(Subject::Artifact, &item.from, text)
                }
                None => {}
            }
        }
        for (path, text) in &self.tree.rejected {
            report.fault(Subject::Artifact, path, text);
        }
        for Observation { topic, path, text } in &self.tree.observations {
            match topic {
                Topic::Contradiction | Topic::Damaged => {
                    report.fault(Subject::Artifact, path, text);
                }
                Topic::ForAll | Topic::Unreadable => report.note(Subject::Artifact, path, text),
                Topic::Unpaired => {
                    // The library file may be in the generic artifact, for all targets.
                    let within = path.strip_prefix(root).unwrap_or(path);
                    let others = members.iter().filter(|other| other.tree.root != *root);
                    let mut places = others.map(|other| other.tree.root.join(within));
                    if !places.any(|path| named_beside(&path)) {
                        report.fault(Subject::Artifact, path, text);
                    }
                }
                Topic::Other => {}
            }
        }
        if seen.targets.is_empty() && matches!(self.role, Role::Target(_) | Role::Group) {
            report.fault(Subject::Artifact, root, "is empty: it has no device code");
        }
        if report.holds() {
            seen.for_all = self.tree.about(Topic::ForAll).next().is_some();
            report.ok(Subject::Artifact, root, seen.summary(&self.role));
        }
        report
    }

    /// The role that decides whether an entry belongs here. A group named after a processor that
    /// has only databases also holds files for that processor's targets, unless those have
    /// artifacts of their own.
    fn role_for(&self, item: &Item, members: &[Self]) -> Role {
        if let (Role::Target(own), Class::Target { target, .. }) = (&self.role, &item.class)
            && own.runs_on(target)
            && !members
                .iter()
                .any(|other| other.role == Role::Target(target.clone()))
        {
            return Role::Group;
        }
        self.role.clone()
    }
}

/// The content of an artifact.
#[derive(Default)]
struct Seen {
    files: usize,
    targets: BTreeSet<TargetId>,
    /// Number of files with device code outside of the known places.
    unknown: usize,
    /// Whether a file for all targets contains device code.
    for_all: bool,
}

impl Seen {
    fn add(&mut self, item: &Item) {
        self.files += usize::from(!item.is_directory());
        match &item.class {
            Class::Target { target, .. } => drop(self.targets.insert(target.clone())),
            Class::Unknown {
                target,
                device_code,
                ..
            } => {
                self.unknown += usize::from(*device_code);
                self.targets.extend(target.clone());
            }
            Class::Host | Class::Fat | Class::Split => {}
        }
    }

    fn summary(&self, role: &Role) -> String {
        let targets: Vec<String> = self.targets.iter().map(TargetId::to_string).collect();
        let targets = targets.join(", ");
        let what = match role {
            Role::Unsplit => "an artifact that is not split".to_owned(),
            Role::Generic if self.unknown > 0 => {
                format!(
                    "{} of them with device code outside of the known places",
                    self.unknown
                )
            }
            Role::Generic if self.for_all => "a generic artifact".to_owned(),
            Role::Generic if targets.is_empty() => "nothing architecture-specific".to_owned(),
            Role::Generic => "a generic artifact".to_owned(),
            Role::Target(_) | Role::Group => format!("device code only for {targets}"),
        };
        format!("{}, {what}", counted(self.files, "file"))
    }
}
