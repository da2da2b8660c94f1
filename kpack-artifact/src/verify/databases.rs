//! Verifies the kernel databases of an install prefix outside of artifact directories.

use std::path::Path;

use super::TreeContext;
use super::VerifyReport;
use kpack_core::Error;
use kpack_core::words::counted;
use kpack_core::{Finding, Severity, ids};
use kpack_split::input::or_refused;
use kpack_tree::gaps::{Gap, gaps};
use kpack_tree::{Only, Tree, Walk};

/// Verifies that the database files below `prefix` are undamaged, match the targets in their names,
/// and belong together.
pub(super) fn verify(
    prefix: &Path,
    context: &TreeContext<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let faults = report.count(Severity::Fault);
    let (databases, parsed) = (context.kernel_files, context.known());
    let walk = Walk { prefix, databases, parsed, only: Only::Databases };
    let content = or_refused(walk.collect())?.unwrap_or_else(|found| {
        // A damaged code object was reported as a file.
        let is_known = |known: &Finding| known.id == found.id && known.file() == found.file();
        if !report.findings.iter().any(is_known) {
            report.findings.push(found);
        }
        Tree::default()
    });
    for found in &content.observations {
        if found.severity == Severity::Fault || found.id == ids::FILE_FOR_ALL_TARGETS {
            let path = prefix.join(found.file());
            report.add(found.severity, found.id, &path, &found.text);
        }
    }
    report_gaps(gaps(content.entries.iter()), context, report);
    if !content.entries.is_empty() && report.count(Severity::Fault) == faults {
        let files = counted(content.entries.len(), "file");
        let text =
            format!("{files} of kernel databases, complete and for the targets in their names");
        report.ok(ids::DATABASES_SOUND, prefix, text);
    }
    Ok(())
}

/// Reports what databases lack: a fault for targets that were asked for, a note for others, and for
/// what the unsplit tree lacks as well.
pub(super) fn report_gaps(gaps: Vec<Gap>, context: &TreeContext<'_>, report: &mut VerifyReport) {
    for gap in gaps {
        let mut targets = gap.targets.iter();
        let is_asked_for = targets.len() == 0
            || targets.any(|target| {
                let mut asked_for = context.files.options.targets.iter();
                asked_for.len() == 0 || asked_for.any(|named| target.may_run_on(named))
            });
        let text = gap.text();
        if context.original.gaps().any(|original| gap.is_in(original)) {
            let text = format!("{text}; it is the same in the unsplit tree");
            report.note(ids::INCOMPLETE_DATABASE, &gap.from, text);
        } else if is_asked_for {
            report.fault(ids::INCOMPLETE_DATABASE, &gap.from, text);
        } else {
            report.note(ids::INCOMPLETE_DATABASE, &gap.from, text);
        }
    }
}
