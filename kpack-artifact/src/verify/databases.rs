//! Verifies the kernel databases of an install prefix outside of artifact directories.

use kpack_core::Severity;
use std::path::Path;

use super::{Context, Report, Subject};
use crate::classify::{Classification, Observation, Topic, classify_databases};
use crate::gaps::{Gap, files_in, gaps};
use kpack_core::Error;
use kpack_split::input::or_refused;
use kpack_split::words::counted;

/// Verifies that the database files below `prefix` are undamaged, match the targets in their names,
/// and belong together.
pub(super) fn verify(
    prefix: &Path,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let faults = report.count(Severity::Fault);
    let content = or_refused(classify_databases(prefix, &context.parsed))?.unwrap_or_else(
        |(path, reason)| {
            report.fault(Subject::File, &path, reason);
            Classification::default()
        },
    );
    for Observation { topic, path, text } in &content.observations {
        match topic {
            Topic::Contradiction | Topic::Damaged => {
                report.fault(Subject::File, &prefix.join(path), text);
            }
            Topic::ForAll => report.note(Subject::File, &prefix.join(path), text),
            Topic::Unreadable | Topic::Kept | Topic::Other => {}
        }
    }
    let gaps = gaps(files_in(&content, Path::new(""), prefix));
    report_gaps(gaps, Subject::File, context, report);
    if !content.entries.is_empty() && report.count(Severity::Fault) == faults {
        let files = counted(content.entries.len(), "file");
        let text =
            format!("{files} of kernel databases, as their names say and with what they name");
        report.ok(Subject::File, prefix, text);
    }
    Ok(())
}

/// Reports what databases lack: a fault for targets that were asked for, a note for others, and for
/// what the unsplit tree lacks as well.
pub(super) fn report_gaps(
    gaps: Vec<Gap>,
    subject: Subject,
    context: &Context<'_>,
    report: &mut Report,
) {
    for gap in gaps {
        let mut targets = gap.targets.iter();
        let is_asked_for = targets.len() == 0
            || targets.any(|target| {
                let mut asked_for = context.options.targets.iter();
                asked_for.len() == 0 || asked_for.any(|named| target.may_run_on(named))
            });
        let text = gap.text();
        if context.original.gaps().any(|original| gap.is_in(original)) {
            let text = format!("{text}; it is the same in the unsplit tree");
            report.note(subject, &gap.from, text);
        } else if is_asked_for {
            report.fault(subject, &gap.from, text);
        } else {
            report.note(subject, &gap.from, text);
        }
    }
}
