//! Verifies the kernel databases of an install prefix outside of artifact directories.

use std::path::Path;

use super::archive::counted;
use super::{Outcome, Report, Subject};
use crate::Error;
use crate::artifact::classify::{Observation, Topic, classify_databases};

/// Verifies that the database files below `prefix` are undamaged, match the targets in their names,
/// and come in pairs.
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
    for Observation { topic, path, text } in &content.observations {
        match topic {
            Topic::Contradiction | Topic::Damaged | Topic::Unpaired => {
                report.fault(Subject::File, &prefix.join(path), text);
            }
            Topic::ForAll => report.note(Subject::File, &prefix.join(path), text),
            Topic::Unreadable | Topic::Other => {}
        }
    }
    if !content.entries.is_empty() && report.count(Outcome::Fault) == faults {
        let files = counted(content.entries.len(), "file");
        let text = format!("{files} of kernel databases, as their names say and in pairs");
        report.ok(Subject::File, prefix, text);
    }
    Ok(())
}
