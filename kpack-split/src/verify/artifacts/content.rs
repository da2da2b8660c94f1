//! What is in an artifact directory: what belongs into it, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::names::is_manifest;

use super::installed::Installed;
use super::{Artifact, Artifacts, Role};
use crate::Error;
use crate::artifact::classify::{Class, Classification, Entry, Node, classify};
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::artifact::pairs::named_beside;
use crate::artifact::shared::shared;
use crate::artifact::target_name::either_agrees;
use crate::verify::archive::counted;
use crate::verify::{Outcome, Report, Subject};

impl Artifact {
    pub(super) fn verify(&self, all: &Artifacts, report: &mut Report) -> Result<(), Error> {
        let faults = report.count(Outcome::Fault);
        let path = &self.path;
        let prefixes = match &self.prefixes {
            Ok(prefixes) => prefixes,
            Err(reason) => {
                report.fault(Subject::Artifact, path, reason);
                return Ok(());
            }
        };
        if self.role != Role::Unsplit {
            self.nothing_outside(prefixes, report);
        }
        let databases = match mark::databases(path) {
            Ok(databases) => databases,
            Err(Error::Refused { path, reason }) => {
                report.fault(Subject::Artifact, &path, reason);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut seen = Seen::default();
        let mut installed = Installed::default();
        for prefix in prefixes {
            let directory = path.join(prefix);
            if !directory.is_dir() {
                let text = format!("lists the prefix `{prefix}`, which is not there");
                report.note(Subject::Artifact, &path.join(manifest_txt::FILE_NAME), text);
                continue;
            }
            let content = match classify(&directory, &databases) {
                Ok(content) => content,
                Err(Error::Refused { path, reason }) => {
                    report.fault(Subject::Artifact, &path, reason);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for entry in &content.entries {
                seen.add(entry);
                installed.add(&directory, entry, report)?;
                self.belongs(&directory, entry, all, report);
            }
            findings(&directory, prefix, &content, all, self, report)?;
        }
        if seen.targets.is_empty() && matches!(self.role, Role::Target(_) | Role::Group) {
            report.fault(Subject::Artifact, path, "is empty: it has no device code");
        }
        if report.count(Outcome::Fault) == faults {
            let targets: Vec<String> = seen.targets.iter().map(TargetId::to_string).collect();
            let what = match (&self.role, targets.is_empty()) {
                (Role::Unsplit, _) => "an artifact that is not split".to_owned(),
                (Role::Generic, _) if seen.unknown > 0 => {
                    format!(
                        "{} of them with device code in no known place",
                        seen.unknown
                    )
                }
                (Role::Generic, true) => "nothing architecture-specific".to_owned(),
                (Role::Generic, false) => "a generic artifact".to_owned(),
                _ => "device code only".to_owned(),
            };
            let targets = match (&self.role, targets.is_empty()) {
                (Role::Target(_) | Role::Group, false) => format!(" for {}", targets.join(", ")),
                _ => String::new(),
            };
            let text = format!("{}, {what}{targets}", counted(seen.files, "file"));
            report.ok(Subject::Artifact, path, text);
        }
        Ok(())
    }

    /// What no prefix has belongs to nobody, and is not installed.
    fn nothing_outside(&self, prefixes: &[String], report: &mut Report) {
        for entry in manifest_txt::outside(&self.path, prefixes).flatten() {
            let text = format!("is in no prefix that {} lists", manifest_txt::FILE_NAME);
            match self.role {
                // Split keeps there what it finds, and says so.
                Role::Generic => report.note(Subject::Artifact, entry.path(), text),
                _ => report.fault(Subject::Artifact, entry.path(), text),
            }
        }
    }

    /// Whether an entry belongs into this artifact.
    fn belongs(&self, directory: &Path, entry: &Entry, all: &Artifacts, report: &mut Report) {
        let path = directory.join(&entry.path);
        let is_directory = matches!(entry.node, Node::Directory { .. });
        let is_manifest = is_manifest(&entry.path);
        match (&self.role, &entry.class) {
            // Split leaves an empty one where it is.
            (Role::Generic, Class::Target { .. }) if is_directory => {}
            // It has something for every target of the build, even where that was one only.
            (Role::Generic, Class::Target { .. }) if shared(&entry.path).is_some() => {}
            (Role::Generic, Class::Target { target, database }) => {
                let text = format!(
                    "is of {target} ({database}); a generic artifact holds nothing of one target"
                );
                report.fault(Subject::Artifact, &path, text);
            }
            (Role::Generic, Class::Fat) => {
                report.fault(
                    Subject::Artifact,
                    &path,
                    "is a fat binary in a generic artifact",
                );
            }
            (Role::Generic, Class::Unknown { reason, .. }) => {
                report.note(
                    Subject::Artifact,
                    &path,
                    format!("in no known place: {reason}"),
                );
            }
            (Role::Target(own), Class::Target { target, .. })
                if own != target && !all.is_group_for(&self.real, own, target) =>
            {
                let text = format!("is of {target}, in the artifact of {own}");
                report.fault(Subject::Artifact, &path, text);
            }
            (
                Role::Target(own),
                Class::Unknown {
                    target: Some(target),
                    reason,
                    ..
                },
            ) if !either_agrees(own, target) => {
                let text = format!("is of {target}, in the artifact of {own}: {reason}");
                report.fault(Subject::Artifact, &path, text);
            }
            (
                Role::Target(_) | Role::Group,
                Class::Unknown {
                    target: None,
                    reason,
                    ..
                },
            ) => {
                let text = format!("in no known place, and of no one target: {reason}");
                report.note(Subject::Artifact, &path, text);
            }
            (Role::Target(_) | Role::Group, Class::Host | Class::Fat | Class::Split)
                if !is_directory && !is_manifest =>
            {
                report.fault(
                    Subject::Artifact,
                    &path,
                    "is for the host, in an artifact of targets",
                );
            }
            (Role::Target(_) | Role::Group, Class::Host)
                if entry.node == (Node::Directory { empty: true }) =>
            {
                report.note(Subject::Artifact, &path, "is an empty directory");
            }
            _ => {}
        }
    }
}

/// What an artifact has.
#[derive(Default)]
struct Seen {
    files: usize,
    targets: BTreeSet<TargetId>,
    /// Files with device code in no known place.
    unknown: usize,
}

impl Seen {
    fn add(&mut self, entry: &Entry) {
        self.files += usize::from(!matches!(entry.node, Node::Directory { .. }));
        match &entry.class {
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
}

/// Files whose names lie, damaged ones, and halves of pairs.
fn findings(
    directory: &Path,
    prefix: &str,
    content: &Classification,
    all: &Artifacts,
    artifact: &Artifact,
    report: &mut Report,
) -> Result<(), Error> {
    for finding in content.disagreements.iter().chain(&content.damaged) {
        report.fault(
            Subject::Artifact,
            &directory.join(&finding.path),
            &finding.text,
        );
    }
    for finding in &content.unpaired {
        let within = Path::new(prefix).join(&finding.path);
        // The library file may be one for all targets, in the generic artifact.
        let places = all.overlay.places(&artifact.real.join(&within));
        if !places.iter().skip(1).any(|place| named_beside(place)) {
            report.fault(
                Subject::Artifact,
                &directory.join(&finding.path),
                &finding.text,
            );
        }
    }
    Ok(())
}
