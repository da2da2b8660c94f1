//! Examines the application, as `kpack doctor` does on a machine that has nothing else but what systems provide.

use std::path::PathBuf;

use kpack_core::finding::Finding;
use kpack_core::{Error, Severity, ids};
use kpack_doctor::{Options, examine};
use kpack_format::TargetId;

use super::run_paths::Staged;

/// Fails if code of the application would not load for one of `gpus`. Returns what else there is to say. If `are_wanted`, a
/// library without code for one of them is a failure, too.
///
/// # Errors
/// [`Error::Refused`] with the first reason; [`Error::Io`].
pub(super) fn check(
    staged: &Staged<'_>,
    gpus: &[TargetId],
    are_wanted: bool,
) -> Result<Vec<Finding>, Error> {
    let plan = staged.plan;
    let inherited = staged.inherited()?;
    let paths = |names: &[PathBuf]| Vec::from_iter(names.iter().map(|path| staged.root.join(path)));
    let mut also = paths(&plan.also);
    if plan.programs.is_empty() {
        also.extend(paths(&plan.libraries));
    }
    let mut all = Vec::new();
    for (paths, inherited) in [(paths(&plan.programs), &[][..]), (also, &*inherited)] {
        if paths.is_empty() {
            continue;
        }
        for gpu in gpus {
            let mut options = Options::default();
            options.targets = vec![gpu.clone()];
            options.scope = Some(staged.scope(inherited));
            let report = examine(&paths, &options).map_err(|error| staged.shown(error))?;
            let mut findings = report.findings;
            // Where code is missing, so are database files, which says less.
            findings.sort_by_key(|diagnosis| diagnosis.finding.id != ids::MISSING_TARGET);
            for diagnosis in findings {
                finding(staged, diagnosis.finding, are_wanted, &mut all)?;
            }
        }
    }
    Ok(all)
}

/// Keeps a finding about the output that is no failure.
fn finding(
    staged: &Staged<'_>,
    mut finding: Finding,
    are_wanted: bool,
    all: &mut Vec<Finding>,
) -> Result<(), Error> {
    let lacks = finding.id == ids::MISSING_TARGET;
    finding.path = finding.path.map(|path| staged.place(&path));
    finding.text = staged.shown_text(&finding.text);
    if finding.severity == Severity::Fault && (are_wanted || !lacks) {
        let path = finding.path.clone().unwrap_or_else(|| staged.output.to_owned());
        let text = format!("in the output: {}", finding.text);
        return Err(Error::rejected(finding.id, &path, text));
    }
    // Other findings are about this machine, and the output is for others.
    if lacks && !all.contains(&finding) {
        finding.severity = Severity::Warning;
        all.push(finding);
    }
    Ok(())
}
