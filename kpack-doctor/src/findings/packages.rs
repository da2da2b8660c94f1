//! The findings about packages of a distribution and of conda: archives of theirs that are gone, and device packages that they
//! recommend.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_core::{Finding, Severity, ids, shown};
use kpack_format::{Delivery, TargetId};

use crate::facts::binary::Binary;
use crate::facts::code::CodeForGpu;
use crate::facts::device_packages::DevicePackages;
use crate::facts::machine::Machine;
use crate::facts::process::Process;
use crate::facts::restore::AllLost;
use crate::packages::{Package, PackageManager, Packages};
use crate::remedy::Diagnosis;

/// What was not read, if a binary that lacks code belongs to no known package.
fn judge_unread(packages: &Packages, processes: &[Process]) -> impl Iterator<Item = Diagnosis> {
    let mut binaries = processes.iter().flat_map(|process| &process.binaries);
    let is_of_none =
        |binary: &Binary| binary.lacks_code() && packages.owner(&binary.path).is_none();
    let is_wanted = binaries.any(is_of_none);
    let unread = if is_wanted { packages.findings() } else { Vec::new() };
    unread.into_iter().map(Diagnosis::from)
}

/// The findings: archives that a package lists and that are gone, and device packages that are recommended for a GPU
/// and not installed. `all_lost` is what trim removed: no other build is advised for that.
pub(super) fn judge(
    packages: &DevicePackages,
    processes: &[Process],
    machine: &Machine,
    all_lost: &AllLost,
) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for package in &packages.packages.all {
        let Some(path) = package.files.iter().find(|path| packages.is_missing(path)) else {
            continue;
        };
        let text = format!(
            "the package {} {} is installed, but its archive is missing",
            package.origin.name, package.origin.version
        );
        let mut fault = Finding::new(Severity::Fault, ids::DEVICE_PACKAGE_DAMAGED, path, text);
        if package.origin.manager == PackageManager::Conda {
            fault = fault.with_help(package.origin.again_by_conda());
        }
        found.push(Diagnosis::from(fault).mended_by(Package::reinstall(&[package])));
    }
    for gpu in machine.gpus() {
        let mut missing: BTreeMap<&str, (&Package, Option<&str>)> = BTreeMap::new();
        let binaries = processes.iter().flat_map(|process| &process.binaries);
        let lacks = |code: &[(TargetId, CodeForGpu)]| {
            code.iter().any(|(known, code)| known == gpu && !code.is_here())
        };
        for binary in binaries.filter(|binary| lacks(&binary.code)) {
            let Some(owner) = packages.packages.owner(&binary.path) else { continue };
            let (name, version) = (owner.name(), &owner.origin.version);
            let has = binary.code.iter().any(|(_, code)| code.is_here());
            let is_lost = all_lost.contains_key(&(binary.path.clone(), gpu.clone()));
            let is_there = || !is_lost && !owner.files.iter().any(|path| packages.is_missing(path));
            let is_of_conda = owner.origin.manager == PackageManager::Conda;
            if is_of_conda && (!has || machine.asked) && is_there() {
                let text = format!("{name} {version} has no code for {gpu}");
                let id = ids::DEVICE_PACKAGE_MISSING;
                let fault = Finding::new(Severity::Fault, id, &binary.path, text);
                let again = owner.origin.again_by_conda();
                let help = format!("{again}, or a build of it with code for {gpu}");
                found.push(Diagnosis::from(fault.with_help(help)).about([gpu.clone()]));
            }
            for (name, version) in &owner.lacks {
                if target_of(name).is_some_and(|target| is_for(&target, gpu)) {
                    missing.insert(name, (owner, version.as_deref()));
                }
            }
        }
        for (name, (owner, version)) in missing {
            let path = owner.files.first().map_or(Path::new("/"), PathBuf::as_path);
            let text = format!(
                "{} {} recommends {name} for {gpu}, which is not installed: {} has no code for it",
                owner.name(),
                owner.origin.version,
                shown(path)
            );
            let fault = Finding::general(Severity::Fault, ids::DEVICE_PACKAGE_MISSING, text);
            let remedy = owner.install(name, version);
            found.push(Diagnosis::from(fault).mended_by(remedy).about([gpu.clone()]));
        }
    }
    found.extend(judge_unread(&packages.packages, processes));
    found
}

/// Whether the package of a target has what a GPU needs: its code, or files for its family.
pub(crate) fn is_for(package: &TargetId, gpu: &TargetId) -> bool {
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
