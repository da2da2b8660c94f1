//! `kpack trim`.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kpack_core::gpus::{GPU_OVERRIDE, is_override};
use kpack_core::words::list;
use kpack_core::{Error, shown};
use kpack_doctor::Owner;
use kpack_split::trim::Keep;
use serde::Serialize;

use super::exit_codes::{Problem, exit_code};
use super::join::Architecture;
use super::kernel_files::KernelFilesArguments;
use super::output::{self, Text, count, size};
use super::print::print;
use super::progress::{Bar, FILES};
use super::targets;
use crate::trim::{self, Options, TrimOutcome, TrimReport, TrimmedFile};

/// Remove the device code for all but chosen GPUs from installed files
///
/// Libraries, programs, objects and single bundles then have the code for these GPUs only. Files of kernel databases and
/// archives that are for other GPUs are removed. There are no markers, so any HIP runtime that loaded a file before still loads
/// it. RECORD and conda-meta get the new digests. If a file is used elsewhere, as in uv's cache, the given path gets a
/// smaller copy, and the other file stays as it is.
///
/// If a file cannot be read or written, kpack names it and trims the others; the exit code is then 4. A named file of a kind
/// that kpack cannot trim, such as text, makes it 3, unless another path has code. It is also 3 if all code is for other GPUs. If
/// another run trims the same files, this one waits for it.
///
/// Only installing the files again brings the code back; `kpack doctor` prints the command. In a container, trim in the RUN
/// that installs: a later layer makes an image larger.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  What would go from a ROCm and a virtual environment:
    kpack trim --arch gfx942 --dry-run /opt/rocm /opt/venv
  In a Dockerfile, in the layer that installs:
    RUN pip install torch && kpack trim --arch gfx942 /opt/venv
  The root of an image, for two GPUs:
    kpack trim --arch gfx942,gfx950 --root image /opt/rocm

", exit_codes!("a path was rejected, or an option, or all code is for other GPUs")))]
pub(super) struct Arguments {
    /// Directories and files to trim
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// GPU target to keep the code for, or `native` for every GPU of this machine. Can be repeated; commas separate targets
    /// as well. A target without features, such as gfx90a, stands for all of its variants
    #[arg(long, value_name = "TARGET", value_delimiter = ',', required = true)]
    arch: Vec<Architecture>,
    /// The root directory of an image. Paths and absolute links are resolved inside it, and nothing outside is
    /// written
    #[arg(long, value_name = "DIRECTORY")]
    root: Option<PathBuf>,
    /// What to do with SPIR-V code
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    spirv: KeptSpirv,
    #[command(flatten)]
    kernel_files: KernelFilesArguments,
    /// Compare the content of bundles of which nothing is removed with the hashes in their headers, too, which takes longer.
    /// A damaged file stays as it is, with a warning and exit code 0
    #[arg(long)]
    check: bool,
    /// Only print what would change
    #[arg(long)]
    dry_run: bool,
}

/// What to do with SPIR-V code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum KeptSpirv {
    /// Keep it where one of the GPUs has no other code
    #[default]
    Needed,
    /// Keep all of it
    Keep,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    targets::warn_of_unknown(arguments.arch.iter().filter_map(Architecture::named));
    let mut gpus = Vec::new();
    for architecture in &arguments.arch {
        let targets = architecture.targets(false).map_err(|error| {
            error.about(|reason| {
                reason.then(" A Docker build sees none: pass the GPU, as in `--arch gfx942`")
            })
        });
        gpus.extend(targets?);
    }
    gpus.sort();
    gpus.dedup();
    if arguments.arch.contains(&Architecture::Native) {
        about_native(&gpus);
    }
    if stderr().is_terminal() && !print().quiet {
        output::complain(
            "note",
            "only installing the files again brings removed code back; `kpack doctor` prints the command",
        );
    }
    let options = Options {
        paths: arguments.paths.clone(),
        root: arguments.root.clone(),
        keep: Keep { gpus, spirv: arguments.spirv == KeptSpirv::Keep, check: arguments.check },
        kernel_files: arguments.kernel_files.rules()?,
        dry_run: arguments.dry_run,
    };
    let bar = Bar::new(FILES);
    let report = trim::trim(&options, &bar)?;
    bar.finish();
    output::complain_findings(&report.findings);
    report.errors.iter().for_each(output::complain_error);
    if print().json {
        let errors = report.errors.iter().map(Problem::from).collect();
        output::json(&Reported { report: &report, errors })?;
    } else if !print().quiet {
        summary(&report).write()?;
    }
    // That a file cannot be read or written is worse than that it changed meanwhile.
    let code = report.errors.iter().map(exit_code).max();
    Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// The output of `--json`.
#[derive(Serialize)]
struct Reported<'a> {
    #[serde(flatten)]
    report: &'a TrimReport,
    errors: Vec<Problem>,
}

/// Says which GPUs the machine has, and that somebody may have hidden what they are.
fn about_native(gpus: &[kpack_format::TargetId]) {
    if !print().quiet {
        output::complain("note", format_args!("this machine has {}", list(gpus)));
    }
    let is_set = std::env::vars_os()
        .any(|(name, value)| is_override(&name.to_string_lossy()) && !value.is_empty());
    // Programs for Windows ignore it.
    if is_set && cfg!(not(windows)) {
        let text =
            "is set, so kpack keeps the code for that GPU, which may not be the one in the machine";
        output::complain("warning", format_args!("{GPU_OVERRIDE} {text}"));
    }
}

fn summary(report: &TrimReport) -> Text {
    let mut text = Text::default();
    for file in &report.files {
        let outcome = outcome(file, report.dry_run);
        text.line(format_args!("{}: {outcome}", shown(&file.path)));
    }
    for Owner { package, files, .. } in &report.packages {
        let files = count(files.len(), "file");
        text.line(format_args!("{}: {} ({files})", package.manager, package.name));
    }
    let (before, after) = (report.size_before, report.size_after);
    let would = if report.dry_run { "would change" } else { "changed" };
    text.line(format_args!(
        "{} {would}: {} -> {}, for {}",
        count(report.files.len(), "file"),
        size(before),
        size(after),
        list(&report.gpus)
    ));
    text
}

/// What became of a file, or what would in a run that changes something.
fn outcome(file: &TrimmedFile, would: bool) -> String {
    let without = list(file.removed.keys());
    let [before, after] = [file.size_before, file.size_after].map(size);
    let shrunk = if would { "would shrink: " } else { "" };
    match file.outcome {
        // Bundles that cannot move leave holes, if these are larger than what a file system allocates.
        TrimOutcome::Trimmed if file.size_before == file.size_after => match file.freed {
            Some(freed) if freed > 0 => {
                format!("{} of {before} replaced by holes, without {without}", size(freed))
            }
            _ if would => format!("would still be {after}, without {without}"),
            _ => format!("still {after}, without {without}"),
        },
        TrimOutcome::Trimmed => format!("{shrunk}{before} -> {after}, without {without}"),
        TrimOutcome::Copied if would => {
            format!("would become a separate copy: {after}, without {without}")
        }
        TrimOutcome::Copied => format!("{after}, now a separate copy, without {without}"),
        TrimOutcome::Removed if would => format!("would be removed ({before}, for {without})"),
        TrimOutcome::Removed => format!("removed ({before}, for {without})"),
        TrimOutcome::Updated if would => "would list what is left".to_owned(),
        TrimOutcome::Updated => "lists what is left".to_owned(),
    }
}
