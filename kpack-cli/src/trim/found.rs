//! Which of the given paths have no device code, or are files that trim does not read: somebody may have passed another path
//! than he meant, and nothing else would tell him.

use std::path::Path;

use kpack_artifact::removal;
use kpack_core::files::describe_package;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_split::trim::NoCode;

use super::plan::{Decision, FileJob, TreePlan, TrimPlanner};

/// The most that was found in each of the given paths.
#[derive(Debug)]
pub(super) struct Found(Vec<Code>);

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Code {
    /// Nothing was read: it is a link to another given file, or cannot be read.
    Unread,
    None(NoCode),
    Some,
}

impl Found {
    /// What whole files there are: those of databases, and archives.
    pub(super) fn new(plan: &TreePlan<'_>) -> Self {
        let of_given = plan.given.iter().zip(&plan.tree.inventories).map(|(given, tree)| {
            match (given.is_directory(), removal::has_any(tree)) {
                (_, true) => Code::Some,
                (true, false) => Code::None(NoCode::Host),
                (false, false) => Code::Unread,
            }
        });
        let mut found = Self(of_given.collect());
        for finding in &plan.findings {
            found.raise(plan, finding.file(), Code::Some);
        }
        found
    }

    /// Adds a file.
    pub(super) fn add(&mut self, plan: &TreePlan<'_>, job: &FileJob, decision: &Decision) {
        let code = match decision {
            Decision::Nothing(why) => Code::None(*why),
            _ => Code::Some,
        };
        job.names.iter().for_each(|name| self.raise(plan, name, code));
    }

    fn raise(&mut self, plan: &TreePlan<'_>, path: &Path, code: Code) {
        // They are sorted, and none is in another one, so the last one before `path` is the one that it is in.
        let after = plan.given.partition_point(|given| *given.0 <= *path);
        if let Some(at) = after.checked_sub(1)
            && path.starts_with(&plan.given[at].0)
        {
            self.0[at] = self.0[at].max(code);
        }
    }

    /// An error for each named file of a kind that trim does not read. Among files that a shell lists for `lib/*`, some may be of
    /// any kind, if others have code.
    pub(super) fn unknown(&self, planner: &TrimPlanner<'_>, plan: &TreePlan<'_>) -> Vec<Error> {
        if self.0.contains(&Code::Some) {
            return Vec::new();
        }
        let given = plan.given.iter().zip(&self.0).filter(|(given, _)| !given.is_directory());
        let unknown = given.filter(|(_, code)| **code == Code::None(NoCode::Unknown));
        let error = |path| unknown_kind(path, planner, plan).unwrap_or_else(|error| error);
        unknown.map(|(given, _)| error(&given.0)).collect()
    }

    /// What to say of paths without code.
    pub(super) fn findings(&self, plan: &TreePlan<'_>) -> Vec<Finding> {
        // Among files, as a shell lists for `lib/*`, are always some without code.
        let has_files = plan.given.iter().any(|given| !given.is_directory());
        let may_lack_code = has_files && self.0.contains(&Code::Some);
        // The code of split files may be there.
        let mut all = plan.given.iter().zip(&self.0);
        let has_archives = all.any(|(given, code)| given.is_directory() && *code == Code::Some);
        let mut findings = Vec::new();
        for (given, code) in plan.given.iter().zip(&self.0) {
            let Code::None(why) = code else { continue };
            let (id, text) = match (why, given.is_directory()) {
                // That is an error, or nothing to report in a directory.
                (NoCode::Unknown, _) => continue,
                (NoCode::Host, _) if may_lack_code => continue,
                (NoCode::Split, false) if has_archives => continue,
                (NoCode::Host, _) => (ids::NO_DEVICE_CODE, "no GPU code found"),
                (NoCode::Split, true) => (
                    ids::CODE_IN_ARCHIVES,
                    "the only GPU code is in archives elsewhere; to trim them, pass their directory",
                ),
                (NoCode::Split, false) => (
                    ids::CODE_IN_ARCHIVES,
                    "split, so its GPU code is in archives; to trim them, pass their directory",
                ),
                (NoCode::Whole, true) => (
                    ids::UNCHANGED,
                    "the only GPU code is whole files, which stay unless `--kernel-files` says which GPUs they are for",
                ),
                (NoCode::Whole, false) => (
                    ids::UNCHANGED,
                    "stays as it is; to remove files that are only for other GPUs, pass their directory",
                ),
            };
            findings.push(Finding::new(Severity::Warning, id, &given.0, text));
        }
        findings
    }
}

/// That a named file is of a kind that trim does not read.
fn unknown_kind(
    path: &Path,
    planner: &TrimPlanner<'_>,
    plan: &TreePlan<'_>,
) -> Result<Error, Error> {
    let package = match plan.jobs.iter().find(|job| job.names.iter().any(|name| name == path)) {
        Some(job) => describe_package(path, &planner.open(job)?)?,
        None => None,
    };
    let text = package.unwrap_or_else(|| {
        "not recognised: expected a program or library, an object, a static library, an offload bundle or a directory"
            .to_owned()
    });
    Ok(Error::rejected(ids::UNKNOWN_FILE, path, text))
}
