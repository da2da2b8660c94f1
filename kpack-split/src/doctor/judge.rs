//! Judges what was found. Reads nothing.

use std::path::Path;

use kpack_format::TargetId;

use super::facts::{Binary, Code, Form, Process, Runtime, Support};
use super::{Finding, Machine};
use crate::verify::Outcome;
use crate::words::{list, list_some};

/// Names in one message; more help nobody.
const MOST_NAMES: usize = 5;

/// All findings: about the machine, then the code of each binary, then the HIP runtimes.
pub(super) fn judge(machine: &Machine, processes: &[Process]) -> Vec<Finding> {
    let mut findings = of_machine(machine);
    for binary in processes.iter().flat_map(|process| &process.binaries) {
        of_binary(binary, machine, &mut findings);
    }
    findings.extend(
        Processes::all(processes)
            .iter()
            .map(|group| group.judge(machine)),
    );
    // Two programs may load the same library.
    let mut distinct: Vec<Finding> = Vec::new();
    for finding in findings {
        if !distinct.contains(&finding) {
            distinct.push(finding);
        }
    }
    distinct
}

fn of_machine(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name_one = "name its GPU with --arch";
    match &machine.gpus {
        _ if machine.asked => {}
        None => {
            let text = "which GPUs this machine has is unknown: it has no KFD, or an old one";
            findings.push(Finding::new(Outcome::Note, None, text).advise(name_one));
        }
        Some(gpus) if gpus.is_empty() => {
            let text = "this machine has no GPU";
            findings.push(Finding::new(Outcome::Note, None, text).advise(name_one));
        }
        Some(gpus) => {
            let text = format!("this machine has {}", list(gpus));
            findings.push(Finding::new(Outcome::Ok, None, text));
        }
    }
    if machine.environment.disable {
        let text = "ROCM_KPACK_DISABLE is set: the loader finds nothing";
        findings.push(Finding::new(Outcome::Fault, None, text).advise("unset ROCM_KPACK_DISABLE"));
    }
    if !machine.environment.path.is_empty() {
        let text = "ROCM_KPACK_PATH is set: the loader looks there, not where markers lead";
        findings.push(Finding::new(Outcome::Note, None, text));
    } else if !machine.environment.path_prefix.is_empty() {
        let text =
            "ROCM_KPACK_PATH_PREFIX is set: the loader looks there before where markers lead";
        findings.push(Finding::new(Outcome::Note, None, text));
    }
    findings
}

fn of_binary(binary: &Binary, machine: &Machine, findings: &mut Vec<Finding>) {
    let path = Some(binary.path.as_path());
    let form = match &binary.form {
        Form::Damaged(reason) => {
            let damaged = Finding::new(Outcome::Fault, path, reason);
            return findings.push(damaged.advise("install it again"));
        }
        Form::EarlyMarker => {
            let text = "its marker is in the early plain-text form, which names no kernels; whether it \
                        has code is unknown";
            return findings.push(Finding::new(Outcome::Note, path, text));
        }
        Form::Fat => "not split",
        Form::Joined => "joined",
        Form::Split if binary.has_shim => "split, linked with the shim",
        Form::Split => "split",
    };
    let has = binary.code.iter().filter(|(_, code)| *code == Code::Here);
    let supported: Vec<String> = has.map(|(gpu, _)| gpu.to_string()).collect();
    if !supported.is_empty() {
        let (targets, through) = (list(&supported), &binary.found_through);
        let text = format!("{form}, with code for {targets}{through}");
        findings.push(Finding::new(Outcome::Ok, path, text));
    }
    // Many machines have a second GPU that nobody computes with.
    let outcome = match supported.is_empty() || machine.asked {
        true => Outcome::Fault,
        false => Outcome::Note,
    };
    findings.extend(binary.code.iter().filter_map(|(gpu, code)| match code {
        Code::Here => None,
        Code::Fault(text, advice) => {
            let text = format!("{form}, but {text}");
            Some(Finding::new(Outcome::Fault, path, text).advise(advice))
        }
        Code::Nowhere(known) => match known.iter().find(|target| is_generic(target, gpu)) {
            Some(generic) => {
                let text = format!(
                    "{form}, without code for {gpu}; new HIP runtimes may run its code for {generic}"
                );
                Some(Finding::new(Outcome::Note, path, text))
            }
            None => {
                let text = match known.is_empty() {
                    true => format!("{form}, without any device code"),
                    false => format!("{form}, without code for {gpu}: only for {}", list(known)),
                };
                let advice = match &binary.form {
                    Form::Joined => join(&[binary], &[gpu]),
                    _ => format!("install a build with code for {gpu}"),
                };
                Some(Finding::new(outcome, path, text).advise(advice))
            }
        },
    }));
}

/// Whether `target` is a generic one for the family of `gpu`.
fn is_generic(target: &str, gpu: &TargetId) -> bool {
    let target: Option<TargetId> = target.parse().ok();
    target.is_some_and(|target| target.is_generic_for(gpu))
}

/// Processes with the same HIP runtime, and those of their split binaries that the same command mends.
struct Processes<'a> {
    runtime: &'a Runtime,
    prefix: Option<&'a Path>,
    join_refuses: Option<&'a String>,
    files: Vec<&'a Path>,
    split: Vec<&'a Binary>,
}

impl<'a> Processes<'a> {
    fn all(processes: &'a [Process]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for process in processes {
            let split = process.binaries.iter();
            let split = split.filter(|binary| binary.needs_support());
            let mut split = split.map(Some).peekable();
            let none = split.peek().is_none().then_some(None);
            for binary in split.chain(none) {
                let group = Self {
                    runtime: &process.runtime,
                    prefix: binary.map(|binary| binary.prefix.as_path()),
                    join_refuses: binary.and_then(|binary| binary.join_refuses.as_ref()),
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
            && self.prefix == other.prefix
            && self.join_refuses == other.join_refuses
    }

    fn judge(&self, machine: &Machine) -> Finding {
        let files = names(&self.files);
        let finding = |outcome, text: String| Finding::new(outcome, None, text);
        match self.runtime {
            Runtime::Unknown(why) => {
                let text = format!("the HIP runtime of {files} is unknown: {why}");
                finding(Outcome::Note, text)
            }
            Runtime::Fails(why) => {
                finding(Outcome::Fault, format!("{files} cannot be loaded: {why}"))
            }
            Runtime::None => finding(
                Outcome::Note,
                format!("{files} needs no HIP runtime itself"),
            )
            .advise("run `kpack doctor` for the program, library or module that needs one"),
            Runtime::Missing(name) => finding(
                Outcome::Fault,
                format!("{files} needs {name}, which was not found"),
            )
            .advise("install ROCm's HIP runtime, or add its directory to LD_LIBRARY_PATH"),
            Runtime::Found(path, Support::Loader(name, None)) => {
                let text = format!("the HIP runtime of {files} needs {name}, which was not found");
                Finding::new(Outcome::Fault, Some(path), text).advise(
                    "install the loader (`librocm-kpack0`), or add its directory to LD_LIBRARY_PATH",
                )
            }
            Runtime::Found(path, Support::Loader(_, Some(loader))) => {
                let (loader, loads) = (loader.display(), self.loads(path));
                let text = format!("this HIP runtime reads markers, with {loader}{loads}");
                Finding::new(Outcome::Ok, Some(path), text)
            }
            Runtime::Found(path, Support::Shim(shim)) => {
                let (shim, loads) = (shim.display(), self.loads(path));
                let text = format!(
                    "this HIP runtime does not read markers; {shim} finds the code for it{loads}"
                );
                Finding::new(Outcome::Ok, Some(path), text)
            }
            Runtime::Found(path, Support::None) if self.split.is_empty() => {
                let loads = self.loads(path);
                let text = format!(
                    "this HIP runtime does not read markers, and no binary here needs that{loads}"
                );
                Finding::new(Outcome::Ok, Some(path), text)
            }
            Runtime::Found(path, Support::None) => {
                let split = self.split.iter().map(|binary| binary.path.as_path());
                let split = names(&Vec::from_iter(split));
                let mut text =
                    format!("this HIP runtime does not read markers: it finds no code for {split}");
                if split != files {
                    text.push_str(&format!(", which {files} loads"));
                }
                Finding::new(Outcome::Fault, Some(path), text).advise(self.mend(machine))
            }
        }
    }

    /// Who loads the HIP runtime at `path`, for the end of a message.
    fn loads(&self, path: &Path) -> String {
        match self.files.as_slice() {
            [file] if *file == path => String::new(),
            files => format!("; loaded by {}", names(files)),
        }
    }

    /// What to do about a HIP runtime that does not read markers.
    fn mend(&self, machine: &Machine) -> String {
        let gpus: Vec<&TargetId> = machine.gpus.iter().flatten().collect();
        match self.join_refuses {
            None => join(&self.split, &gpus),
            Some(reason) => {
                format!(
                    "set LD_PRELOAD to libkpack_hip.so, the shim; `kpack join` refuses: {reason}"
                )
            }
        }
    }
}

/// The command that joins binaries of one prefix.
fn join(binaries: &[&Binary], gpus: &[&TargetId]) -> String {
    let prefix = binaries
        .first()
        .map_or(Path::new("."), |binary| &binary.prefix);
    let mut words: Vec<String> = ["kpack", "join", "--prefix"].map(str::to_owned).into();
    words.push(prefix.display().to_string());
    for gpu in gpus {
        words.extend(["--arch".to_owned(), gpu.to_string()]);
    }
    if gpus.is_empty() {
        words.extend(["--arch", "TARGET"].map(str::to_owned));
    }
    let names = binaries.iter().map(|binary| {
        let name = binary.path.strip_prefix(prefix).unwrap_or(&binary.path);
        name.display().to_string()
    });
    words.extend(names);
    match shlex::try_join(words.iter().map(String::as_str)) {
        Ok(command) => format!("run `{command}`"),
        Err(_) => "join it with `kpack join`".to_owned(),
    }
}

/// Paths, not too many.
fn names(paths: &[&Path]) -> String {
    list_some(paths.iter().map(|path| path.display()), MOST_NAMES)
}
