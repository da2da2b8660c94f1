//! `kpack join`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kpack_format::TargetId;

use super::install::Output;
use super::progress::{Bar, DEVICE_CODE};
use crate::Error;
use crate::join::{self, Options};

/// Put chosen targets' device code back into split binaries, for HIP runtimes that do not read markers
///
/// Takes the code for the chosen targets from the archives that each binary's marker refers to and puts
/// it where it was before the split. The result runs with every HIP runtime, and needs no archives. kpack
/// checks every archive before it changes the first binary. `kpack install` splits a joined binary again.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Join all split binaries of a prefix for this machine's GPU:
    kpack join --prefix /opt/rocm --arch gfx1030
  Join one, and compare it with the unsplit original:
    kpack join --prefix stage --arch gfx1030 --against build/libvec.so lib/libvec.so

", exit_codes!("an input was rejected (damaged or unsupported), or an archive is missing")))]
pub(super) struct Arguments {
    /// Install prefix: the directory that the binaries are in
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Join only binaries of this module. Default: of all modules
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    /// GPU target to put back. Can be repeated. A target without features, such as gfx90a, stands for all
    /// of its variants
    #[arg(long, value_name = "TARGET", value_delimiter = ',', required = true)]
    arch: Vec<TargetId>,
    /// Write the joined binary to this file instead of replacing FILE. Needs exactly one FILE
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Unsplit original to compare every code object and all host code with. Needs exactly one FILE
    #[arg(long, value_name = "ORIGINAL")]
    against: Option<PathBuf>,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    print: Output,
    /// Split binaries; paths are relative to the prefix, or else to the working directory. Default: all in
    /// the prefix
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let architectures = arguments.arch.iter().cloned();
    let mut options = Options::new(&arguments.prefix, architectures, &arguments.files);
    options.module.clone_from(&arguments.module);
    options.output.clone_from(&arguments.output);
    options.against.clone_from(&arguments.against);
    options.jobs = arguments.jobs.unwrap_or(options.jobs);

    let bar = Bar::new(arguments.print.is_hidden(), DEVICE_CODE);
    let report = join::join(&options, &bar)?;
    bar.finish();
    arguments.print.print(&report)
}
