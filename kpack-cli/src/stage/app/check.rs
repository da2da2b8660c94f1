//! Examines the application, as `kpack doctor` does on a machine that has nothing else but what systems provide.

use std::path::{Path, PathBuf};

use kpack_core::finding::Finding;
use kpack_core::{Error, Severity, ids};
use kpack_doctor::{Options, examine};
use kpack_format::{Delivery, TargetId};

use super::run_paths::Staged;

/// Fails if code of `roots` would not load for one of `gpus`. Returns what else there is to say. If `are_wanted`, a library
/// without code for one of them is a failure, too. Libraries for one target are examined only for GPUs that need it.
///
/// # Errors
/// [`Error::Refused`] with the first reason; [`Error::Io`].
pub(super) fn check(
    staged: &Staged<'_>,
    roots: &[PathBuf],
    gpus: &[TargetId],
    are_wanted: bool,
) -> Result<Vec<Finding>, Error> {
    let inherited = staged.inherited()?;
    let (programs, libraries): (Vec<_>, Vec<_>) =
        roots.iter().partition(|root| staged.plan.programs.contains(root));
    let is_for = |root: &Path, gpus: &[TargetId]| match staged.plan.targets.get(root) {
        Some(target) => gpus.iter().any(|gpu| gpu.needs(target, Delivery::Archive)),
        None => true,
    };
    let mut each = Vec::from_iter(gpus.iter().map(std::slice::from_ref));
    // Libraries and databases are needed even if no file has code for a GPU.
    each.extend(gpus.is_empty().then_some(gpus));
    let mut all = Vec::new();
    if gpus.is_empty() {
        let text = "no file has code for a GPU; if a program loads a library with such code by name, list it with `--also`";
        all.push(Finding::new(Severity::Note, ids::NO_DEVICE_CODE, staged.output, text));
    }
    for (roots, inherited) in [(programs, &[][..]), (libraries, &*inherited)] {
        for gpus in &each {
            let own = roots.iter().filter(|root| is_for(root, gpus));
            let paths = Vec::from_iter(own.map(|path| staged.root.join(path)));
            if paths.is_empty() {
                continue;
            }
            let mut options = Options::default();
            options.targets = gpus.to_vec();
            options.scope = Some(staged.scope(inherited));
            let report = examine(&paths, &options).map_err(|error| staged.shown(error))?;
            let mut findings = report.findings;
            // Where code is missing, so are database files, which says less.
            findings.sort_by_key(|diagnosis| diagnosis.finding.id != ids::MISSING_TARGET);
            for diagnosis in findings {
                all.extend(judged(staged, diagnosis.finding, are_wanted)?);
            }
        }
    }
    Ok(all)
}

/// What to say about a finding in the output.
///
/// # Errors
/// [`Error::Refused`] with a failure.
fn judged(
    staged: &Staged<'_>,
    mut finding: Finding,
    are_wanted: bool,
) -> Result<Option<Finding>, Error> {
    // A library may be for programs that load the HIP runtime, and options may leave that to the system. Whether everything can
    // be loaded was found out before.
    if finding.severity == Severity::Ok || finding.id == ids::UNKNOWN_RUNTIME {
        return Ok(None);
    }
    finding.path = finding.path.map(|path| staged.place(&path));
    finding.text = staged.shown_text(&finding.text);
    finding.help = finding.help.map(|help| staged.shown_text(&help));
    let lacks = finding.id == ids::MISSING_TARGET;
    if finding.severity == Severity::Fault && (are_wanted || !lacks) {
        let path = finding.path.unwrap_or_else(|| staged.output.to_owned());
        // Other advice is about the output, of which nothing is left after a failure.
        let help = match finding.id {
            ids::MISSING_DATABASE => {
                Some("copy it beside the original, and stage again".to_owned())
            }
            ids::INCOMPLETE_DATABASE => {
                Some("copy the missing files to the original, and stage again".to_owned())
            }
            ids::MISSING_ARCHIVE => {
                let others = if are_wanted { "" } else { ", or list other GPUs with `--arch`" };
                Some(format!("install it for the original{others}, and stage again"))
            }
            _ => finding.help.filter(|_| lacks),
        };
        let help = help.map(|help| format!("; {help}")).unwrap_or_default();
        let text = format!("in the output: {}{help}", finding.text);
        return Err(Error::rejected(finding.id, &path, text));
    }
    if lacks {
        finding.severity = Severity::Warning;
    }
    Ok(Some(finding))
}
