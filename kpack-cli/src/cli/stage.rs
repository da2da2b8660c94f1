//! `kpack stage`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::output;
use super::split::report_done;
use super::storage::{SpirvTreatment, StripDebug};
use crate::stage::{self, Options};
use kpack_core::Error;

/// Stage Rust programs with HIP kernels in a directory that can be moved
///
/// Reads Cargo's messages about a build. Copies its programs to bin/, its shared libraries to lib/ (DLLs to bin/),
/// and the device code of all its packages to lib/.kpack/, in one archive for each module and GPU target. Staged
/// programs find their device code by relative paths. kpack rejects files and code objects that contain a path of the
/// build: of a package, its workspace, Cargo's target directory, or a directory for headers. --spirv applies only to
/// Windows binaries; for others, the build script decides (Hip::spirv).
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Build and stage:
    cargo build --release --message-format=json-render-diagnostics |
        kpack stage --output-dir dist
  The same in two steps, so that the shell sees when the build fails:
    cargo build --release --message-format=json-render-diagnostics > build.json &&
        kpack stage --output-dir dist --messages build.json

", exit_codes!()))]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    spirv: SpirvTreatment,
    #[command(flatten)]
    strip: StripDebug,
    /// File with Cargo's messages. Default: standard input
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    let options = &Options {
        debug: arguments.strip.debug(),
        spirv: arguments.spirv.spirv(),
        ..arguments.options.clone()
    };
    // The compiler's diagnostics, which plain JSON keeps from the terminal.
    let mut say = |text: &str| {
        let _ = io::stderr().write_all(text.as_bytes());
    };
    let report = match &arguments.messages {
        Some(path) if path != Path::new("-") => {
            let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
            stage::stage(options, BufReader::new(file), &mut say)?
        }
        _ => stage::stage(options, io::stdin().lock(), &mut say)?,
    };
    report_done(&report)
}
