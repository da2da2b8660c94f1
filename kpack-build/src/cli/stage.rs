//! `kpack stage`.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::install::print;
use crate::Error;
use crate::stage::{self, Options};

/// Stage Rust programs with HIP kernels: a directory that can be moved
///
/// Reads what Cargo printed about a build, and lays out its programs (bin/), shared libraries (lib/),
/// and the device code of all packages in them: one archive for each module and GPU target
/// (lib/.kpack/). What is staged finds its device code by relative paths, and has no path of the
/// machine that it was built on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Build and stage:
    cargo build --release --message-format=json | kpack stage --output-dir dist
  The same, with Cargo's errors in words:
    cargo build --release --message-format=json-render-diagnostics > build.json &&
        kpack stage --output-dir dist --messages build.json

Exit codes:
  0  fine
  2  wrong usage
  3  an input was refused: damaged, or not what it has to be
  4  reading or writing failed")]
pub(super) struct Arguments {
    /// Directory to make; one that an earlier run made is replaced
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// File with Cargo's messages; otherwise standard input
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// Stage files that have paths of this machine, with a warning
    #[arg(long)]
    allow_build_paths: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Print errors and warnings only
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = Options::new(&arguments.output_dir);
    options.allow_build_paths = arguments.allow_build_paths;
    let report = match &arguments.messages {
        Some(path) if path != Path::new("-") => {
            let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
            stage::stage(&options, BufReader::new(file))?
        }
        _ => stage::stage(&options, io::stdin().lock())?,
    };
    print(&report, arguments.json, arguments.quiet)
}
