//! `kpack artifact unpack`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::select::ChoiceArguments;
use crate::cli::output::{self, Text, count, size};
use crate::cli::print::print;
use crate::cli::progress::{ALL, Bar};
use kpack_core::Error;
use kpack_store::{UnpackOptions, Unpacked, unpack};

/// Unpack artifacts that were fetched, and check them
///
/// Compares the SHA-256, the size and the contents of each file with the index. The output gets its name only when
/// all files match. kpack writes nothing outside of the output directory, whatever the files contain.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  The shard of a machine, to be merged by `kpack artifact recombine`:
    kpack artifact unpack fetched/linux-a --output-dir shards/linux-a
  An installation for one GPU:
    kpack artifact unpack fetched --arch gfx942 --flatten --output-dir /opt/rocm-7.14

", exit_codes!()))]
pub(super) struct Arguments {
    /// Directory with the packed artifacts
    #[arg(value_name = "DIR")]
    store: PathBuf,
    /// Their index. Default: index.json in DIR
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    #[command(flatten)]
    pub(super) choice: ChoiceArguments,
    /// Directory for the files: a new or empty one, or one of an earlier run without --flatten
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Make one installed tree instead of a directory for each artifact
    #[arg(long)]
    flatten: bool,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    outcome: &'static str,
    #[serde(flatten)]
    unpacked: &'a Unpacked,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = UnpackOptions::new(&arguments.store, &arguments.output_dir);
    if let Some(index) = &arguments.index {
        options.index.clone_from(index);
    }
    options.choice = arguments.choice.choice();
    options.flatten = arguments.flatten;
    options.jobs = arguments.jobs.unwrap_or(options.jobs);
    let bar = Bar::new(ALL);
    let result = unpack(&options, &bar);
    bar.finish();
    let unpacked = result?;
    if print().json {
        output::json(&Summary { outcome: "unpacked", unpacked: &unpacked })?;
    } else if !print().quiet {
        let mut text = Text::default();
        text.line(format_args!(
            "{}, {}, {} in {}",
            count(unpacked.artifacts.len() as u64, "artifact"),
            count(unpacked.files, "file"),
            size(unpacked.size),
            arguments.output_dir.display()
        ));
        text.write()?;
    }
    Ok(ExitCode::SUCCESS)
}
