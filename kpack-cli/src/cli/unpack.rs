//! `kpack unpack`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::output::{self, Text, count, size};
use super::print::print;
use super::progress::{ALL, Bar};
use super::select::ChoiceArguments;
use kpack_artifact::store::{UnpackOptions, Unpacked, unpack};
use kpack_core::Error;

/// Unpack artifacts that were fetched, and check them
///
/// Each file must be what the index says: its SHA-256, its size, and what is in it. Until all are, nothing has
/// its final name. kpack writes nothing outside of the output directory, whatever is in the files.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  The shard of a machine, to be merged by `kpack recombine`:
    kpack unpack fetched/linux-a --output-dir shards/linux-a
  An installation for one GPU:
    kpack unpack fetched --arch gfx942 --flatten --output-dir /opt/rocm-7.14

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
    /// Make one installed tree, rather than a directory per artifact
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
    let unpacked = unpack(&options, &bar);
    bar.finish();
    let unpacked = unpacked?;
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
