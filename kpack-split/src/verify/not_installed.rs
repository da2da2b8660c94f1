//! Archives that are listed, and not installed: a machine needs those of its own GPU only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::parallel::lock;
use kpack_core::words::{counted, list};
use kpack_core::{Finding, Severity, ids};
use kpack_format::{Delivery, TargetId};

use super::context::{Context, Demanded};
use super::report::VerifyReport;

/// Archives that manifests list, by their resolved paths.
pub(super) type ListedArchives = BTreeMap<PathBuf, ListedArchive>;

/// An archive that a manifest lists.
pub(super) struct ListedArchive {
    target: TargetId,
    is_there: bool,
}

/// What a module's manifest lists, or a binary's marker.
#[derive(Default)]
pub(super) struct Module {
    listed: Vec<TargetId>,
    /// Those with an archive, damaged or not.
    there: BTreeSet<TargetId>,
    damaged: BTreeSet<TargetId>,
}

impl Module {
    fn add(&mut self, target: &TargetId, is_there: bool, is_damaged: bool) {
        self.listed.push(target.clone());
        if is_there {
            self.there.insert(target.clone());
        }
        if is_damaged {
            self.damaged.insert(target.clone());
        }
    }

    /// The listed targets whose code a GPU of the target `gpu` takes, and which has no sound archive.
    fn lacking_for(&self, gpu: &TargetId) -> Vec<&TargetId> {
        let mut needed = gpu.taken(&self.listed, Delivery::Archive);
        // Code for `gpu` does without code for its variants.
        needed.retain(|own| own.processor() != gpu.processor() || own.runs_on(gpu));
        needed.retain(|own| !self.there.contains(own) || self.damaged.contains(own));
        needed
    }
}

/// The targets that may be missing from all `modules`, and the complete one that most of them list, if there is one. What a
/// GPU needs of which other code is there is not left out on purpose.
fn may_be_missing(modules: &[&Module]) -> Option<(BTreeSet<TargetId>, TargetId)> {
    let all = || modules.iter().copied();
    let there = BTreeSet::from_iter(all().flat_map(|module| &module.there));
    let mut absent = BTreeSet::from_iter(all().flat_map(|module| &module.listed));
    absent.retain(|target| !there.contains(target));
    let mut complete = Vec::new();
    for &gpu in &there {
        let lacking = Vec::from_iter(all().flat_map(|module| module.lacking_for(gpu)));
        if lacking.is_empty() {
            let listing = all().filter(|module| module.there.contains(gpu)).count();
            complete.push((Reverse(listing), gpu));
        }
        for target in lacking {
            absent.remove(target);
        }
    }
    let (_, complete) = complete.into_iter().min()?;
    Some((absent.into_iter().cloned().collect(), complete.clone()))
}

impl Context<'_> {
    /// Records that a manifest lists `archive`.
    pub(super) fn list(&self, archive: &Path, target: &str, is_there: bool) {
        let Ok(target) = target.parse() else {
            return;
        };
        let path = lock(&self.paths).in_directory(archive);
        let path = path.unwrap_or_else(|| archive.to_owned());
        lock(&self.listed).insert(path, ListedArchive { target, is_there });
    }

    /// Records the targets that a split binary was built for, and which of them have an archive. A manifest may have lost
    /// some of them.
    pub(super) fn needs(&self, binary: &Path, targets: impl Iterator<Item = (TargetId, bool)>) {
        let mut needed = Module::default();
        for (target, is_there) in targets {
            needed.add(&target, is_there, false);
        }
        lock(&self.needed).insert(binary.to_owned(), needed);
    }

    /// Turns faults about missing archives into notes and a warning if they are those of whole targets, and the archives of
    /// another target are complete. Not in artifacts, which contain everything.
    pub fn allow_missing_targets(&self, report: &mut VerifyReport) {
        let options = self.options;
        let may_lack = options.demanded == Demanded::OneGpu && options.against.is_none();
        if !may_lack || !options.targets.is_empty() {
            return;
        }
        let listed = lock(&self.listed);
        let outside = listed.iter().filter(|(path, _)| !self.surroundings.covers(path));
        let mut modules: BTreeMap<(Option<&Path>, String), Module> = BTreeMap::new();
        for (path, archive) in outside {
            // The names of a module's archives differ in the target only, which is last and contains no `_`.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.rsplit_once('_').map_or("", |(module, _)| module);
            let module = modules.entry((path.parent(), name.to_owned())).or_default();
            let is_damaged = archive.is_there && self.is_damaged(path);
            module.add(&archive.target, archive.is_there, is_damaged);
        }
        let needed = lock(&self.needed);
        let outside = needed.iter().filter(|(binary, _)| !self.surroundings.covers(binary));
        let binaries = outside.map(|(_, needed)| needed);
        let found = may_be_missing(&Vec::from_iter(modules.values().chain(binaries)));
        let Some((absent, complete)) = found else {
            return;
        };
        let is_excused = |finding: &Finding| {
            let target = finding.details.target.as_ref().and_then(|target| target.parse().ok());
            finding.severity == Severity::Fault
                && finding.id == ids::MISSING_ARCHIVE
                && target.is_some_and(|target: TargetId| absent.contains(&target))
                && !self.surroundings.covers(finding.file())
        };
        let excused = report.findings.iter_mut().filter(|finding| is_excused(finding));
        if excused.map(|finding| finding.severity = Severity::Note).count() == 0 {
            return;
        }
        let archives = || modules.values().flat_map(|module| &module.listed);
        let text = format!(
            "{} of {} are not installed: those for {}; `--arch {complete}` verifies one GPU, and `--arch all` demands all \
             archives",
            archives().filter(|target| absent.contains(target)).count(),
            counted(archives().count(), "archive"),
            list(&absent)
        );
        report.findings.push(Finding::general(Severity::Warning, ids::MISSING_ARCHIVE, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(listed: &[(&str, bool)]) -> Module {
        let mut module = Module::default();
        for (target, is_there) in listed {
            module.add(&target.parse().unwrap(), *is_there, false);
        }
        module
    }

    fn absent(modules: &[Module]) -> Vec<String> {
        let found = may_be_missing(&Vec::from_iter(modules)).map(|(absent, _)| absent);
        found.into_iter().flatten().map(|target| target.to_string()).collect()
    }

    #[test]
    fn whole_targets_may_be_missing_beside_a_complete_one() {
        let own = || module(&[("gfx1100", true), ("gfx942", false)]);
        assert_eq!(absent(&[own()]), ["gfx942"]);
        // A second module lacks the code for the machine's GPU, which is not left out on purpose.
        assert_eq!(absent(&[own(), module(&[("gfx1100", false), ("gfx942", false)])]), [""; 0]);
        assert_eq!(absent(&[own(), module(&[("gfx942", false)])]), ["gfx942"]);
        assert_eq!(absent(&[module(&[("gfx1100", false), ("gfx942", false)])]), [""; 0]);
    }

    #[test]
    fn a_variant_needs_the_plain_code_but_not_the_reverse() {
        let targets = [("gfx90a", false), ("gfx90a:xnack+", true), ("gfx942", true)];
        assert_eq!(absent(&[module(&targets)]), [""; 0]);
        let plain = module(&[("gfx90a", true), ("gfx90a:xnack+", false)]);
        assert_eq!(absent(&[plain]), ["gfx90a:xnack+"]);
    }

    #[test]
    fn a_gpu_needs_generic_code_where_it_has_none_of_its_own() {
        let own = || module(&[("gfx1100", true), ("gfx942", false)]);
        let generic = || module(&[("gfx11-generic", false), ("gfx942", false)]);
        assert_eq!(absent(&[own(), generic()]), [""; 0]);
        assert_eq!(absent(&[own(), generic(), module(&[("gfx1201", true)])]), ["gfx942"]);
    }

    #[test]
    fn a_damaged_archive_completes_nothing() {
        let mut own = module(&[("gfx1100", true), ("gfx942", false)]);
        own.damaged.insert("gfx1100".parse().unwrap());
        assert_eq!(absent(&[own]), [""; 0]);
    }
}
