//! Verifies that an artifact directory contains what belongs there, and nothing else.

use std::collections::BTreeSet;

use kpack_format::TargetId;

use super::Member;
use crate::manifest_txt;
use crate::names::Role;
use crate::tree::{Misplaced, belongs};
use crate::verify::VerifyReport;
use kpack_core::words::{counted, list};
use kpack_core::{Severity, ids};
use kpack_tree::{Class, Entry};

impl Member {
    pub(super) fn verify(&self) -> VerifyReport {
        let mut report = VerifyReport::default();
        let root = &self.tree.root;
        let list = manifest_txt::FILE_NAME;
        let unlisted = self.tree.unlisted_files();
        for path in unlisted.filter(|_| self.role != Role::Unsplit) {
            let text = format!("is in no prefix that {list} lists");
            match self.role {
                // Splitting keeps such files and reports them.
                Role::Generic => report.note(ids::IN_NO_PREFIX, path, text),
                _ => report.fault(ids::IN_NO_PREFIX, path, text),
            }
        }
        for prefix in &self.tree.missing {
            let text = format!("lists the prefix `{prefix}`, which does not exist");
            report.note(ids::MISSING_PREFIX, &root.join(list), text);
        }
        let mut seen = Seen::default();
        for (_, item) in self.tree.in_prefixes() {
            seen.add(item);
            match belongs(&self.role, item) {
                Some(Misplaced::Wrong(text)) => {
                    report.fault(ids::MISPLACED_FILE, item.full(), text)
                }
                Some(Misplaced::Unexplained(text)) => {
                    report.note(ids::UNPLACED_FILE, item.full(), text)
                }
                None => {}
            }
        }
        report.findings.extend(self.tree.rejected.clone());
        self.observations(&mut report);
        if seen.targets.is_empty() && matches!(self.role, Role::Target(_) | Role::Group) {
            report.fault(ids::WITHOUT_CODE, root, "is empty: it has no device code");
        }
        if report.holds() {
            seen.for_all = self.tree.about(ids::FILE_FOR_ALL_TARGETS).next().is_some();
            report.ok(ids::ARTIFACT_SOUND, root, seen.summary(&self.role));
        }
        report
    }

    fn observations(&self, report: &mut VerifyReport) {
        for found in &self.tree.observations {
            match found.id {
                ids::FILE_FOR_ALL_TARGETS | ids::UNREADABLE_DEVICE_CODE => {
                    report.note(found.id, found.file(), &found.text);
                }
                _ if found.severity == Severity::Fault => report.findings.push(found.clone()),
                _ => {}
            }
        }
    }
}

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
    fn add(&mut self, item: &Entry) {
        self.files += usize::from(!item.is_directory());
        self.targets.extend(item.class.target().cloned());
        let is_unknown = matches!(*item.class, Class::Unknown { device_code: true, .. });
        self.unknown += usize::from(is_unknown);
    }

    fn summary(&self, role: &Role) -> String {
        let (unknown, targets) = (self.unknown, list(&self.targets));
        let what = match role {
            Role::Unsplit => "an artifact that is not split".to_owned(),
            Role::Generic if unknown > 0 => {
                format!("{unknown} of them with device code outside of the known places")
            }
            Role::Generic if targets.is_empty() && !self.for_all => {
                "nothing architecture-specific".to_owned()
            }
            Role::Generic => "a generic artifact".to_owned(),
            Role::Target(_) | Role::Group => format!("device code only for {targets}"),
        };
        format!("{}, {what}", counted(self.files, "file"))
    }
}
