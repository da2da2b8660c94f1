//! The report of a verification: one line for each check.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It holds.
    Ok,
    /// Worth knowing, and no fault.
    Note,
    /// It does not hold.
    Fault,
}

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Subject {
    /// A file as such: readable, and of a kind that can be verified.
    File,
    /// An archive and each code object in it.
    Archive,
    /// A manifest against the archives that it lists.
    Manifest,
    /// A split binary's sections, wrappers and marker.
    Marker,
    /// Whether a split binary's code objects can be had.
    Resolution,
    /// A split binary's code objects against the unsplit original's.
    CodeObjects,
    /// A split binary's host code against the unsplit original's.
    HostImage,
    /// An artifact directory: what is in it, and what must not be.
    Artifact,
    /// The files of a tree against those of the unsplit one.
    Files,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// How it came out.
    pub outcome: Outcome,
    /// What was checked.
    pub subject: Subject,
    /// The file.
    #[serde(serialize_with = "crate::lossy::path")]
    pub path: PathBuf,
    /// What holds, or what was expected and what was found.
    pub text: String,
}

/// All checks, in the order in which they were made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// How many checks came out so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks
            .iter()
            .filter(|check| check.outcome == outcome)
            .count()
    }

    /// Whether there is no fault.
    pub fn holds(&self) -> bool {
        self.count(Outcome::Fault) == 0
    }

    /// Adds the checks of others, in their order.
    pub(super) fn extend(&mut self, others: impl IntoIterator<Item = Self>) {
        let checks = others.into_iter().flat_map(|other| other.checks);
        self.checks.extend(checks);
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

    pub(super) fn ok(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Outcome::Ok, subject, path, text);
    }

    pub(super) fn note(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Outcome::Note, subject, path, text);
    }

    pub(super) fn fault(&mut self, subject: Subject, path: &Path, text: impl Into<String>) {
        self.add(Outcome::Fault, subject, path, text);
    }
}
