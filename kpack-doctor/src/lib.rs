//! Finds out whether GPU code loads on a machine, why not, and the command that fixes it: which device packages are
//! installed, which HIP runtime a program gets, whether it reads markers, which GPUs there are, and whether the
//! binaries have code for them.
//!
//! [`examine`] takes a machine and paths. It gathers `facts`, which are plain data, turns these into `findings`, and
//! summarizes them in a [`Report`]. Nothing is written, and nothing that is examined is run.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod facts;
mod findings;
mod history;
mod image;
mod installer;
mod note;
mod packages;
mod remedy;
mod report;
mod root;
mod system_libraries;
mod text;
mod unused;

use std::path::PathBuf;

use kpack_core::{Error, Severity, ids};
use kpack_wheel::Environment;

use facts::Examination;
use facts::machine::{Machine, no_gpu};
use facts::places;

pub use facts::libraries::Scope;
pub use facts::machine::{Options, processors};
pub use image::enter;
pub use packages::{Origin, Owner, PackageManager};
pub use remedy::{Diagnosis, Remedy};
pub use report::Report;
pub use system_libraries::{SYSTEM_GROUPS, SystemGroup, SystemLibraries};
pub use unused::{Unused, UnusedPackage, unused};

/// For kpack's own command, whose `trim` finds packages in the same way and writes the notes that are read here, and whose `stage`
/// copies what is looked for here. It is no part
/// of the interface: it may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::facts::companions::{data_of, libraries_beside};
    pub use crate::facts::libraries::{LoadedLibrary, Loading, When, libraries};
    pub use crate::facts::machine::no_gpu;
    pub use crate::facts::restore::Restorer;
    pub use crate::history::Subject;
    pub use crate::packages::Packages;
    pub use crate::root::Root;
    pub use crate::system_libraries::matches_library;

    /// The note about what `kpack trim` removed.
    pub mod note {
        pub use crate::note::*;
    }
}

/// Examines programs and libraries, each with the libraries that it would be loaded with, and every
/// binary with device code in install prefixes and Python environments. Without paths, examines what the user is
/// likely to mean: the active environment, or else what is installed.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read, [`Error::Refused`] if one of `paths` is neither a directory nor
/// a linked file that kpack reads.
pub fn examine(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    let examination = match Examination::of(paths, options) {
        Err(error) if paths.is_empty() && error.id() == ids::NO_DEVICE_CODE => {
            return of_machine(options, error);
        }
        examination => examination?,
    };
    let facts = examination.facts();
    let found = findings::of_examined(&facts);
    let is_wrong = findings::faults(&found) > 0;
    let native = is_wrong.then(|| examination.facts_without_override()).flatten();
    let mut findings = findings::findings(&facts, found, native.as_ref());
    findings.iter_mut().filter_map(|found| found.remedy.as_mut()).for_each(image::mark);
    let mut report = Report::new(&facts.machine, findings);
    report.verdict.extend(examination.passed_over());
    Ok(report)
}

/// The report about a machine where no binary was found to examine, if the machine is why GPU code would not load.
///
/// # Errors
/// The given one, if nothing is wrong with the machine.
fn of_machine(options: &Options, nothing_found: Error) -> Result<Report, Error> {
    let machine = Machine::new(options);
    let findings = findings::of_machine(&machine);
    // Without a GPU, the question is about another machine, and needs its GPU and a path.
    let is_wrong = |found: &Diagnosis| {
        found.finding.severity == Severity::Fault && found.finding.id != ids::NO_GPU
    };
    match nothing_found {
        Error::Refused { reason, .. } if findings.iter().any(is_wrong) => {
            let mut report = Report::new(&machine, findings);
            report.verdict.push_str(&format!(" ({reason})"));
            Ok(report)
        }
        error => Err(error),
    }
}

/// The extras of device wheels that the GPUs need, as they are between the brackets of a requirement. These are the extras of
/// the distributions in the environments at `paths`, or in the environment that the user is likely to mean. If no distribution
/// has any for a GPU, its extra is named after the processor.
///
/// # Errors
/// [`Error::Refused`] if no GPU is known.
pub fn extras(paths: &[PathBuf], options: &Options) -> Result<Vec<String>, Error> {
    let gpus = Machine::new(options).to_join();
    if gpus.is_empty() {
        return Err(no_gpu(&options.nodes));
    }
    let places = if paths.is_empty() { places::environments() } else { paths.to_vec() };
    let installed = Vec::from_iter(places.iter().filter_map(|path| Environment::read(path)));
    let mut extras = std::collections::BTreeSet::new();
    for gpu in &gpus {
        let distributions = installed.iter().flat_map(|environment| &environment.distributions);
        let needed = distributions.filter_map(|own| Some((own, own.needed_by(gpu)?)));
        let known = Vec::from_iter(needed.flat_map(|(own, needed)| {
            let families = Vec::from_iter(
                needed
                    .families
                    .iter()
                    .filter_map(|family| own.extra_for(family))
                    .map(str::to_owned),
            );
            needed.extras.into_iter().chain(families)
        }));
        if known.is_empty() {
            extras.insert(format!("device-{}", gpu.package_owner().processor()));
        } else {
            extras.extend(known);
        }
    }
    Ok(extras.into_iter().collect())
}
