//! The report of a verification: one line for each check.

use std::path::Path;

use serde::Serialize;

use kpack_core::{Error, Finding, Id, Severity, ids};
use kpack_split::input::or_refused;

/// The subject of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Subject {
    /// A file as such: readable, and of a kind that can be verified.
    File,
    /// An archive and its code objects.
    Archive,
    /// A manifest against the archives that it lists.
    Manifest,
    /// A split binary's sections, wrappers and markers.
    Marker,
    /// Whether a split binary finds its code objects.
    Resolution,
    /// A split binary's code objects against the unsplit original's.
    CodeObjects,
    /// A split binary's host code against the unsplit original's.
    HostImage,
    /// An artifact directory: what it must contain, and must not contain.
    Artifact,
    /// The files of a tree against those of the unsplit tree.
    Files,
    /// A wheel: its members, its RECORD, and the wheels that it requires.
    Wheel,
}

impl Subject {
    fn id(self, severity: Severity) -> Id {
        match (self, severity) {
            (Self::Archive, Severity::Ok) => ids::ARCHIVE_SOUND,
            (Self::HostImage, Severity::Fault) => ids::HOST_DIFFERS,
            _ => ids::UNSORTED,
        }
    }
}

/// All checks, in the order they were made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was found; a check that passed is one, too.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Number of findings of this severity.
    pub fn count(&self, severity: Severity) -> usize {
        let findings = self.findings.iter();
        findings
            .filter(|finding| finding.severity == severity)
            .count()
    }

    /// Whether there are no faults.
    pub fn holds(&self) -> bool {
        self.count(Severity::Fault) == 0
    }

    /// Adds the checks of other reports, in order.
    pub(super) fn extend(&mut self, others: impl IntoIterator<Item = Self>) {
        let findings = others.into_iter().flat_map(|other| other.findings);
        self.findings.extend(findings);
    }

    /// The result; one that was refused is a fault.
    pub(super) fn accepted<T>(
        &mut self,
        subject: Subject,
        path: &Path,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let accepted = or_refused(result)?;
        Ok(accepted
            .map_err(|(_, reason)| self.fault(subject, path, reason))
            .ok())
    }

    pub(super) fn add(
        &mut self,
        severity: Severity,
        subject: Subject,
        path: &Path,
        text: impl Into<String>,
    ) {
        self.findings
            .push(Finding::new(severity, subject.id(severity), path, text));
    }

    /// Adds faults, or `holds` if there are none.
    pub(super) fn faults_or(
        &mut self,
        subject: Subject,
        path: &Path,
        faults: Vec<String>,
        holds: impl Into<String>,
    ) {
        if faults.is_empty() {
            self.ok(subject, path, holds);
        }
        for text in faults {
            self.fault(subject, path, text);
        }
    }

    /// Adds a check that passed.
    pub fn ok(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Severity::Ok, subject, path, text);
    }

    pub(super) fn note(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Severity::Note, subject, path, text);
    }

    /// Adds a fault.
    pub fn fault(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Severity::Fault, subject, path, text);
    }
}
