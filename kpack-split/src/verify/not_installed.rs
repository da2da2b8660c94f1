//! Archives that are listed, and not installed: a machine needs those of its own GPU only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::parallel::lock;
use kpack_core::words::{counted, list};
use kpack_core::{Finding, Severity, ids};
use kpack_format::TargetId;

use super::context::{Context, Demanded};
use super::report::VerifyReport;

/// Archives that manifests list, by their resolved paths.
pub(super) type ListedArchives = BTreeMap<PathBuf, ListedArchive>;

/// An archive that a manifest lists.
pub(super) struct ListedArchive {
    /// The target without features, because a machine installs the variants of its GPU together.
    gpu: TargetId,
    is_there: bool,
}

impl Context<'_> {
    /// Records that a manifest lists `archive`.
    pub(super) fn list(&self, archive: &Path, target: &str, is_there: bool) {
        let Ok(target) = target.parse::<TargetId>() else {
            return;
        };
        let directory = archive.parent().and_then(|directory| directory.canonicalize().ok());
        let path = match (directory, archive.file_name()) {
            (Some(directory), Some(name)) => directory.join(name),
            _ => archive.to_owned(),
        };
        lock(&self.listed).insert(path, ListedArchive { gpu: target.plain(), is_there });
    }

    /// Turns faults about missing archives into notes and a warning if they are those of whole GPUs, and the archives of
    /// another GPU are complete. Not in artifacts, which contain everything.
    pub fn allow_missing_gpus(&self, report: &mut VerifyReport) {
        let options = self.options;
        let may_lack_gpus = options.demanded == Demanded::OneGpu;
        if !may_lack_gpus || !options.targets.is_empty() || options.against.is_some() {
            return;
        }
        let listed = lock(&self.listed);
        let outside = listed.iter().filter(|(path, _)| !self.surroundings.covers(path));
        let (there, missing): (Vec<_>, Vec<_>) = outside.partition(|(_, archive)| archive.is_there);
        let gpus = |archives: &[(&PathBuf, &ListedArchive)]| {
            BTreeSet::from_iter(archives.iter().map(|(_, archive)| archive.gpu.clone()))
        };
        let damaged = there.iter().copied().filter(|(path, _)| self.is_damaged(path));
        let (installed, lacking) = (gpus(&there), gpus(&missing));
        let incomplete = &lacking | &gpus(&Vec::from_iter(damaged));
        let absent: BTreeSet<&TargetId> = lacking.difference(&installed).collect();
        let Some(complete) = installed.difference(&incomplete).next() else {
            return;
        };
        let is_excused = |finding: &Finding| {
            let target = finding.details.target.as_ref().and_then(|target| target.parse().ok());
            finding.severity == Severity::Fault
                && finding.id == ids::MISSING_ARCHIVE
                && target.is_some_and(|target: TargetId| absent.contains(&target.plain()))
                && !self.surroundings.covers(finding.file())
        };
        let excused = report.findings.iter_mut().filter(|finding| is_excused(finding));
        if excused.map(|finding| finding.severity = Severity::Note).count() == 0 {
            return;
        }
        let count = missing.iter().filter(|(_, archive)| absent.contains(&archive.gpu)).count();
        let text = format!(
            "{count} of {} are not installed: those for {}; `--arch {complete}` verifies one GPU, and `--arch all` demands \
             all archives",
            counted(there.len() + missing.len(), "archive"),
            list(absent)
        );
        report.findings.push(Finding::general(Severity::Warning, ids::MISSING_ARCHIVE, text));
    }
}
