//! What is true of a machine and of the paths that are examined on it. Files are read here, and by the readers that this calls:
//! of packages, of trim's notes, and of the configuration of installers. What a fact means for a GPU is decided in `findings`,
//! except that [`code`] says why an archive cannot serve one, and [`restore`] what brings back the code that trim removed: these
//! need the files.

pub(crate) mod binary;
pub(crate) mod code;
pub(crate) mod companions;
pub(crate) mod device_packages;
mod dll_search;
mod dynamic_linker;
pub(crate) mod environment;
pub(crate) mod lacking;
pub(crate) mod libraries;
pub(crate) mod machine;
pub(crate) mod misplaced;
pub(crate) mod places;
pub(crate) mod process;
pub(crate) mod restore;
mod rocm_loader;
pub(crate) mod runtime;

use std::path::{Path, PathBuf};

use kpack_core::words::list;
use kpack_core::{Error, ids, shown};
use kpack_split::input::or_refused;
use kpack_wheel::Environment;

use crate::installer;
use crate::root::Root;
use device_packages::DevicePackages;
use environment::PythonEnvironment;
use machine::{Machine, Options, Reader};
use process::Process;
use restore::AllLost;

/// The facts, as data. Findings follow from them alone.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The GPUs and the variables.
    pub(crate) machine: Machine,
    /// Python environments, with the processes of their binaries.
    pub(crate) environments: Vec<(PythonEnvironment, Vec<Process>)>,
    /// The processes of other binaries.
    pub(crate) processes: Vec<Process>,
    /// The packages that these binaries belong to. What is in an environment belongs to none of the distribution.
    pub(crate) packages: DevicePackages,
    /// What `kpack trim` removed of the code that is missing.
    pub(crate) lost: AllLost,
}

/// The machine, and what is examined on it, with the code for all GPUs that facts may be wanted for.
pub(crate) struct Examination {
    machine: Machine,
    examined: Vec<Examined>,
    root: Root,
}

impl Examination {
    /// Reads the binaries at `paths`, or without paths, at the place that the user is likely to mean: the active environment, or
    /// else an installation.
    pub(crate) fn of(paths: &[PathBuf], options: &Options) -> Result<Self, Error> {
        let machine = Machine::new(options);
        let root = Root::of_system(&options.system)?;
        // Files are read once, for these GPUs and for those without the override.
        let seen = machine.seen.iter().chain(machine.native.iter().flatten()).cloned().collect();
        let reader = Reader::new(Machine { seen, ..machine.clone() }, options.scope.clone());
        let examined = if paths.is_empty() {
            vec![likely(&reader)?]
        } else {
            let inherited = process::inherited_from_programs(paths)?;
            let examined = paths.iter().map(|path| Examined::at(path, &inherited, &reader));
            examined.collect::<Result<_, _>>()?
        };
        Ok(Self { machine, examined, root })
    }

    /// The facts for the GPUs that programs see.
    pub(crate) fn facts(&self) -> Facts {
        Facts::of(&self.examined, self.machine.clone(), &self.root)
    }

    /// The facts for the GPUs without the override; `None` if none is set. They need databases of packages once more.
    pub(crate) fn facts_without_override(&self) -> Option<Facts> {
        let seen = self.machine.native.clone()?;
        let machine = Machine { seen, ..self.machine.clone() };
        Some(Facts::of(&self.examined, machine, &self.root))
    }

    /// For the end of the verdict: the place that the user is likelier to have meant, which has no device code.
    pub(crate) fn passed_over(&self) -> Option<&str> {
        self.examined.iter().find_map(|examined| examined.passed_over.as_deref())
    }
}

impl Facts {
    /// Those for the GPUs of `machine`.
    fn of(examined: &[Examined], machine: Machine, root: &Root) -> Self {
        let for_gpus = |processes: &[Process]| {
            Vec::from_iter(processes.iter().map(|process| process.for_gpus(machine.gpus())))
        };
        let environments = Vec::from_iter(
            examined
                .iter()
                .filter_map(|examined| examined.environment.as_ref())
                .map(|(environment, own)| (environment.clone(), for_gpus(own))),
        );
        let processes =
            Vec::from_iter(examined.iter().flat_map(|examined| for_gpus(&examined.processes)));
        let packages = DevicePackages::of(&processes, root);
        let mut facts = Self { machine, environments, processes, packages, lost: AllLost::new() };
        facts.lost = restore::all_lost(facts.all_processes(), &facts.machine, root);
        facts
    }

    /// All processes: those of other binaries, and then those of environments.
    pub(crate) fn all_processes(&self) -> impl Iterator<Item = &Process> + Clone {
        let of_environments = self.environments.iter().flat_map(|(_, own)| own);
        self.processes.iter().chain(of_environments)
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
    /// What is at `path`. Libraries inherit these directories from other programs that are examined.
    fn at(path: &Path, inherited: &[PathBuf], reader: &Reader) -> Result<Self, Error> {
        if path.is_dir()
            && let Some(found) = PythonEnvironment::read(path, None, reader)?
        {
            // Other prefixes have more than their Python packages.
            let is_root = std::path::absolute(path).is_ok_and(|at| at == found.0.installed.root);
            let is_more = is_root && !path.join("pyvenv.cfg").is_file();
            let mut processes = if is_more {
                or_refused(Process::at(path, inherited, reader))?.unwrap_or_default()
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
            && let Some(found) = PythonEnvironment::read(&root, Some(&absolute), reader)?
            && (path.is_dir() || !found.1.is_empty())
        {
            return Ok(Self { environment: Some(found), ..Self::default() });
        }
        Ok(Self { processes: Process::at(path, inherited, reader)?, ..Self::default() })
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

/// The first of the places that the user is likely to mean which has device code.
fn likely(reader: &Reader) -> Result<Examined, Error> {
    let places = places::likely();
    let active = installer::active();
    let mut passed_over: Option<&PathBuf> = None;
    for place in &places {
        let mut examined = if places::is_of_distribution(place) {
            let processes = process::in_libraries(place, reader)?;
            Examined { processes, ..Examined::default() }
        } else {
            match Examined::at(place, &[], reader) {
                Err(Error::Refused { .. }) => Examined::default(),
                examined => examined?,
            }
        };
        if examined.has_device_code() {
            examined.passed_over = passed_over.map(|active| {
                let (place, active) = (shown(place), shown(active));
                format!(", in {place}; the active environment, {active}, has no device code")
            });
            return Ok(examined);
        }
        passed_over = passed_over.or(active.as_ref().filter(|active| *active == place));
    }
    let why = if places.is_empty() {
        "no environment is active, and there is no ROCm in /opt or in the distribution's libraries"
            .to_owned()
    } else {
        let places = places.iter().map(|place| place.display());
        format!("no binary with device code is in {}", list(places))
    };
    let text = format!("{why}; pass the path to examine: `kpack doctor PATH`");
    Err(Error::rejected(ids::NO_DEVICE_CODE, "this machine".as_ref(), text))
}
