//! Finds out whether GPU code loads on this machine, why not, and the command that mends it: which device packages are
//! installed, which HIP runtime a program gets, whether it reads markers, which GPUs there are, and whether the
//! binaries have code for them.
//!
//! Facts are gathered first and judged afterwards. Nothing is written, and nothing that is examined is run.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod device_packages;
mod distributions;
mod dynamic_linker;
mod environment;
mod facts;
mod history;
mod image;
mod index;
mod judge;
mod machine;
pub mod note;
mod packages;
mod places;
mod remedy;
mod restore;
mod rocm_loader;
mod root;
mod unused;

use std::path::{Path, PathBuf};

use serde::Serialize;

use device_packages::DevicePackages;
use environment::PythonEnvironment;
use facts::Process;
use kpack_core::words::list;
use kpack_core::{Error, Severity, ids, shown};
use kpack_format::TargetId;
use kpack_split::input::or_refused;
use kpack_wheel::Environment;
use machine::Machine;

pub use history::Subject;
pub use image::enter;
pub use machine::{Options, no_gpu, processors};
pub use packages::{Origin, Owner, PackageManager, Packages};
pub use remedy::{Diagnosis, Remedy};
pub use restore::Restorer;
pub use root::Root;
pub use unused::{Unused, unused};

/// What was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Whether GPU code will load; `None` if that is unknown.
    pub loads: Option<bool>,
    /// The GPUs that it is about.
    pub gpus: Vec<String>,
    /// Whether GPU code will load, and for which GPU, in words.
    pub verdict: String,
    /// The command that mends the first thing that is wrong, if there is one.
    pub remedy: Option<Remedy>,
    /// The findings, in the order of the causes.
    pub findings: Vec<Diagnosis>,
}

impl Report {
    fn new(machine: &Machine, findings: Vec<Diagnosis>) -> Self {
        let faults = findings.iter().filter(|found| found.finding.severity == Severity::Fault);
        let (some, all): (Vec<_>, Vec<_>) = faults.partition(|found| !found.gpus.is_empty());
        let lacking: Vec<&TargetId> = findings
            .iter()
            .filter(|found| found.is_wrong())
            .flat_map(|found| &found.gpus)
            .collect();
        let served: Vec<&TargetId> =
            machine.gpus().iter().filter(|gpu| !lacking.contains(gpu)).collect();
        let has_code = findings
            .iter()
            .any(|found| [ids::CODE_FOUND, ids::GENERIC_CODE].contains(&found.finding.id));
        let is_for = if machine.gpus().is_empty() {
            "on this machine".to_owned()
        } else {
            format!("for {}", list(machine.gpus()))
        };
        let without: Vec<&TargetId> =
            machine.gpus().iter().filter(|gpu| lacking.contains(gpu)).collect();
        // What a binary lacks is a consequence, if its device wheel is what is missing.
        let is_consequence = |found: &&&Diagnosis| {
            [ids::MISSING_ARCHIVE, ids::MISSING_TARGET].contains(&found.finding.id)
        };
        let all = all.iter().filter(|found| some.is_empty() || !is_consequence(found)).count();
        let (loads, verdict) = if all > 0 || !some.is_empty() && served.is_empty() {
            (Some(false), format!("GPU code will not load {is_for}"))
        } else if findings.iter().any(|found| found.leaves_open) {
            (None, format!("kpack cannot tell whether GPU code will load {is_for}"))
        } else if !without.is_empty() && !served.is_empty() {
            let text =
                format!("GPU code will load for {}, but not for {}", list(&served), list(&without));
            (Some(some.is_empty()), text)
        } else if machine.gpus().is_empty() || !has_code {
            (None, format!("kpack cannot tell whether GPU code will load {is_for}"))
        } else {
            (Some(true), format!("GPU code will load {is_for}"))
        };
        let gpus = machine.gpus().iter().map(TargetId::to_string).collect();
        let mut report = Self { loads, gpus, verdict, remedy: None, findings };
        report.remedy = report.cause().and_then(|cause| cause.remedy.clone());
        report
    }

    /// The number of faults.
    pub fn faults(&self) -> usize {
        let findings = self.findings.iter();
        findings.filter(|found| found.finding.severity == Severity::Fault).count()
    }

    /// What is wrong first of all: a fault, or if there is none, what is wrong for some GPUs, or what keeps kpack from
    /// telling.
    pub fn cause(&self) -> Option<&Diagnosis> {
        let of = |severity| {
            let mut findings = self.findings.iter();
            findings.find(move |found| found.finding.severity == severity)
        };
        let open = || self.findings.iter().find(|found| found.leaves_open);
        let mut notes =
            self.findings.iter().filter(|found| found.finding.severity == Severity::Note);
        let why = || notes.find(|found| self.loads.is_none() && found.finding.help.is_some());
        of(Severity::Fault).or_else(open).or_else(|| of(Severity::Warning)).or_else(why)
    }
}

/// Something that is examined.
#[derive(Default)]
struct Examined {
    /// A Python environment, with the processes of its binaries.
    environment: Option<(PythonEnvironment, Vec<Process>)>,
    /// Those of other binaries.
    processes: Vec<Process>,
    /// If the user is more likely to have meant another place, which has no device code: this, for the end of the verdict.
    passed_over: Option<String>,
}

impl Examined {
    fn at(path: &Path, machine: &Machine) -> Result<Self, Error> {
        if path.is_dir()
            && let Some(found) = PythonEnvironment::read(path, None, machine)?
        {
            // Other prefixes have more than their Python packages.
            let is_root = std::path::absolute(path).is_ok_and(|at| at == found.0.installed.root);
            let is_more = is_root && !path.join("pyvenv.cfg").is_file();
            let mut processes = if is_more {
                or_refused(Process::at(path, machine))?.unwrap_or_default()
            } else {
                Vec::new()
            };
            let known = |file: &Path| found.1.iter().any(|known| known.file == file);
            processes.retain(|process| {
                !found.0.owners.contains_key(&process.file) && !known(&process.file)
            });
            return Ok(Self { environment: Some(found), processes, ..Self::default() });
        }
        let absolute = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
        if path.exists()
            && let Some(root) = Environment::around(&absolute)
            && let Some(found) = PythonEnvironment::read(&root, Some(&absolute), machine)?
            && (path.is_dir() || !found.1.is_empty())
        {
            return Ok(Self { environment: Some(found), ..Self::default() });
        }
        Ok(Self { processes: Process::at(path, machine)?, ..Self::default() })
    }

    /// Whether there is anything with device code.
    fn has_device_code(&self) -> bool {
        let has = |processes: &[Process]| processes.iter().any(|found| !found.binaries.is_empty());
        let is_of_some = |(environment, processes): &(PythonEnvironment, Vec<Process>)| {
            let mut distributions = environment.installed.distributions.iter();
            has(processes) || distributions.any(|own| own.has_device_extras())
        };
        has(&self.processes) || self.environment.as_ref().is_some_and(is_of_some)
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
    let machine = Machine::new(options);
    let root = Root::of_system(&options.system)?;
    let native = machine.native.clone().unwrap_or_default();
    // Files are read once, for these GPUs and for those without the override.
    let seen = machine.seen.iter().chain(&native).cloned().collect();
    let both = Machine { seen, ..Machine::new(options) };
    let mut subjects = Vec::new();
    let mut passed_over = None;
    for path in paths {
        subjects.push(Examined::at(path, &both)?);
    }
    if paths.is_empty() {
        let subject = likely(&both)?;
        passed_over = subject.passed_over.clone();
        subjects.push(subject);
    }
    let mut findings = judge::of_machine(&machine);
    let found = findings_of(&subjects, &machine, &root);
    if machine.native.is_some() {
        let faults = |found: &[Diagnosis]| {
            found.iter().filter(|found| found.finding.severity == Severity::Fault).count()
        };
        let without = Machine { seen: native.clone(), ..both };
        let helps =
            faults(&found) > 0 && faults(&findings_of(&subjects, &without, &root)) < faults(&found);
        findings.push(judge::of_override(&machine, &native, helps));
    }
    findings.extend(found);
    findings.iter_mut().filter_map(|found| found.remedy.as_mut()).for_each(image::mark);
    let mut report = Report::new(&machine, findings);
    report.verdict.extend(passed_over);
    Ok(report)
}

/// The findings about what is examined, for the GPUs of `machine`.
fn findings_of(subjects: &[Examined], machine: &Machine, root: &Root) -> Vec<Diagnosis> {
    let of_machine = |processes: &[Process]| {
        Vec::from_iter(processes.iter().map(|process| process.for_gpus(machine.gpus())))
    };
    let mut findings = Vec::new();
    // What is in an environment belongs to no package of the distribution.
    let (mut processes, mut of_python) = (Vec::new(), Vec::new());
    for subject in subjects {
        if let Some((environment, own)) = &subject.environment {
            let own = of_machine(own);
            findings.extend(distributions::judge(environment, &own, machine));
            of_python.extend(own);
        }
        processes.extend(of_machine(&subject.processes));
    }
    let packages = DevicePackages::of(&processes, root);
    let of_distribution = processes.len();
    processes.extend(of_python);
    let lost = restore::all_lost(&processes, machine, root);
    findings.extend(packages.judge(&processes[..of_distribution], machine, &lost));
    findings.extend(judge::judge(machine, &processes, &lost));
    findings
}

/// The extras of device wheels that the GPUs need, as they are between the brackets of a requirement: those of what is
/// installed in the environments at `paths`, or in the one that the user is likely to mean, or else those of the
/// processors.
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
        let known = needed.flat_map(|(own, needed)| {
            let families = needed.families.iter().filter_map(|family| own.extra_for(family));
            let families = Vec::from_iter(families.map(str::to_owned));
            needed.extras.into_iter().chain(families)
        });
        let known = Vec::from_iter(known);
        if known.is_empty() {
            extras.insert(format!("device-{}", gpu.package_owner().processor()));
        } else {
            extras.extend(known);
        }
    }
    Ok(extras.into_iter().collect())
}

/// The first of the places that the user is likely to mean which has device code.
fn likely(machine: &Machine) -> Result<Examined, Error> {
    let places = places::likely();
    let active = environment::active();
    let mut passed_over: Option<&PathBuf> = None;
    for place in &places {
        let mut subject = if places::is_of_distribution(place) {
            let processes = facts::in_libraries(place, machine)?;
            Examined { processes, ..Examined::default() }
        } else {
            match Examined::at(place, machine) {
                Err(Error::Refused { .. }) => Examined::default(),
                subject => subject?,
            }
        };
        if subject.has_device_code() {
            subject.passed_over = passed_over.map(|active| {
                let (place, active) = (shown(place), shown(active));
                format!(", in {place}; the active environment, {active}, has no device code")
            });
            return Ok(subject);
        }
        passed_over = passed_over.or(active.as_ref().filter(|active| *active == place));
    }
    let text = if places.is_empty() {
        "no environment is active, and there is no ROCm in /opt or in the distribution's libraries"
            .to_owned()
    } else {
        let places = places.iter().map(|place| place.display());
        format!("no binary with device code is in {}", list(places))
    };
    let text = format!("{text}; pass the path to examine: `kpack doctor PATH`");
    Err(Error::rejected(ids::NO_DEVICE_CODE, "this machine".as_ref(), text))
}
