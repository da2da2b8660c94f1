//! Which of the given paths have no device code, or are files that trim does not read: somebody may have passed another path
//! than he meant, and nothing else would tell him.

use std::path::Path;

use kpack_artifact::removal;
use kpack_core::files::describe_package;
use kpack_core::words::list;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::names::{is_archive, is_manifest};
use kpack_split::trim::NoCode;

use super::plan::{Decision, FileJob, TreePlan, TrimPlanner};

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    /// The most that was found in each of the given paths.
    codes: Vec<Code>,
    /// Whether some code may be for the chosen GPUs.
    may_serve: bool,
    /// Whether some code is only for other GPUs.
    lacks_code: bool,
}

/// What was found in a path.
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
        let mut found = Self {
            codes: of_given.collect(),
            may_serve: plan.may_serve,
            lacks_code: plan.lacks_code,
        };
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
        // A code object alone may be for them, unless it is decided on with others.
        let is_decided = || {
            let name = &job.names[0];
            is_archive(name) || is_manifest(name) || plan.left.contains(name)
        };
        match decision {
            Decision::Stays(finding) if finding.id == ids::MISSING_TARGET => self.lacks_code = true,
            Decision::Nothing(NoCode::Whole) => self.may_serve |= !is_decided(),
            // Its archives may be elsewhere.
            Decision::Nothing(NoCode::Split) => self.may_serve |= !plan.lacks_code,
            Decision::Nothing(_) => {}
            _ => self.may_serve = true,
        }
        job.names.iter().for_each(|name| self.raise(plan, name, code));
    }

    fn raise(&mut self, plan: &TreePlan<'_>, path: &Path, code: Code) {
        // They are sorted, and none is in another one, so the last one before `path` is the one that it is in.
        let after = plan.given.partition_point(|given| *given.0 <= *path);
        if let Some(at) = after.checked_sub(1)
            && path.starts_with(&plan.given[at].0)
        {
            self.codes[at] = self.codes[at].max(code);
        }
    }

    /// An error for each named file of a kind that trim does not read. Among files that a shell lists for `lib/*`, some may be of
    /// any kind, if others have code.
    pub(super) fn unknown(&self, planner: &TrimPlanner<'_>, plan: &TreePlan<'_>) -> Vec<Error> {
        if self.codes.contains(&Code::Some) {
            return Vec::new();
        }
        let given = plan.given.iter().zip(&self.codes).filter(|(given, _)| !given.is_directory());
        let unknown = given.filter(|(_, code)| **code == Code::None(NoCode::Unknown));
        let error = |path| unknown_kind(path, planner, plan).unwrap_or_else(|error| error);
        unknown.map(|(given, _)| error(&given.0)).collect()
    }

    /// An error if there is code, but none for the chosen GPUs: somebody may have passed another GPU than he meant.
    pub(super) fn none_for_gpus(
        &self,
        planner: &TrimPlanner<'_>,
        plan: &TreePlan<'_>,
    ) -> Option<Error> {
        let gpus = list(&planner.options.keep.gpus);
        let others = if plan.given.len() > 1 { " here or in the other paths" } else { "" };
        let text = format!(
            "there is no code for {gpus}{others}, so nothing is trimmed; pass another `--arch`"
        );
        let error = || Error::rejected(ids::MISSING_TARGET, &plan.given[0].0, text);
        (self.lacks_code && !self.may_serve).then(error)
    }

    /// What to say of paths without code.
    pub(super) fn findings(&self, plan: &TreePlan<'_>) -> Vec<Finding> {
        // Among files, as a shell lists for `lib/*`, are always some without code.
        let has_files = plan.given.iter().any(|given| !given.is_directory());
        let may_lack_code = has_files && self.codes.contains(&Code::Some);
        // The code of split files may be there.
        let mut all = plan.given.iter().zip(&self.codes);
        let has_archives = all.any(|(given, code)| given.is_directory() && *code == Code::Some);
        let mut findings = Vec::new();
        for (given, code) in plan.given.iter().zip(&self.codes) {
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
