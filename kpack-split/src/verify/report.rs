//! The report of a verification: one line for each check.

use std::path::Path;

use crate::input::or_refused;
use kpack_core::{Error, Finding, Id, Reason, Severity};

/// All checks, in the order they were made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct VerifyReport {
    /// A finding, which may be a check that passed.
    pub findings: Vec<Finding>,
}

impl VerifyReport {
    /// Number of findings of this severity.
    pub fn count(&self, severity: Severity) -> usize {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.severity == severity).count()
    }

    /// Whether there are no faults.
    pub fn holds(&self) -> bool {
        self.count(Severity::Fault) == 0
    }

    /// Adds the checks of other reports, in order.
    pub fn extend(&mut self, others: impl IntoIterator<Item = Self>) {
        let findings = others.into_iter().flat_map(|other| other.findings);
        self.findings.extend(findings);
    }

    /// The result. A rejected file is a fault of the file at `path`.
    ///
    /// # Errors
    /// Other errors than [`Error::Refused`].
    pub fn accepted<T>(
        &mut self,
        path: &Path,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let accepted = or_refused(result)?;
        Ok(accepted.map_err(|found| self.fault(found.id, path, found.reason())).ok())
    }

    /// Adds an error as a fault, whose ID is not in the text.
    pub fn failed(&mut self, path: &Path, error: &Error) {
        self.fault(error.id(), path, Reason::from(error));
    }

    /// Adds a check.
    pub fn add(&mut self, severity: Severity, id: Id, path: &Path, text: impl Into<Reason>) {
        self.findings.push(Finding::new(severity, id, path, text));
    }

    /// Adds faults of one kind, or `holds` if there are none.
    pub fn faults_or(
        &mut self,
        (fault, ok): (Id, Id),
        path: &Path,
        faults: Vec<String>,
        holds: impl Into<Reason>,
    ) {
        if faults.is_empty() {
            self.ok(ok, path, holds);
        }
        for text in faults {
            self.fault(fault, path, text);
        }
    }

    /// Adds a check that passed.
    pub fn ok(&mut self, id: Id, path: &Path, text: impl Into<Reason>) {
        self.add(Severity::Ok, id, path, text);
    }

    /// Adds a note.
    pub fn note(&mut self, id: Id, path: &Path, text: impl Into<Reason>) {
        self.add(Severity::Note, id, path, text);
    }

    /// Adds a fault.
    pub fn fault(&mut self, id: Id, path: &Path, text: impl Into<Reason>) {
        self.add(Severity::Fault, id, path, text);
    }
}
