//! Verifies the kernel databases of an install prefix outside of artifact directories.

use std::path::Path;

use super::{Outcome, Report, Subject};
use crate::classify::{Classification, Observation, Topic, classify_databases};
use kpack_core::Error;
use kpack_split::input::or_refused;
use kpack_split::words::counted;

/// Verifies that the database files below `prefix` are undamaged, match the targets in their names,
/// and come in pairs.
pub(super) fn verify(prefix: &Path, report: &mut Report) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    let content = or_refused(classify_databases(prefix))?.unwrap_or_else(|(path, reason)| {
        report.fault(Subject::File, &path, reason);
        Classification::default()
    });
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
