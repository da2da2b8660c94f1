//! Judges what was found. Reads nothing.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::{Delivery, Generic, TargetId};
use rocm_kpack::GPU_OVERRIDE;

use super::facts::{Binary, Code, Form, HipRuntime, Join, Loader, Process, Runtime};
use super::machine::{Machine, ON_WINDOWS};
use super::remedy::{Diagnosis, Remedy, word};
use super::restore::{AllLost, Lost};
use kpack_core::words::{list, list_some};
use kpack_core::{Finding, Severity, ids};

/// The most names in one message.
const MOST_NAMES: usize = 5;

/// All findings about processes: the code of each binary, then the HIP runtimes. `all_lost` is what trim removed.
pub(super) fn judge(
    machine: &Machine,
    processes: &[Process],
    all_lost: &AllLost,
) -> Vec<Diagnosis> {
    let mut findings = Vec::new();
    for process in processes {
        for binary in &process.binaries {
            of_binary(binary, process, machine, all_lost, &mut findings);
            of_databases(binary, machine, all_lost, &mut findings);
        }
    }
    for group in Processes::all(processes, machine) {
        group.judge(machine, &mut findings);
    }
    // Two programs may load the same library.
    let mut distinct: Vec<Diagnosis> = Vec::new();
    for finding in findings {
        if !distinct.contains(&finding) {
            distinct.push(finding);
        }
    }
    distinct
}

/// The findings about the machine and its variables.
pub(super) fn of_machine(machine: &Machine) -> Vec<Diagnosis> {
    let mut findings: Vec<Finding> = Vec::new();
    match &machine.all {
        _ if machine.asked => {}
        Some(gpus) if !gpus.is_empty() && !machine.access.has_device => {
            let text = format!(
                "the kernel lists {}, but programs cannot use it because /dev/kfd does not exist",
                list(machine.to_join())
            );
            let fault = Finding::general(Severity::Fault, ids::NO_DEVICE_ACCESS, text);
            findings.push(fault.with_help(of_container(machine)));
        }
        Some(gpus) if !gpus.is_empty() && !machine.access.may_use_device => {
            let text = "programs see no GPU because this user may not read and write /dev/kfd";
            let help = if machine.access.is_container {
                of_container(machine)
            } else {
                "add the user to the group that owns /dev/kfd (`render` or `video`), and log in again"
            };
            let fault = Finding::general(Severity::Fault, ids::NO_DEVICE_ACCESS, text);
            findings.push(fault.with_help(help));
        }
        None => findings.push(of_no_gpu(machine)),
        Some(gpus) if gpus.is_empty() => findings.push(of_no_gpu(machine)),
        Some(_) => {
            let all = list(machine.to_join());
            let variables = list(&machine.hidden_by);
            findings.push(match (machine.hidden_by.is_empty(), machine.seen.as_slice()) {
                (true, _) => {
                    Finding::general(Severity::Ok, ids::GPUS, format!("this machine has {all}"))
                }
                (false, []) => {
                    let text =
                        format!("this machine has {all}, but programs see no GPU: {variables}");
                    let advice = format!("unset {variables}");
                    Finding::general(Severity::Fault, ids::HIDDEN_GPUS, text).with_help(advice)
                }
                (false, seen) => {
                    let text = format!(
                        "this machine has {all}; programs see only {}: {variables}",
                        list(seen)
                    );
                    Finding::general(Severity::Note, ids::HIDDEN_GPUS, text)
                }
            });
        }
    }
    if machine.environment.disable {
        let text = "ROCM_KPACK_DISABLE is set, so the loader finds no code";
        findings.push(
            Finding::general(Severity::Fault, ids::LOADER_DISABLED, text)
                .with_help("unset ROCM_KPACK_DISABLE"),
        );
    }
    if !machine.environment.path.is_empty() {
        let text =
            "ROCM_KPACK_PATH is set, so the loader searches there instead of the markers' paths";
        findings.push(Finding::general(Severity::Note, ids::SEARCH_PATHS_SET, text));
    } else if !machine.environment.path_prefix.is_empty() {
        let text = "ROCM_KPACK_PATH_PREFIX is set, so the loader searches there first";
        findings.push(Finding::general(Severity::Note, ids::SEARCH_PATHS_SET, text));
    }
    findings.into_iter().map(Diagnosis::from).collect()
}

/// The finding about a [`GPU_OVERRIDE`], which replaces the `native` GPUs. Whether less is wrong without it.
pub(super) fn of_override(machine: &Machine, native: &[TargetId], helps: bool) -> Diagnosis {
    let (gpus, native) = (list(machine.gpus()), list(native));
    let text = format!("{GPU_OVERRIDE} makes programs ask for {gpus} instead of {native}");
    if helps {
        let text = format!("{text}, and there is code for {native}");
        let fault = Finding::general(Severity::Fault, ids::GPU_OVERRIDDEN, text);
        fault.with_help(format!("unset {GPU_OVERRIDE}")).into()
    } else {
        let text = format!("{text}: builds for {native} alone do not load with it");
        Finding::general(Severity::Note, ids::GPU_OVERRIDDEN, text).into()
    }
}

/// The finding where no GPU is known: nothing loads on a machine without one.
fn of_no_gpu(machine: &Machine) -> Finding {
    let access = &machine.access;
    let fault = |id, text: &str| Finding::general(Severity::Fault, id, text);
    if cfg!(windows) {
        let note = Finding::general(Severity::Note, ids::NO_GPU, ON_WINDOWS);
        note.with_help("specify its GPU with --arch")
    } else if access.is_wsl && !access.has_device {
        let text = "this is WSL (/dev/dxg), where kpack cannot detect the GPU, and only ROCm for WSL can use it";
        fault(ids::NO_DRIVER, text)
            .with_help("install ROCm for WSL, and specify the GPU with --arch to check its code")
    } else if access.has_adapter && machine.all.is_none() {
        let text = "this machine has an AMD GPU, but the amdgpu driver does not offer it for computing (KFD)";
        fault(ids::NO_DRIVER, text).with_help("load or install the driver: `modprobe amdgpu`")
    } else if access.is_container {
        let text = "no GPU reaches this container";
        fault(ids::NO_DEVICE_ACCESS, text).with_help(of_container(machine))
    } else if machine.all.is_none() {
        let text = "cannot detect this machine's GPUs: there is none, or the amdgpu driver (KFD) is missing or too old";
        fault(ids::NO_GPU, text).with_help("specify the GPU with --arch to check its code")
    } else {
        let text = "this machine has no GPU that ROCm can use";
        fault(ids::NO_GPU, text).with_help("specify a GPU with --arch to check its code")
    }
}

/// What to do where a GPU of the machine is not in the container.
fn of_container(machine: &Machine) -> &'static str {
    if machine.access.is_container {
        "start the container with `--device /dev/kfd --device /dev/dri --group-add render`"
    } else {
        "load the driver amdgpu again, or give this container or sandbox /dev/kfd and /dev/dri"
    }
}

/// Reports kernel databases without files for a GPU, or for a family that it is in, and those that cannot be listed.
fn of_databases(
    binary: &Binary,
    machine: &Machine,
    all_lost: &AllLost,
    findings: &mut Vec<Diagnosis>,
) {
    for (gpu, database) in binary.lacking_databases(machine) {
        let families = gpu.families().map(|family| family.plain_name().to_owned());
        let named = Vec::from_iter([gpu.processor().to_owned()].into_iter().chain(families));
        let text = format!(
            "the kernel database {} has no files for {}, only for {}",
            database.name,
            named.join(" or "),
            list(&database.targets)
        );
        let help = format!("install the package with its files for {}", gpu.processor());
        let note = Finding::new(Severity::Note, ids::MISSING_TARGET, &database.directory, text);
        let lost = all_lost.get(&(database.directory.clone(), gpu.clone()));
        findings.push(explained(note.with_help(help).into(), lost));
    }
    let unlisted = binary.unlisted.iter().cloned();
    findings.extend(unlisted.map(|finding| Diagnosis::from(finding).leaving_open()));
}

/// The same, with what trim removed, and what brings it back.
fn explained(mut diagnosis: Diagnosis, lost: Option<&Lost>) -> Diagnosis {
    let Some(Lost { text, help, remedy }) = lost else { return diagnosis };
    diagnosis.finding.text.push_str(&format!("; {text}"));
    diagnosis.finding.help = Some(help.clone());
    diagnosis.mended_by(remedy.clone())
}

fn of_binary(
    binary: &Binary,
    process: &Process,
    machine: &Machine,
    all_lost: &AllLost,
    findings: &mut Vec<Diagnosis>,
) {
    let lost = |gpu: &TargetId| all_lost.get(&(binary.path.clone(), gpu.clone()));
    let path = binary.path.as_path();
    let form = match &binary.form {
        Form::Damaged(id, reason) => {
            let damaged = Finding::new(Severity::Fault, *id, path, reason);
            return findings.push(damaged.with_help("install it again").into());
        }
        Form::EarlyMarker => {
            let text = "the marker is in the early plain-text form, which names no kernels; whether it \
                        has code is unknown";
            let note = Finding::new(Severity::Note, ids::EARLY_MARKER, path, text);
            return findings.push(Diagnosis::from(note).leaving_open());
        }
        Form::Fat => "not split",
        Form::Joined => "joined",
        Form::Split if binary.has_shim => "split, linked with the shim",
        Form::Split => "split",
    };
    let has = binary.code.iter().filter(|(_, code)| code.is_here());
    let supported: Vec<String> = has.map(|(gpu, _)| gpu.to_string()).collect();
    if !supported.is_empty() {
        let (targets, through) = (list(&supported), &binary.found_through);
        let text = format!("{form}, with code for {targets}{through}");
        findings.push(Finding::new(Severity::Ok, ids::CODE_FOUND, path, text).into());
    }
    let wants_all = matches!(&process.runtime, Runtime::Found(hip) if hip.wants_all());
    let loses_all = wants_all && !supported.is_empty();
    // Many machines have a second GPU that nobody computes with.
    let outcome = if supported.is_empty() || machine.asked || loses_all {
        Severity::Fault
    } else {
        Severity::Note
    };
    findings.extend(binary.code.iter().filter_map(|(gpu, code)| match code {
        Code::Here => None,
        Code::Doubtful(text, advice) => {
            let text = format!("{form}, but {text}");
            let note = Finding::new(Severity::Note, ids::ROCM_LOADER, path, text);
            Some(note.with_help(advice).into())
        }
        Code::Fault(id, text, advice) => {
            let text = format!("{form}, but {text}");
            let fault = Finding::new(Severity::Fault, *id, path, text).with_help(advice);
            Some(explained(fault.into(), lost(gpu).filter(|_| code.is_missing())))
        }
        Code::Nowhere(known) | Code::Unlisted(known, _) => match generic(&binary.form, known, gpu) {
            Ok(Some(Generic { target, since })) => {
                let text = format!(
                    "{form}, without code for {gpu}; HIP runtimes accept its code for {} from {since} on",
                    target.processor()
                );
                Some(Finding::new(Severity::Note, ids::GENERIC_CODE, path, text).into())
            }
            Ok(None) if let Code::Unlisted(_, places) = code => {
                let mut text = format!(
                    "{form}, but the archive for {gpu} is missing: looked for `{}`",
                    Vec::from_iter(places.iter().map(|place| place.display().to_string())).join("`, `")
                );
                if !known.is_empty() {
                    text.push_str(&format!("; there are archives for {}", list(known)));
                }
                let advice = "install the package that contains it";
                let found = Finding::new(outcome, ids::MISSING_ARCHIVE, path, text);
                Some(explained(found.with_help(advice).into(), lost(gpu)))
            }
            found => {
                let mut text = if known.is_empty() {
                    format!("{form}, without any device code")
                } else {
                    let known = list(known);
                    format!("{form}, without code for {gpu}: only for {known}")
                };
                if let Err(why) = found {
                    text.push_str(&format!(" ({why})"));
                }
                let mut remedy = None;
                let mut advice = match (&binary.form, &binary.join) {
                    (Form::Joined, Some(Join::Gives(gpus))) if gpus.contains(gpu) => {
                        remedy = join(&[binary], machine);
                        advice_of(remedy.as_ref())
                    }
                    (Form::Joined, Some(Join::Refused(why))) => {
                        format!("install code for {gpu}; `kpack join` refuses: {why}")
                    }
                    _ => format!("install a build with code for {gpu}"),
                };
                if loses_all {
                    text.push_str("; this HIP runtime (ROCm 5) then loads it for no GPU");
                    if !machine.asked {
                        let visible = positions(machine, &supported);
                        advice.push_str(&format!(
                            "; or hide {gpu} with ROCR_VISIBLE_DEVICES={visible}"
                        ));
                    }
                }
                let found = Finding::new(outcome, ids::MISSING_TARGET, path, text);
                let found = Diagnosis::from(found.with_help(advice)).mended_by(remedy);
                Some(explained(found, lost(gpu)))
            }
        },
    }));
}

/// The generic target among the `known` ones whose code a HIP runtime takes for `gpu`; or why it takes none, if
/// there is generic code for this generation.
fn generic(
    form: &Form,
    known: &BTreeSet<String>,
    gpu: &TargetId,
) -> Result<Option<Generic>, String> {
    let delivery = match form {
        Form::Split => Delivery::Archive,
        _ => Delivery::Bundle,
    };
    let known: Vec<TargetId> = known.iter().filter_map(|id| id.parse().ok()).collect();
    if known.iter().any(|id| id.is_generic_for(gpu, delivery)) {
        return Ok(gpu.generic(delivery));
    }
    let mut why = known.iter().filter_map(|id| gpu.why_not_generic(id, delivery));
    why.next().map_or(Ok(None), Err)
}

/// The positions of these GPUs among all, as variables list them.
fn positions(machine: &Machine, gpus: &[String]) -> String {
    let all = machine.all.iter().flatten().enumerate();
    let positions = all.filter(|(_, gpu)| gpus.contains(&gpu.to_string()));
    Vec::from_iter(positions.map(|(position, _)| position.to_string())).join(",")
}

/// Processes with the same HIP runtime, and those of their split binaries that it must find code for and that
/// the same command fixes.
struct Processes<'a> {
    runtime: &'a Runtime,
    shim: Option<&'a Path>,
    prefix: Option<&'a Path>,
    join_refuses: Option<&'a String>,
    files: Vec<&'a Path>,
    split: Vec<&'a Binary>,
}

impl<'a> Processes<'a> {
    fn all(processes: &'a [Process], machine: &Machine) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for process in processes {
            let split = process.binaries.iter();
            let split = split.filter(|binary| process.must_find(binary, machine.shim_mode));
            let mut split = split.map(Some).peekable();
            let none = split.peek().is_none().then_some(None);
            for binary in split.chain(none) {
                let group = Self {
                    runtime: &process.runtime,
                    shim: process.shim.as_deref(),
                    prefix: binary.map(|binary| binary.prefix.as_path()),
                    join_refuses: match binary.and_then(|binary| binary.join.as_ref()) {
                        Some(Join::Refused(reason)) => Some(reason),
                        _ => None,
                    },
                    files: Vec::new(),
                    split: Vec::new(),
                };
                let known = groups.iter().position(|known| known.is_like(&group));
                let at = known.unwrap_or(groups.len());
                groups.extend(known.is_none().then_some(group));
                if !groups[at].files.contains(&process.file.as_path()) {
                    groups[at].files.push(&process.file);
                }
                groups[at].split.extend(binary);
            }
        }
        groups
    }

    fn is_like(&self, other: &Self) -> bool {
        self.runtime == other.runtime
            && self.shim == other.shim
            && self.prefix == other.prefix
            && self.join_refuses == other.join_refuses
    }

    fn judge(&self, machine: &Machine, findings: &mut Vec<Diagnosis>) {
        let files = names(&self.files);
        let finding = |outcome, id, text: String| Finding::general(outcome, id, text);
        let diagnosis = match self.runtime {
            Runtime::Unknown(why) => {
                let text = format!("the HIP runtime of {files} is unknown: {why}");
                let note = finding(Severity::Note, ids::UNKNOWN_RUNTIME, text)
                    .with_help("run `kpack doctor` for the program, in the system where it runs");
                return findings.push(Diagnosis::from(note).leaving_open());
            }
            Runtime::Fails(why) => finding(
                Severity::Fault,
                ids::NOT_LOADABLE,
                format!("{files} cannot be loaded: {why}"),
            )
            .with_help("install the package of that file again"),
            Runtime::None => finding(
                Severity::Note,
                ids::UNKNOWN_RUNTIME,
                format!("{files} needs no HIP runtime itself"),
            )
            .with_help("run `kpack doctor` for the program, library or module that needs one"),
            Runtime::Missing(name) => finding(
                Severity::Fault,
                ids::MISSING_LIBRARY,
                format!("{files} needs {name}, which was not found"),
            )
            .with_help("install ROCm's HIP runtime, or add its directory to LD_LIBRARY_PATH"),
            Runtime::Found(hip) => {
                findings.push(self.of_runtime(hip, machine));
                if let Some(Loader::Kpack(_) | Loader::Rocm(_)) = hip.loader {
                    findings.extend(self.of_several_gpus(hip, machine));
                }
                return;
            }
        };
        findings.push(diagnosis.into());
    }

    fn of_runtime(&self, hip: &HipRuntime, machine: &Machine) -> Diagnosis {
        let finding = |outcome, id, text: String| Finding::new(outcome, id, &hip.path, text);
        let loads = self.loads(&hip.path);
        let reads = |whose: &str, loader: &Path| {
            let loader = loader.display();
            let text =
                format!("this HIP runtime reads markers, with {whose} loader, {loader}{loads}");
            finding(Severity::Ok, ids::RUNTIME_READS_MARKERS, text)
        };
        Diagnosis::from(match &hip.loader {
            Some(Loader::Kpack(loader)) => reads("kpack's", loader),
            Some(Loader::Rocm(loader)) => reads("ROCm's", loader),
            Some(Loader::Missing(name)) => {
                let files = names(&self.files);
                let text = format!("the HIP runtime of {files} needs {name}, which was not found");
                finding(Severity::Fault, ids::MISSING_LIBRARY, text).with_help(
                    "install the loader (`librocm-kpack0`), or add its directory to LD_LIBRARY_PATH",
                )
            }
            None if self.split.is_empty() => {
                let text = match self.shim {
                    Some(shim) => format!("; {} finds the code for it", shim.display()),
                    None => ", and no binary here needs that".to_owned(),
                };
                let text = format!("this HIP runtime does not read markers{text}{loads}");
                finding(Severity::Ok, ids::MARKERS_NOT_NEEDED, text)
            }
            None => {
                let split = self.split.iter().map(|binary| binary.path.as_path());
                let split = names(&Vec::from_iter(split));
                let files = names(&self.files);
                let mut text =
                    format!("this HIP runtime does not read markers: it finds no code for {split}");
                let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
                let real_files = Vec::from_iter(self.files.iter().map(|file| real(file)));
                let is_loaded = |binary: &&Binary| !real_files.contains(&real(&binary.path));
                if self.split.iter().any(is_loaded) {
                    text.push_str(&format!(", which {files} loads"));
                }
                // Such binaries are here only if it is switched off.
                let has_shim =
                    self.shim.is_some() || self.split.iter().all(|binary| binary.has_shim);
                if has_shim {
                    text.push_str("; KPACK_HIP=off stops the shim");
                    let fault = finding(Severity::Fault, ids::SHIM_OFF, text);
                    return fault.with_help("unset KPACK_HIP").into();
                }
                let (advice, remedy) = self.remedy(machine);
                let fault = finding(Severity::Fault, ids::RUNTIME_IGNORES_MARKERS, text);
                return Diagnosis::from(fault.with_help(advice)).mended_by(remedy);
            }
        })
    }

    /// On machines with different GPUs, some runtimes get code for the first one alone.
    fn of_several_gpus(&self, hip: &HipRuntime, machine: &Machine) -> Option<Diagnosis> {
        let several = self.split.iter().find_map(|binary| {
            let has = binary.code.iter().filter(|(_, code)| code.is_here());
            let gpus: Vec<String> = has.map(|(gpu, _)| gpu.to_string()).collect();
            (gpus.len() > 1).then_some(gpus)
        })?;
        let (first, others) = several.split_first()?;
        let split = self.split.iter().map(|binary| binary.path.as_path());
        let split = names(&Vec::from_iter(split));
        let (outcome, text) = if hip.is_up_to_7_14() && !machine.asked {
            let text = "this HIP runtime asks for code once for all GPUs";
            (Severity::Fault, text)
        } else {
            let text = "HIP runtimes up to ROCm 7.14 ask for code once for all GPUs; if this one does, and \
                        a machine has several kinds";
            (Severity::Note, text)
        };
        let text = format!(
            "{text}: {split} gets code for {first} alone, and fails on {} (hipErrorNoBinaryForGpu)",
            list(others)
        );
        let shim = "set LD_PRELOAD to libkpack_hip.so, the shim, and KPACK_HIP to force";
        let remedy = self.join_refuses.is_none().then(|| join(&self.split, machine)).flatten();
        let advice = match self.join_refuses {
            None => format!("{}; or {shim}", advice_of(remedy.as_ref())),
            Some(reason) => format!("{shim}; `kpack join` refuses: {reason}"),
        };
        let found = Finding::new(outcome, ids::MIXED_GPUS, &hip.path, text);
        Some(Diagnosis::from(found.with_help(advice)).mended_by(remedy))
    }

    /// Who loads the HIP runtime at `path`, for the end of a message.
    fn loads(&self, path: &Path) -> String {
        match self.files.as_slice() {
            [file] if *file == path => String::new(),
            files => format!("; loaded by {}", names(files)),
        }
    }

    /// What to do about a HIP runtime that does not read markers.
    fn remedy(&self, machine: &Machine) -> (String, Option<Remedy>) {
        let shim = "set LD_PRELOAD to libkpack_hip.so, the shim";
        let mut code = self.split.iter().flat_map(|binary| &binary.code);
        let has_code = code.any(|(_, code)| code.is_here());
        let advice = match self.join_refuses {
            None if machine.to_join().is_empty() => {
                format!(
                    "{shim}; or run this again with `--arch GPU`, to see whether `kpack join` would help"
                )
            }
            None => {
                let remedy = join(&self.split, machine);
                return (advice_of(remedy.as_ref()), remedy);
            }
            Some(reason) if has_code => format!("{shim}; `kpack join` refuses: {reason}"),
            Some(reason) => {
                let gpus = list(machine.gpus());
                format!("install code for {gpus} first; `kpack join` refuses: {reason}")
            }
        };
        (advice, None)
    }
}

/// The command that joins binaries of one prefix for all GPUs.
fn join(binaries: &[&Binary], machine: &Machine) -> Option<Remedy> {
    let prefix = binaries.first().map_or(Path::new("."), |binary| &binary.prefix);
    let mut words: Vec<String> = ["join", "--prefix"].map(str::to_owned).into();
    words.push(word(prefix)?);
    for gpu in machine.to_join() {
        words.extend(["--arch".to_owned(), gpu.to_string()]);
    }
    let files = binaries.iter().map(|binary| {
        let file = binary.path.strip_prefix(prefix).unwrap_or(&binary.path);
        word(file)
    });
    let files: Vec<String> = files.collect::<Option<_>>()?;
    // What a tree names so is no option.
    words.extend(files.iter().any(|file| file.starts_with('-')).then(|| "--".to_owned()));
    words.extend(files);
    Remedy::new("kpack", words)
}

/// The advice to run a command that joins.
fn advice_of(join: Option<&Remedy>) -> String {
    match join {
        Some(remedy) => format!("run `{}`", remedy.command),
        None => "join it with `kpack join`".to_owned(),
    }
}

/// Paths, not too many.
fn names(paths: &[&Path]) -> String {
    list_some(paths.iter().map(|path| path.display()), MOST_NAMES)
}
