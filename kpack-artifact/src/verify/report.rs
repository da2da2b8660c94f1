//! The report of a verification: one line for each check.

use std::path::{Path, PathBuf};

use serde::Serialize;

use kpack_core::Error;
use kpack_split::input::or_refused;

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It passed.
    Ok,
    /// A fact worth knowing that is not a fault.
    Note,
    /// It failed.
    Fault,
}

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

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The outcome.
    pub outcome: Outcome,
    /// The subject.
    pub subject: Subject,
    /// The file.
    #[serde(serialize_with = "kpack_split::lossy::path")]
    pub path: PathBuf,
    /// What was verified, or what was expected and what was found.
    pub text: String,
}

/// All checks, in the order they were made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// Number of checks with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let checks = self.checks.iter();
        checks.filter(|check| check.outcome == outcome).count()
    }

    /// Whether there are no faults.
    pub fn holds(&self) -> bool {
        self.count(Outcome::Fault) == 0
    }

    /// Adds the checks of other reports, in order.
    pub(super) fn extend(&mut self, others: impl IntoIterator<Item = Self>) {
        let checks = others.into_iter().flat_map(|other| other.checks);
        self.checks.extend(checks);
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
        outcome: Outcome,
        subject: Subject,
        path: &Path,
        text: impl Into<String>,
    ) {
        self.checks.push(Check {
            outcome,
            subject,
            path: path.to_owned(),
            text: text.into(),
        });
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
        self.add(Outcome::Ok, subject, path, text);
    }

    pub(super) fn note(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Outcome::Note, subject, path, text);
    }

    /// Adds a fault.
    pub fn fault(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Outcome::Fault, subject, path, text);
    }
}
