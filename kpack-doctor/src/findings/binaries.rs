//! The findings about binaries with device code and their kernel databases.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_core::words::list;
use kpack_core::{Finding, Severity, ids};
use kpack_format::{Delivery, Generic, TargetId};

use crate::facts::binary::{Binary, Form, Join};
use crate::facts::code::{CodeForGpu, joined};
use crate::facts::machine::Machine;
use crate::facts::misplaced::MisplacedArchive;
use crate::facts::process::Process;
use crate::facts::restore::{AllLost, Lost};
use crate::facts::runtime::Runtime;
use crate::remedy::{Diagnosis, Remedy, word};

/// Reports kernel databases without files for a GPU, or for a family that it is in, and those that cannot be listed.
pub(super) fn of_databases(
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

/// The findings about the code in a binary.
pub(super) fn of_binary(
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
        CodeForGpu::Here => None,
        CodeForGpu::Doubtful(text, advice) => {
            let text = format!("{form}, but {text}");
            let note = Finding::new(Severity::Note, ids::ROCM_LOADER, path, text);
            Some(note.with_help(advice).into())
        }
        CodeForGpu::Fault(id, text, advice) => {
            let text = format!("{form}, but {text}");
            let fault = Finding::new(Severity::Fault, *id, path, text).with_help(advice);
            Some(explained(fault.into(), lost(gpu).filter(|_| code.is_missing())))
        }
        CodeForGpu::Misplaced(MisplacedArchive { from, to, moved }) => {
            let (found, expected) = (from.display(), to.display());
            let text = format!(
                "{form}, but the archive for {gpu} is in the wrong directory: `{found}`; the marker leads to `{expected}`"
            );
            let fault = Finding::new(Severity::Fault, ids::MISSING_ARCHIVE, path, text);
            let remedy = moved.as_ref().and_then(|(from, to)| {
                Remedy::new("mv", [word(from)?, word(to)?])
            });
            let advice = match &remedy {
                Some(remedy) => format!("run `{}`", remedy.command),
                None => "move it there".to_owned(),
            };
            Some(Diagnosis::from(fault.with_help(advice)).mended_by(remedy))
        }
        CodeForGpu::Nowhere(known) | CodeForGpu::Unlisted(known, ..) => match generic(&binary.form, known, gpu) {
            Ok(Some(Generic { target, since })) => {
                let text = format!(
                    "{form}, without code for {gpu}; HIP runtimes accept its code for {} from {since} on",
                    target.processor()
                );
                Some(Finding::new(Severity::Note, ids::GENERIC_CODE, path, text).into())
            }
            Ok(None) if let CodeForGpu::Unlisted(_, places, advice) = code => {
                let mut text = format!(
                    "{form}, but the archive for {gpu} is missing: looked for `{}`",
                    joined(places.iter())
                );
                if !known.is_empty() {
                    text.push_str(&format!("; there are archives for {}", list(known)));
                }
                let advice = advice.as_deref().filter(|_| known.is_empty());
                let advice = advice.unwrap_or("install the package that contains it");
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
                let finding = Finding::new(outcome, ids::MISSING_TARGET, path, text);
                let diagnosis = Diagnosis::from(finding.with_help(advice)).mended_by(remedy);
                Some(explained(diagnosis, lost(gpu)))
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

/// The command that joins binaries of one prefix for all GPUs.
pub(super) fn join(binaries: &[&Binary], machine: &Machine) -> Option<Remedy> {
    let prefix = binaries.first().map_or(Path::new("."), |binary| &binary.prefix);
    let mut words: Vec<String> = ["join", "--prefix"].map(str::to_owned).into();
    words.push(word(prefix)?);
    for gpu in machine.to_join() {
        words.extend(["--arch".to_owned(), gpu.to_string()]);
    }
    let files: Vec<String> = binaries
        .iter()
        .map(|binary| {
            let file = binary.path.strip_prefix(prefix).unwrap_or(&binary.path);
            word(file)
        })
        .collect::<Option<_>>()?;
    // What a tree names so is no option.
    words.extend(files.iter().any(|file| file.starts_with('-')).then(|| "--".to_owned()));
    words.extend(files);
    Remedy::new("kpack", words)
}

/// The advice to run a command that joins.
pub(super) fn advice_of(join: Option<&Remedy>) -> String {
    match join {
        Some(remedy) => format!("run `{}`", remedy.command),
        None => "join it with `kpack join`".to_owned(),
    }
}
