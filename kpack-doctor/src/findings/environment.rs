//! Judges the distributions of an environment: does each GPU have the device wheels that it needs? Reads nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::binary::Binary;
use crate::facts::code::CodeForGpu;
use crate::facts::environment::PythonEnvironment;
use crate::facts::machine::Machine;
use crate::facts::process::Process;
use crate::facts::runtime::Runtime;
use crate::installer::again_from_elsewhere;
use crate::remedy::{Diagnosis, Remedy};
use kpack_core::words::list;
use kpack_core::{Finding, Id, Severity, ids, shown};
use kpack_format::names::is_archive;
use kpack_format::{Delivery, TargetId};
use kpack_wheel::{Distribution, Needed, Required};

/// What is to be installed: the extras of each host, and other distributions.
#[derive(Default)]
struct WantedDistributions {
    extras: BTreeMap<String, BTreeSet<String>>,
    others: BTreeSet<Required>,
}

/// The findings about an environment, whose binaries with device code are in `processes`.
pub(super) fn judge(
    environment: &PythonEnvironment,
    processes: &[Process],
    machine: &Machine,
) -> Vec<Diagnosis> {
    let mut wanted = WantedDistributions::default();
    let mut found = Vec::new();
    for host in &environment.installed.distributions {
        let first = found.len();
        let of_host = HostWheel { host, environment, machine, processes };
        for gpu in machine.gpus() {
            found.extend(of_host.for_gpu(gpu, &mut wanted));
        }
        of_host.soften(&mut found[first..]);
    }
    let install = environment.install(&wanted);
    let mut diagnoses: Vec<Diagnosis> = found
        .into_iter()
        .map(|diagnosis| {
            if diagnosis.gpus.is_empty() {
                diagnosis
            } else {
                environment.mended(diagnosis, install.clone())
            }
        })
        .collect();
    // A device wheel that is installed again is complete, whatever was wrong with its files.
    diagnoses.extend(environment.damaged());
    diagnoses.extend(environment.links(processes));
    diagnoses.extend(environment.several_runtimes(processes, machine));
    diagnoses.extend(environment.findings.iter().cloned().map(Diagnosis::from));
    let unread = environment.unread.iter().cloned();
    diagnoses.extend(unread.map(|finding| Diagnosis::from(finding).leaving_open()));
    diagnoses
}

/// A distribution with extras for device wheels.
struct HostWheel<'a> {
    host: &'a Distribution,
    environment: &'a PythonEnvironment,
    machine: &'a Machine,
    processes: &'a [Process],
}

impl HostWheel<'_> {
    /// What `gpu` lacks. A finding that an installation mends is about that GPU.
    fn for_gpu(&self, gpu: &TargetId, wanted: &mut WantedDistributions) -> Vec<Diagnosis> {
        if !self.host.has_device_extras() {
            return Vec::new();
        }
        let (host, binaries) = (self.host, self.binaries());
        let has_all = |binary: &&Binary| {
            binary.code.iter().all(|(known, code)| known != gpu || code.is_here())
        };
        let lacks_code = !binaries.iter().all(has_all);
        let Some(needed) = host.needed_by(gpu) else {
            let text = format!(
                "{} {} has no device wheel for {gpu}, only for {}",
                host.name,
                host.version,
                list(host.device_targets())
            );
            let mut usable = vec![gpu.processor().to_owned()];
            let generic = gpu.generic(Delivery::Archive);
            usable.extend(generic.map(|generic| generic.target.processor().to_owned()));
            usable.extend(gpu.families().next().map(|family| family.plain_name().to_owned()));
            let help =
                format!("install a version of {} with code for {}", host.name, usable.join(" or "));
            return if lacks_code {
                vec![self.fault(ids::NO_DEVICE_WHEEL, text).with_help(help).into()]
            } else {
                Vec::new()
            };
        };
        let mut found = Vec::new();
        for (id, text) in self.unmet(&needed, gpu) {
            // Where all code is there, nothing is missed: somebody put it there in another way.
            let is_missed = match id {
                ids::DEVICE_WHEEL_MISSING | ids::DEVICE_WHEEL_OTHER_GPU => lacks_code,
                ids::FAMILY_WHEEL_MISSING => !binaries.is_empty(),
                _ => true,
            };
            if !is_missed {
                continue;
            }
            found.push(Diagnosis::from(self.fault(id, text)).about([gpu.clone()]));
        }
        if !found.is_empty() {
            wanted.extras.entry(host.name.clone()).or_default().extend(needed.extras);
            let is_met = |family: &Required| {
                let installed = self.environment.installed.get(&family.name);
                installed.is_some_and(|installed| family.is_met_by(installed))
            };
            for family in needed.families.into_iter().filter(|family| !is_met(family)) {
                match host.extra_for(&family) {
                    Some(extra) => {
                        let extras = wanted.extras.entry(host.name.clone()).or_default();
                        extras.insert(extra.to_owned());
                    }
                    None => _ = wanted.others.insert(family),
                }
            }
        }
        found
    }

    fn fault(&self, id: Id, text: String) -> Finding {
        Finding::new(Severity::Fault, id, &self.environment.installed.root, text)
    }

    /// A second GPU need not have code, unless the user names it.
    fn soften(&self, found: &mut [Diagnosis]) {
        let lacking: BTreeSet<TargetId> = found.iter().flat_map(|d| d.gpus.clone()).collect();
        let has_other = self
            .machine
            .gpus()
            .iter()
            .any(|gpu| !lacking.contains(gpu) && self.host.needed_by(gpu).is_some());
        if has_other && !self.machine.asked {
            for diagnosis in found {
                diagnosis.finding.severity = Severity::Warning;
            }
        }
    }

    /// The binaries that the device wheels are for: the host's own, or else those of what it requires.
    fn binaries(&self) -> Vec<&Binary> {
        let of = |names: &BTreeSet<String>| {
            let binaries = self.processes.iter().flat_map(|process| &process.binaries);
            Vec::from_iter(binaries.filter(|binary| {
                let owner = self.environment.owners.get(&binary.path);
                owner.is_some_and(|owner| names.contains(owner))
            }))
        };
        let own = of(&BTreeSet::from([self.host.name.clone()]));
        if own.is_empty() { of(&self.host.may_require()) } else { own }
    }

    /// The requirements that are not met, in words.
    fn unmet(&self, needed: &Needed, gpu: &TargetId) -> Vec<(Id, String)> {
        let Self { host, environment, .. } = self;
        let mut unmet = Vec::new();
        let mut seen = BTreeSet::new();
        let is_of_rocm = |name: &str| name == "rocm" || name.starts_with("rocm-");
        let pinned = host.pinned(&BTreeSet::new());
        let hosts = pinned.iter().filter(|required| is_of_rocm(&required.name));
        let mut next: Vec<(Required, &Distribution)> = needed
            .required
            .iter()
            .chain(&needed.families)
            .chain(hosts)
            .cloned()
            .map(|required| (required, *host))
            .collect();
        next.reverse();
        while let Some((required, by)) = next.pop() {
            if !seen.insert(required.clone()) {
                continue;
            }
            let by_text = format!("{} {}", by.name, by.version);
            match environment.installed.get(&required.name) {
                Some(installed) if required.is_met_by(installed) => {
                    // Only what belongs to the device code: others are none of kpack's business.
                    let pins = installed.pinned(&required.extras).into_iter().filter(|pin| {
                        pin.device_target().is_some()
                            || pin.name == host.name
                            || is_of_rocm(&pin.name)
                    });
                    next.extend(pins.map(|pin| (pin, installed)));
                }
                Some(installed) => {
                    let text = format!(
                        "{by_text} needs {required}, but {} {} is installed",
                        installed.name, installed.version
                    );
                    unmet.push((ids::DEVICE_WHEEL_VERSION, text));
                }
                None => {
                    let text = format!("{by_text} needs {required}");
                    unmet.push(match required.device_target() {
                        None => {
                            let text = format!("{text}, which is not installed");
                            (ids::HOST_WHEEL_MISSING, text)
                        }
                        Some(target)
                            if target.package_owner().plain() != gpu.package_owner().plain() =>
                        {
                            let text = format!(
                                "{text} on {gpu}, for what its family {} shares, but it is not installed",
                                target.plain_name()
                            );
                            (ids::FAMILY_WHEEL_MISSING, text)
                        }
                        Some(_) => match self.siblings(&required) {
                            others if others.is_empty() => {
                                let text = format!("{text} on {gpu}, which is not installed");
                                (ids::DEVICE_WHEEL_MISSING, text)
                            }
                            others => {
                                let text = format!(
                                    "{text} on {gpu}, but only {} is installed",
                                    list(others)
                                );
                                (ids::DEVICE_WHEEL_OTHER_GPU, text)
                            }
                        },
                    });
                }
            }
        }
        unmet
    }

    /// The installed device wheels that differ from `required` in the GPU alone.
    fn siblings(&self, required: &Required) -> Vec<String> {
        let stem = |name: &str| name.rsplit_once("-device-").map(|(stem, _)| stem.to_owned());
        let installed = self.environment.installed.distributions.iter();
        let siblings = installed.filter(|other| {
            let target = other.device_target();
            let is_of_family = target.is_some_and(|target| {
                TargetId::family(target.processor()).is_some() || target.is_generic()
            });
            other.device_target().is_some()
                && !is_of_family
                && stem(&other.name) == stem(&required.name)
        });
        siblings.map(|other| other.name.clone()).collect()
    }
}

impl PythonEnvironment {
    /// The command that installs what is `wanted`.
    fn install(&self, wanted: &WantedDistributions) -> Option<Remedy> {
        let mut words = Vec::new();
        let mut hosts = Vec::new();
        for (name, extras) in &wanted.extras {
            let host = self.installed.get(name)?;
            let extras = Vec::from_iter(extras.iter().map(String::as_str)).join(",");
            words.push(format!("{name}[{extras}]=={}", host.version));
            hosts.push(host);
        }
        words.extend(wanted.others.iter().map(Required::to_string));
        self.installer.install(&hosts, words)
    }

    /// The diagnosis with this command, or with what to do if there is none.
    fn mended(&self, mut diagnosis: Diagnosis, remedy: Option<Remedy>) -> Diagnosis {
        if let (None, Some(help)) = (&remedy, self.installer.advice()) {
            diagnosis.finding.help.get_or_insert(help);
        }
        diagnosis.mended_by(remedy)
    }

    /// The archives that are not as they were installed.
    fn damaged(&self) -> Vec<Diagnosis> {
        let names: BTreeSet<&String> = self.damaged.iter().map(|(name, ..)| name).collect();
        let all = names
            .iter()
            .filter_map(|name| self.installed.get(name))
            .filter(|own| again_from_elsewhere(own).is_none());
        let remedy = self.installer.reinstall(&Vec::from_iter(all), &[]);
        let found = names.into_iter().filter_map(|name| {
            let own = self.installed.get(name)?;
            let files = Vec::from_iter(self.damaged.iter().filter(|(other, ..)| other == name));
            let (_, path, why) = files.first()?;
            let more = match files.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more of its files are not as RECORD lists them"),
            };
            let file = if is_archive(path) { "archive" } else { "library" };
            let text = format!(
                "{name} {} is installed, but its {file} {} {why}{more}",
                own.version,
                shown(path)
            );
            let root = &self.installed.root;
            let finding = Finding::new(Severity::Fault, ids::DEVICE_WHEEL_DAMAGED, root, text);
            Some(match again_from_elsewhere(own) {
                Some(help) => finding.with_help(help).into(),
                None => self.mended(finding.into(), remedy.clone()),
            })
        });
        found.collect()
    }

    /// ROCm's loader follows a link to a library, and looks for archives beside the real file. uv can install so.
    fn links(&self, processes: &[Process]) -> Option<Diagnosis> {
        let misses = |binary: &&Binary| {
            let mut code = binary.code.iter();
            code.any(|(_, code)| matches!(code, CodeForGpu::Fault(ids::ROCM_LOADER, ..)))
        };
        let binaries = processes.iter().flat_map(|process| &process.binaries).filter(misses);
        let owners: BTreeSet<&String> = binaries
            .filter_map(|binary| self.owners.get(&binary.path))
            .filter(|owner| self.linked.contains(*owner))
            .collect();
        if owners.is_empty() || self.installer.is_pip() {
            return None;
        }
        let names = list(owners.iter());
        let text = format!(
            "the libraries of {names} are links into a cache, where ROCm's loader finds no code"
        );
        let linked =
            Vec::from_iter(owners.into_iter().filter_map(|owner| self.installed.get(owner)));
        let remedy = self.installer.reinstall(&linked, &["--link-mode", "copy"]);
        let root = &self.installed.root;
        let mut finding = Finding::new(Severity::Fault, ids::ROCM_LOADER, root, text);
        let elsewhere = Vec::from_iter(linked.into_iter().filter_map(again_from_elsewhere));
        if !elsewhere.is_empty() {
            let help = format!("with `--link-mode copy`, {}", elsewhere.join("; and "));
            finding = finding.with_help(help);
        }
        Some(Diagnosis::from(finding).mended_by(remedy))
    }

    /// More than one HIP runtime: a process that loads both has two, and each sees the other's code as foreign.
    fn several_runtimes(&self, processes: &[Process], machine: &Machine) -> Vec<Diagnosis> {
        let root = &self.installed.root;
        let mut found = Vec::new();
        let own: BTreeSet<&String> = self.runtimes.iter().map(|(name, _)| name).collect();
        if own.len() > 1 {
            let text = format!("{} each contain a HIP runtime", list(own.iter()));
            let help = "a process that imports several of them has two runtimes; install builds that share one";
            let finding = Finding::new(Severity::Warning, ids::TWO_RUNTIMES, root, text);
            found.push(finding.with_help(help).into());
        }
        let foreign = processes.iter().find_map(|process| match &process.runtime {
            Runtime::Found(hip) if !hip.path.starts_with(root) && !own.is_empty() => {
                Some((process, hip))
            }
            _ => None,
        });
        if let Some((process, hip)) = foreign {
            let text = format!(
                "{} gets the HIP runtime {} instead of the environment's, which is from {}",
                shown(&process.file),
                shown(&hip.path),
                list(own.iter())
            );
            let help = match &machine.linker_variables[..] {
                [] => "install a build for the environment's runtime".to_owned(),
                set => format!("unset {}", list(set)),
            };
            let finding = Finding::new(Severity::Fault, ids::TWO_RUNTIMES, root, text);
            found.push(finding.with_help(help).into());
        }
        found
    }
}
