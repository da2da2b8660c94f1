//! The packages of a distribution and of conda that the examined binaries belong to: which archives of theirs are gone, and
//! which device packages they recommend.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::{Finding, Severity, ids, shown};
use kpack_format::{Delivery, TargetId};

use super::facts::{Binary, Code, Process};
use super::machine::Machine;
use super::packages::{Package, PackageManager, Packages, Wanted};
use super::remedy::Diagnosis;
use super::restore::{AllLost, Restorer};
use super::root::Root;

/// What the examined binaries have to do with packages.
#[derive(Debug, Default)]
pub(super) struct DevicePackages {
    packages: Packages,
    /// The files of these that are gone.
    missing: BTreeSet<PathBuf>,
}

impl DevicePackages {
    /// The packages in the databases of the root that have something to do with these processes.
    pub(super) fn of(processes: &[Process], root: &Root) -> Self {
        let binaries = || processes.iter().flat_map(|process| &process.binaries);
        // A machine may have thousands of packages, and what lists their files has to be read.
        if !binaries().any(Binary::lacks_code) {
            return Self::default();
        }
        let binaries: BTreeSet<&Path> = binaries().map(|binary| binary.path.as_path()).collect();
        let prefixes: BTreeSet<&Path> =
            binaries.iter().flat_map(|path| path.ancestors().skip(1)).collect();
        // The directories `.kpack` beside and above the binaries.
        let places = prefixes.iter().map(|directory| directory.join(".kpack")).collect();
        let wanted = &Wanted::new(binaries, places);
        let mut packages = Packages::of_system(root, wanted);
        packages.add_conda(prefixes, root, wanted);
        let files = packages.all.iter().flat_map(|package| &package.files);
        let mut restorer = Restorer::new(root);
        // What trim removed is missed only where a binary lacks it.
        let is_missing =
            |path: &&PathBuf| path.symlink_metadata().is_err() && !restorer.has_removed(path);
        let missing = files.filter(is_missing).cloned().collect();
        Self { packages, missing }
    }

    fn is_missing(&self, path: &PathBuf) -> bool {
        self.missing.contains(path)
    }

    /// What was not read, if a binary that lacks code belongs to no known package.
    fn judge_unread(&self, processes: &[Process]) -> impl Iterator<Item = Diagnosis> {
        let mut binaries = processes.iter().flat_map(|process| &process.binaries);
        let is_of_none =
            |binary: &Binary| binary.lacks_code() && self.packages.owner(&binary.path).is_none();
        let is_wanted = binaries.any(is_of_none);
        let unread = if is_wanted { self.packages.findings() } else { Vec::new() };
        unread.into_iter().map(Diagnosis::from)
    }

    /// The findings: archives that a package lists and that are gone, and device packages that are recommended for a GPU
    /// and not installed. `all_lost` is what trim removed, which `judge` explains.
    pub(super) fn judge(
        &self,
        processes: &[Process],
        machine: &Machine,
        all_lost: &AllLost,
    ) -> Vec<Diagnosis> {
        let mut found = Vec::new();
        for package in &self.packages.all {
            let Some(path) = package.files.iter().find(|path| self.is_missing(path)) else {
                continue;
            };
            let text = format!(
                "the package {} {} is installed, but its archive is missing",
                package.origin.name, package.origin.version
            );
            let mut fault = Finding::new(Severity::Fault, ids::DEVICE_PACKAGE_DAMAGED, path, text);
            if package.origin.manager == PackageManager::Conda {
                fault = fault.with_help(package.origin.by_conda());
            }
            found.push(Diagnosis::from(fault).mended_by(Package::reinstall(&[package])));
        }
        for gpu in machine.gpus() {
            let mut missing: BTreeMap<&str, (&Package, Option<&str>)> = BTreeMap::new();
            let binaries = processes.iter().flat_map(|process| &process.binaries);
            let lacks = |code: &[(TargetId, Code)]| {
                code.iter().any(|(known, code)| known == gpu && !code.is_here())
            };
            for binary in binaries.filter(|binary| lacks(&binary.code)) {
                let Some(owner) = self.packages.owner(&binary.path) else { continue };
                let (name, version) = (owner.name(), &owner.origin.version);
                let has = binary.code.iter().any(|(_, code)| code.is_here());
                let is_lost = all_lost.contains_key(&(binary.path.clone(), gpu.clone()));
                let is_there = || !is_lost && !owner.files.iter().any(|path| self.is_missing(path));
                let is_of_conda = owner.origin.manager == PackageManager::Conda;
                if is_of_conda && (!has || machine.asked) && is_there() {
                    let text = format!("{name} {version} has no code for {gpu}");
                    let id = ids::DEVICE_PACKAGE_MISSING;
                    let fault = Finding::new(Severity::Fault, id, &binary.path, text);
                    let fault = Diagnosis::from(fault.with_help(owner.origin.by_conda()));
                    found.push(fault.about([gpu.clone()]));
                }
                for (name, version) in &owner.lacks {
                    if target_of(name).is_some_and(|target| is_for(&target, gpu)) {
                        missing.insert(name, (owner, version.as_deref()));
                    }
                }
            }
            for (name, (owner, version)) in missing {
                let text = format!(
                    "{} {} recommends {name} for {gpu}, which is not installed",
                    owner.name(),
                    owner.origin.version
                );
                let path = owner.files.first().map_or(Path::new("/"), PathBuf::as_path);
                let text = format!("{text}: {} has no code for it", shown(path));
                let fault = Finding::general(Severity::Fault, ids::DEVICE_PACKAGE_MISSING, text);
                let remedy = owner.install(name, version);
                found.push(Diagnosis::from(fault).mended_by(remedy).about([gpu.clone()]));
            }
        }
        found.extend(self.judge_unread(processes));
        found
    }
}

/// Whether the package of a target has what a GPU needs: its code, or files for its family.
pub(super) fn is_for(package: &TargetId, gpu: &TargetId) -> bool {
    [gpu, &gpu.package_owner()]
        .iter()
        .any(|gpu| package.covers(gpu) || gpu.needs(package, Delivery::Archive))
}

/// The target at the end of the name of a device package: that of `libvec1-gfx90a.xnack-on`.
fn target_of(name: &str) -> Option<TargetId> {
    let label = &name[name.rfind("-gfx")? + 1..];
    let processor = label.split('.').next()?;
    TargetId::family(processor).or_else(|| processor.parse().ok())
}
