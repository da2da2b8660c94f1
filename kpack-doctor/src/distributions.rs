//! Judges the distributions of an environment: does each GPU have the device wheels that it needs? Reads nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::environment::{Installer, PythonEnvironment};
use super::facts::{Binary, Code, Process, Runtime};
use super::image;
use super::index::{self, Sources};
use super::machine::Machine;
use super::remedy::{Diagnosis, Remedy, masked, word};
use kpack_core::words::list;
use kpack_core::{Finding, Id, Severity, ids, shown};
use kpack_format::names::is_archive;
use kpack_format::{Delivery, TargetId};
use kpack_wheel::{Distribution, Needed, Required};

/// What is to be installed: the extras of each host, and other distributions.
#[derive(Default)]
struct Wanted {
    extras: BTreeMap<String, BTreeSet<String>>,
    others: BTreeSet<Required>,
}

/// The findings about an environment, whose binaries with device code are in `processes`.
pub(super) fn judge(
    environment: &PythonEnvironment,
    processes: &[Process],
    machine: &Machine,
) -> Vec<Diagnosis> {
    let mut wanted = Wanted::default();
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
    diagnoses.extend(environment.several_runtimes(processes));
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
    fn for_gpu(&self, gpu: &TargetId, wanted: &mut Wanted) -> Vec<Diagnosis> {
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
            let usable = usable.join(" or ");
            let help = format!("install a version of {} with code for {usable}", host.name);
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

/// The directories of the wheels from which distributions were installed that did not come from an index, and what to say
/// about each of these.
fn origins(distributions: &[&Distribution]) -> (BTreeSet<String>, Vec<String>) {
    let (mut links, mut cautions) = (BTreeSet::new(), Vec::new());
    for Distribution { name, origin, .. } in distributions {
        let Some(origin) = origin else { continue };
        links.extend(directory_of_wheel(origin));
        let shown = masked(origin);
        cautions.push(format!("{name} was installed from {shown}, not from an index"));
    }
    (links, cautions)
}

/// The directory of a wheel with this URL, if an installer can look for it there.
fn directory_of_wheel(origin: &str) -> Option<String> {
    let path = origin.strip_prefix("file://").filter(|path| !path.starts_with("//"))?;
    let path = std::path::Path::new(path);
    let is_wheel = path.extension().is_some_and(|ending| ending == "whl");
    let directory = path.parent().filter(|_| is_wheel && path.is_absolute())?;
    word(directory).filter(|path| !path.contains('%'))
}

/// What to do to install a distribution again that came neither from an index nor from a directory of wheels. An index may
/// have another project of that name, so there is no command.
pub(super) fn again_from_elsewhere(own: &Distribution) -> Option<String> {
    let origin = own.origin.as_ref().filter(|origin| directory_of_wheel(origin).is_none())?;
    Some(format!("install {} again from {}", own.name, masked(origin)))
}

impl PythonEnvironment {
    /// The command that installs what is `wanted`.
    fn install(&self, wanted: &Wanted) -> Option<Remedy> {
        let mut words = Vec::new();
        let mut hosts = Vec::new();
        for (name, extras) in &wanted.extras {
            let host = self.installed.get(name)?;
            let extras = Vec::from_iter(extras.iter().map(String::as_str)).join(",");
            words.push(format!("{name}[{extras}]=={}", host.version));
            hosts.push(host);
        }
        let (links, mut cautions) = origins(&hosts);
        words.extend(wanted.others.iter().map(Required::to_string));
        if words.is_empty() {
            return None;
        }
        let first = wanted.extras.keys().next().map_or("", String::as_str);
        if links.is_empty() {
            cautions.extend(self.sources.caution(first));
        }
        for directory in links {
            words.extend(["--find-links".to_owned(), directory]);
        }
        let is_inherited =
            |name: &String| self.installed.get(name).is_some_and(|own| own.is_inherited);
        if self.installer == Installer::Pip && wanted.extras.keys().any(is_inherited) {
            // Code that is installed here is not beside the libraries of the base Python.
            words.push("--ignore-installed".to_owned());
        }
        let remedy = match &self.installer {
            Installer::UvProject(_) => self.command("add", words),
            _ => self.command("install", words),
        };
        let caution = (!cautions.is_empty()).then(|| cautions.join("; "));
        Some(remedy?.with_caution(caution))
    }

    /// The diagnosis with this command, or with what to do if there is none.
    fn mended(&self, mut diagnosis: Diagnosis, remedy: Option<Remedy>) -> Diagnosis {
        if let (None, Installer::Other(help)) = (&remedy, &self.installer) {
            diagnosis.finding.help.get_or_insert_with(|| help.clone());
        }
        diagnosis.mended_by(remedy)
    }

    /// A command of the program that installs things here.
    pub(super) fn command(&self, action: &str, words: Vec<String>) -> Option<Remedy> {
        self.command_of(&self.installer, &self.sources, action, words)
    }

    fn command_of(
        &self,
        installer: &Installer,
        sources: &Sources,
        action: &str,
        words: Vec<String>,
    ) -> Option<Remedy> {
        let root = &self.installed.root;
        let mut all: Vec<String> = Vec::new();
        let program = match installer {
            Installer::Pip => {
                if !self.is_default {
                    all.extend(["--python".to_owned(), word(root)?]);
                }
                all.push(action.to_owned());
                "pip"
            }
            Installer::Uv => {
                all.extend(["pip", action].map(str::to_owned));
                if !self.is_default {
                    all.extend(["--python".to_owned(), word(root)?]);
                }
                "uv"
            }
            Installer::Other(_) => return None,
            Installer::UvProject(project) => {
                all.push(action.to_owned());
                let is_here = std::env::current_dir().is_ok_and(|here| here == *project);
                if !is_here {
                    all.extend(["--project".to_owned(), word(project)?]);
                }
                "uv"
            }
        };
        all.extend(words);
        if action != "uninstall" && !matches!(installer, Installer::UvProject(_)) {
            all.extend(sources.arguments());
        }
        Remedy::new(program, all)
    }

    /// The archives that are not as they were installed.
    fn damaged(&self) -> Vec<Diagnosis> {
        let names: BTreeSet<&String> = self.damaged.iter().map(|(name, ..)| name).collect();
        let all = names.iter().filter_map(|name| self.installed.get(name));
        let all = all.filter(|own| again_from_elsewhere(own).is_none());
        let remedy = self.reinstall(&Vec::from_iter(all), &[]);
        let found = names.into_iter().filter_map(|name| {
            let own = self.installed.get(name)?;
            let files = self.damaged.iter().filter(|(other, ..)| other == name);
            let files = Vec::from_iter(files);
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

    /// The command that installs these distributions again, without others. Also in a project of uv, it is one of `uv pip`:
    /// `uv sync` would uninstall what the project does not ask for by default, such as extras. `None` if one of them
    /// came [from elsewhere](again_from_elsewhere).
    pub(super) fn reinstall(
        &self,
        distributions: &[&Distribution],
        options: &[&str],
    ) -> Option<Remedy> {
        if distributions.iter().any(|own| again_from_elsewhere(own).is_some()) {
            return None;
        }
        let first = distributions.first()?;
        let of_lock;
        let (installer, flags, sources) = match &self.installer {
            Installer::Other(_) => return None,
            Installer::Pip => (&Installer::Pip, "--force-reinstall", &self.sources),
            Installer::Uv => (&Installer::Uv, "--reinstall", &self.sources),
            Installer::UvProject(project) => {
                let names = Vec::from_iter(distributions.iter().map(|own| own.name.as_str()));
                of_lock = index::of_lock(&self.installed.root, project, &names, self.is_default);
                (&Installer::Uv, "--reinstall", &of_lock)
            }
        };
        let flags = [flags, "--no-deps"];
        let mut words: Vec<String> = flags.iter().chain(options).map(|&word| word.into()).collect();
        words.extend(distributions.iter().map(|own| format!("{}=={}", own.name, own.version)));
        let (links, mut cautions) = origins(distributions);
        if links.is_empty() {
            cautions.extend(sources.caution(&first.name));
        }
        words
            .extend(links.into_iter().flat_map(|directory| ["--find-links".to_owned(), directory]));
        let caution = (!cautions.is_empty()).then(|| cautions.join("; "));
        Some(self.command_of(installer, sources, "install", words)?.with_caution(caution))
    }

    /// ROCm's loader follows a link to a library, and looks for archives beside the real file. uv can install so.
    fn links(&self, processes: &[Process]) -> Option<Diagnosis> {
        let misses = |binary: &&Binary| {
            let mut code = binary.code.iter();
            code.any(|(_, code)| matches!(code, Code::Fault(ids::ROCM_LOADER, ..)))
        };
        let binaries = processes.iter().flat_map(|process| &process.binaries).filter(misses);
        let owners: BTreeSet<&String> = binaries
            .filter_map(|binary| self.owners.get(&binary.path))
            .filter(|owner| self.linked.contains(*owner))
            .collect();
        if owners.is_empty() || self.installer == Installer::Pip {
            return None;
        }
        let names = list(owners.iter());
        let text = format!(
            "the libraries of {names} are links into a cache, where ROCm's loader finds no code"
        );
        let owners = owners.into_iter().filter_map(|owner| self.installed.get(owner));
        let owners = Vec::from_iter(owners);
        let remedy = self.reinstall(&owners, &["--link-mode", "copy"]);
        let root = &self.installed.root;
        let mut finding = Finding::new(Severity::Fault, ids::ROCM_LOADER, root, text);
        let elsewhere = Vec::from_iter(owners.into_iter().filter_map(again_from_elsewhere));
        if !elsewhere.is_empty() {
            let help = format!("with `--link-mode copy`, {}", elsewhere.join("; and "));
            finding = finding.with_help(help);
        }
        Some(Diagnosis::from(finding).mended_by(remedy))
    }

    /// More than one HIP runtime: a process that loads both has two, and each sees the other's code as foreign.
    fn several_runtimes(&self, processes: &[Process]) -> Vec<Diagnosis> {
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
            let variables = ["LD_LIBRARY_PATH", "LD_PRELOAD"];
            let is_set = |name: &&str| image::variable(name).is_some_and(|value| !value.is_empty());
            let help = match Vec::from_iter(variables.into_iter().filter(is_set)) {
                set if set.is_empty() => "install a build for the environment's runtime".to_owned(),
                set => format!("unset {}", list(set)),
            };
            let finding = Finding::new(Severity::Fault, ids::TWO_RUNTIMES, root, text);
            found.push(finding.with_help(help).into());
        }
        found
    }
}
