//! The findings about HIP runtimes and the processes that they serve.

use std::path::Path;

use kpack_core::words::{list, list_some};
use kpack_core::{Finding, Severity, ids};

use super::binaries::{advice_of, join};
use crate::facts::binary::{Binary, Join};
use crate::facts::machine::Machine;
use crate::facts::process::Process;
use crate::facts::runtime::{HipRuntime, Loader, Runtime};
use crate::remedy::{Diagnosis, Remedy};
use crate::system_libraries::is_dll;

/// The most names in one message.
const MOST_NAMES: usize = 5;

/// Processes with the same HIP runtime, and those of their split binaries that it must find code for and that
/// the same command fixes.
pub(super) struct Processes<'a> {
    runtime: &'a Runtime,
    shim: Option<&'a Path>,
    prefix: Option<&'a Path>,
    join_refuses: Option<&'a String>,
    /// One for each file.
    processes: Vec<&'a Process>,
    split: Vec<&'a Binary>,
}

impl<'a> Processes<'a> {
    pub(super) fn all(
        processes: impl Iterator<Item = &'a Process>,
        machine: &Machine,
    ) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for process in processes {
            let mut split = process
                .binaries
                .iter()
                .filter(|binary| process.must_find(binary, machine.shim_mode))
                .map(Some)
                .peekable();
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
                    processes: Vec::new(),
                    split: Vec::new(),
                };
                let known = groups.iter().position(|known| known.is_like(&group));
                let at = known.unwrap_or(groups.len());
                groups.extend(known.is_none().then_some(group));
                if !groups[at].processes.iter().any(|known| known.file == process.file) {
                    groups[at].processes.push(process);
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

    /// The names of the files.
    fn files(&self) -> String {
        names(&Vec::from_iter(self.processes.iter().map(|process| process.file.as_path())))
    }

    /// Whether these processes have device code, and load all of it themselves.
    fn load_themselves(&self) -> bool {
        self.processes.iter().all(|process| {
            let mut binaries = process.binaries.iter();
            binaries.len() > 0 && binaries.all(|binary| binary.loads_itself)
        })
    }

    pub(super) fn judge(&self, machine: &Machine, findings: &mut Vec<Diagnosis>) {
        let files = self.files();
        let finding = |outcome, id, text: String| Finding::general(outcome, id, text);
        let diagnosis = match self.runtime {
            Runtime::Unknown(why) => {
                let text = format!("the HIP runtime of {files} is unknown: {why}");
                let note = finding(Severity::Note, ids::UNKNOWN_RUNTIME, text)
                    .with_help("run `kpack doctor` for the program, in the system where it runs");
                return findings.push(Diagnosis::from(note).leaving_open());
            }
            Runtime::Provided(name) if self.split.is_empty() => finding(
                Severity::Ok,
                ids::MARKERS_NOT_NEEDED,
                format!(
                    "the system is to provide {name}, and no binary here needs one that reads markers"
                ),
            ),
            // Without names of files, so that it is the same for all.
            Runtime::Provided(name) => {
                let text = format!(
                    "the system must provide the HIP runtime ({name}), and the split binaries need that of ROCm 7.13 or newer"
                );
                let note = finding(Severity::Note, ids::NEWER_ROCM_NEEDED, text)
                    .with_help("for an older ROCm, run `kpack join`");
                return findings.push(Diagnosis::from(note).leaving_open());
            }
            Runtime::Fails(why) => finding(
                Severity::Fault,
                ids::NOT_LOADABLE,
                format!("{files} cannot be loaded: {why}"),
            )
            .with_help("install the package of that file again"),
            Runtime::None if self.load_themselves() => finding(
                Severity::Ok,
                ids::MARKERS_NOT_NEEDED,
                format!("{files} loads its modules itself, so any HIP runtime will do"),
            ),
            Runtime::None => finding(
                Severity::Note,
                ids::UNKNOWN_RUNTIME,
                format!("{files} needs no HIP runtime itself"),
            )
            .with_help("run `kpack doctor` for the program, library or module that needs one"),
            // The driver for Windows has one, which is not where kpack runs.
            Runtime::Missing(name) if is_dll(name) && !machine.is_confined && !cfg!(windows) => {
                let text = format!(
                    "{files} needs {name}, which is not in its directory; AMD's driver for Windows may contain it"
                );
                let note = finding(Severity::Note, ids::UNKNOWN_RUNTIME, text)
                    .with_help(beside(name, "the program"));
                return findings.push(Diagnosis::from(note).leaving_open());
            }
            Runtime::Missing(name) if is_dll(name) => finding(
                Severity::Fault,
                ids::MISSING_LIBRARY,
                format!("{files} needs {name}, which was not found"),
            )
            .with_help(beside(name, "the program")),
            Runtime::Missing(name) => finding(
                Severity::Fault,
                ids::MISSING_LIBRARY,
                format!("{files} needs {name}, which was not found"),
            )
            .with_help("install ROCm's HIP runtime, or add its directory to LD_LIBRARY_PATH"),
            Runtime::Found(hip) => {
                findings.push(self.of_runtime(hip, machine));
                findings.extend(of_functions(hip).map(Diagnosis::from));
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
            Some(Loader::Missing { name, other }) => {
                let files = self.files();
                let mut text =
                    format!("the HIP runtime of {files} needs {name}, which was not found");
                if let Some(other) = other {
                    text.push_str(&format!("; {} is another version", other.display()));
                }
                let help = if is_dll(name) {
                    let runtime = hip.path.file_name().unwrap_or_default().display().to_string();
                    beside(name, &runtime)
                } else if other.is_some() {
                    "use a HIP runtime and a loader (`librocm_kpack`) from the same ROCm".to_owned()
                } else {
                    "install the loader (`librocm-kpack0`), or add its directory to LD_LIBRARY_PATH"
                        .to_owned()
                };
                finding(Severity::Fault, ids::MISSING_LIBRARY, text).with_help(help)
            }
            None if self.split.is_empty() => {
                let besides = match self.shim {
                    Some(shim) => format!("; {} finds the code for it", shim.display()),
                    None => ", and no binary here needs that".to_owned(),
                };
                let text = format!("this HIP runtime does not read markers{besides}{loads}");
                finding(Severity::Ok, ids::MARKERS_NOT_NEEDED, text)
            }
            None => {
                let paths = self.split.iter().map(|binary| binary.path.as_path());
                let split = names(&Vec::from_iter(paths));
                let files = self.files();
                let mut text =
                    format!("this HIP runtime does not read markers: it finds no code for {split}");
                let is_itself = |binary: &Binary| {
                    self.processes.iter().any(|process| process.real == binary.real)
                };
                if !self.split.iter().all(|binary| is_itself(binary)) {
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
        let paths = self.split.iter().map(|binary| binary.path.as_path());
        let split = names(&Vec::from_iter(paths));
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
        match self.processes.as_slice() {
            [process] if process.file == path => String::new(),
            _ => format!("; loaded by {}", self.files()),
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

/// A loader that lacks functions which the HIP runtime calls is of another version.
fn of_functions(hip: &HipRuntime) -> Option<Finding> {
    let loader = hip.loader.as_ref()?.path()?;
    if hip.lacking.is_empty() {
        return None;
    }
    let text = format!(
        "this loader does not have {}, which the HIP runtime {} calls: they are from different versions",
        list_some(&hip.lacking, MOST_NAMES),
        hip.path.display()
    );
    let fault = Finding::new(Severity::Fault, ids::LOADER_VERSION, loader, text);
    Some(fault.with_help("copy the loader from the ROCm that the HIP runtime is from"))
}

/// The advice to copy a DLL.
fn beside(name: &str, other: &str) -> String {
    format!("copy {name} from the `bin` directory of ROCm to the directory of {other}")
}

/// Paths, not too many.
fn names(paths: &[&Path]) -> String {
    list_some(paths.iter().map(|path| path.display()), MOST_NAMES)
}
