//! `kpack doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kpack_doctor::{self as doctor, Diagnosis, Options, Report, Unused};
use kpack_format::TargetId;
use kpack_format::unstable::spelling;

use super::output::{self, Text, count, size};
use super::print::print;
use kpack_core::{Error, Severity, ids};

/// Find out whether GPU code loads on this machine, why not, and the command that fixes it
///
/// The first line says whether GPU code will load, and for which GPU. If it will not, the second line says why, and the
/// third is the command that fixes it. Without PATH, kpack examines the active Python environment, or else
/// ROCM_PATH, /opt/rocm and the distribution's libraries. It only reads: nothing that it examines is run.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Will GPU code load in the active environment? If not, what fixes it?
    kpack doctor
  Why does this program find no kernels?
    kpack doctor ./app
  Would the libraries of a prefix run on another machine's GPU?
    kpack doctor /opt/rocm --arch gfx1030
  Will an image run on such a machine?
    kpack doctor --root image --arch gfx1030 /opt/venv
  Which packages can be removed, because this machine does not have their GPUs?
    kpack doctor --unused
  Install what this machine's GPUs need:
    pip install \"torch[$(kpack doctor --print-extra)]\"
  Pull the image for this machine's GPU:
    podman pull \"registry.example.org/rocm:7.14-$(kpack doctor --print-arch)\"

", exit_codes!("", "  1  GPU code will not load: there is a fault\n")))]
pub(super) struct Arguments {
    /// GPU to check for, such as gfx942. Default: every GPU of this machine. Can be repeated; commas separate GPUs as
    /// well. A target without features, such as gfx90a, stands for any variant
    #[arg(long, value_name = "TARGET", value_parser = spelling::read_target, value_delimiter = ',')]
    pub(super) arch: Vec<TargetId>,
    /// Only print this machine's GPUs, such as gfx942, one per line, to choose a package, image or archive
    #[arg(long, conflicts_with_all = ["arch", "paths"])]
    print_arch: bool,
    /// Only print the comma-separated extras for the GPUs, such as device-gfx1100. If PATH or the active environment
    /// contains packages with such extras, print theirs
    #[arg(long, conflicts_with = "print_arch")]
    print_extra: bool,
    /// Only print the command that fixes the first fault, or nothing if kpack is not sure of it
    #[arg(long, conflicts_with_all = ["print_arch", "print_extra", "json"])]
    fix: bool,
    /// List the device wheels for GPUs that are not there, their sizes, and the command that removes them
    #[arg(long, conflicts_with_all = ["print_arch", "print_extra", "fix"])]
    unused: bool,
    /// The root directory of an image. Paths and absolute links are resolved inside it; this machine's files, variables
    /// and GPUs do not count. Needs root or user namespaces
    #[arg(long, value_name = "DIRECTORY", requires = "arch")]
    root: Option<PathBuf>,
    /// Programs, libraries, install prefixes or Python environments. A program or library is examined together
    /// with the libraries that it loads
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = Options::default();
    options.targets.clone_from(&arguments.arch);
    if let Some(root) = &arguments.root {
        doctor::enter(root)?;
    }
    if arguments.print_arch {
        output::names(&doctor::processors(&options)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.print_extra {
        let extras = doctor::extras(&arguments.paths, &options)?;
        if print().json {
            output::names(&extras)?;
        } else {
            output::names(&[extras.join(",")])?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.unused {
        let path = match &arguments.paths[..] {
            [] => None,
            [path] => Some(&**path),
            _ => return Err(Error::usage("`--unused` examines one environment; pass one path")),
        };
        return print_unused(&doctor::unused(path, &options)?);
    }
    let report = doctor::examine(&arguments.paths, &options)?;
    if arguments.fix {
        if let Some(remedy) = report.remedy.as_ref().filter(|remedy| remedy.caution.is_none()) {
            output::lines(&format!("{}\n", remedy.command))?;
        }
    } else if print().json {
        output::json(&report)?;
    } else {
        print_report(&report, !arguments.arch.is_empty())?;
    }
    Ok(match report.faults() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    })
}

/// Prints whether GPU code loads, why not, and the command; with `--verbose`, everything else too.
///
/// Whoever names GPUs asks `for_named` ones, which also have to have code if a library is missing on this machine.
fn print_report(report: &Report, for_named: bool) -> Result<(), Error> {
    let cause = report.cause();
    if print().quiet && report.faults() == 0 {
        return Ok(());
    }
    let mut text = Text::default();
    text.line(&report.verdict);
    if let Some(cause) = cause {
        add_cause(&mut text, cause);
    }
    let missing = cause.filter(|_| for_named).and_then(|cause| missing_code(report, cause));
    if let Some(missing) = missing.filter(|_| !print().verbose) {
        add_cause(&mut text, missing);
    }
    // It is why there is no command.
    let is_unread = |found: &&Diagnosis| found.finding.id == ids::UNREAD_PACKAGE_DATABASE;
    if !print().verbose && cause.is_some_and(|cause| cause.remedy.is_none()) {
        for unread in report.findings.iter().filter(is_unread) {
            text.line(format_args!("note: {}", output::described(&unread.finding)));
        }
    }
    if print().verbose {
        for Diagnosis { finding, .. } in &report.findings {
            text.labelled(finding.severity, output::described(finding));
            if let Some(help) = &finding.help {
                text.line(format_args!("      what to do: {help}"));
            }
        }
        text.line(count(report.faults() as u64, "fault"));
    } else {
        let is_other = |found: &&Diagnosis| {
            let is_printed = [cause, missing].contains(&Some(*found));
            found.finding.severity == Severity::Fault && !is_printed
        };
        let others = report.findings.iter().filter(is_other).count();
        if others > 0 {
            let others = count(others as u64, "more fault");
            text.line(format_args!("{others}; `kpack doctor --verbose` lists everything"));
        }
    }
    text.write()
}

/// The first code that is missing for a GPU, if the `cause` is something that is missing on this machine, which says
/// nothing about code.
fn missing_code<'r>(report: &'r Report, cause: &Diagnosis) -> Option<&'r Diagnosis> {
    let of_machine = [ids::MISSING_LIBRARY, ids::MISSING_DATABASE, ids::INCOMPLETE_DATABASE];
    let of_code = [ids::MISSING_TARGET, ids::MISSING_ARCHIVE];
    let is_wrong = |found: &&Diagnosis| {
        of_code.contains(&found.finding.id) && found.finding.severity >= Severity::Warning
    };
    of_machine.contains(&cause.finding.id).then(|| report.findings.iter().find(is_wrong)).flatten()
}

/// Adds why code does not load, and what to do about it: a command alone on its line, or advice.
fn add_cause(text: &mut Text, cause: &Diagnosis) {
    text.line(output::described(&cause.finding));
    match (&cause.remedy, &cause.finding.help) {
        (Some(remedy), _) => {
            text.line(&remedy.command);
            if let Some(caution) = &remedy.caution {
                text.line(format_args!("note: {caution}"));
            }
        }
        (None, Some(help)) => text.line(format_args!("what to do: {help}")),
        (None, None) => {}
    }
}

fn print_unused(unused: &Unused) -> Result<ExitCode, Error> {
    if print().json {
        output::json(unused)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::complain_findings(&unused.findings);
    let mut text = Text::default();
    let rows = unused
        .packages
        .iter()
        .map(|package| vec![package.name.clone(), package.version.clone(), size(package.bytes)]);
    let gpus = unused.gpus.join(", ");
    if unused.packages.is_empty() {
        text.line(format_args!("every device wheel is for {gpus}"));
    } else {
        text.table(0, &["device wheel", "version", ">size"], rows);
        let bytes = unused.packages.iter().map(|package| package.bytes).sum();
        text.line(format_args!("{} not needed for {gpus}", size(bytes)));
    }
    if let Some(remedy) = &unused.remedy {
        text.line(&remedy.command);
    }
    if let Some(help) = &unused.help {
        text.line(format_args!("what to do: {help}"));
    }
    text.write()?;
    Ok(ExitCode::SUCCESS)
}
