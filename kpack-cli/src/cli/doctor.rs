//! `kpack doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kpack_format::TargetId;

use super::output::{self, Text, count};
use super::print::print;
use crate::doctor::{self, Options};
use kpack_core::{Error, Severity};

/// Find out why kernels do not load on this machine, and what to do
///
/// Says which HIP runtime a program or library gets, whether that reads the markers of split binaries, which
/// GPUs the machine has, and whether the binaries have code for them. Each fault comes with a command that
/// fixes it. kpack finds a program's libraries as the dynamic linker does, and only reads them: no code of
/// theirs runs.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Why does this program find no kernels?
    kpack doctor ./app
  Would the libraries of a prefix run on another machine's GPU?
    kpack doctor /opt/rocm --arch gfx1030
  Pull the image for this machine's GPU:
    podman pull \"registry.example.org/rocm:7.14-$(kpack doctor --print-arch)\"

", exit_codes!("", "  1  there is a fault\n")))]
pub(super) struct Arguments {
    /// GPU that there must be code for. Default: every GPU of this machine. Can be repeated. A target
    /// without features, such as gfx90a, can be any variant
    #[arg(long, value_name = "TARGET", value_parser = TargetId::named, value_delimiter = ',')]
    pub(super) arch: Vec<TargetId>,
    /// Only print the GPUs of this machine, such as gfx942, a line each: to choose a package, image or archive
    #[arg(long, conflicts_with_all = ["arch", "paths"])]
    print_arch: bool,
    /// Programs, libraries or install prefixes. A program or library is examined with everything that it is
    /// linked with
    #[arg(value_name = "PATH", required_unless_present = "print_arch")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    if arguments.print_arch {
        let processors = doctor::processors(&Options::default())?;
        if print().json {
            output::json(&processors)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = Text::default();
        processors.iter().for_each(|name| text.line(name));
        text.write()?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options { targets: arguments.arch.clone(), ..Options::default() };
    let report = doctor::examine(&arguments.paths, &options)?;
    if print().json {
        output::json(&report)?;
    } else {
        let mut text = Text::default();
        for finding in &report.findings {
            if print().quiet && finding.severity != Severity::Fault {
                continue;
            }
            text.labelled(finding.severity, output::described(finding));
            if let Some(help) = &finding.help {
                text.line(format_args!("      what to do: {help}"));
            }
        }
        if !print().quiet {
            text.line(count(report.faults() as u64, "fault"));
        }
        text.write()?;
    }
    Ok(match report.faults() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    })
}
