//! The kernel databases of an install prefix, whose files are in no artifact.

use std::path::Path;

use super::archive::counted;
use super::{Outcome, Report, Subject};
use crate::Error;
use crate::artifact::classify::classify_databases;

/// Verifies that the files of databases below `prefix` are for the targets that their names say,
/// whole, and in pairs.
pub(super) fn verify(prefix: &Path, report: &mut Report) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    let content = match classify_databases(prefix) {
        Ok(content) => content,
        Err(Error::Refused { path, reason }) => {
            report.fault(Subject::File, &path, reason);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let findings = content.disagreements.iter();
    for finding in findings.chain(&content.damaged).chain(&content.unpaired) {
        report.fault(Subject::File, &prefix.join(&finding.path), &finding.text);
    }
    for finding in &content.for_all {
        report.note(Subject::File, &prefix.join(&finding.path), &finding.text);
    }
    if !content.entries.is_empty() && report.count(Outcome::Fault) == faults {
        let files = counted(content.entries.len(), "file");
        let text = format!("{files} of kernel databases, as their names say and in pairs");
        report.ok(Subject::File, prefix, text);
    }
    Ok(())
}
