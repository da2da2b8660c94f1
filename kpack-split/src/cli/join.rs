//! `kpack join`.

use std::process::ExitCode;

use clap::Args;

use super::install::Output;
use super::output;
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
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    print: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables(arguments.print.is_quiet());
    let bar = Bar::new(arguments.print.is_hidden(), DEVICE_CODE);
    let report = join::join(&arguments.options, &bar)?;
    bar.finish();
    arguments.print.print(&report)
}
