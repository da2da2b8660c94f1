//! `kpack artifact pack`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use kpack_format::TargetId;
use kpack_format::unstable::spelling;
use serde::Serialize;

use crate::cli::output::{self, Text, count, size};
use crate::cli::print::print;
use crate::cli::progress::{ALL, Bar};
use kpack_core::parallel::processors;
use kpack_core::{Error, Finding};
use kpack_store::{Index, IndexOptions, PackOptions, Packed, index, pack};

/// Pack artifacts for a server, a bucket or a registry, with an index
///
/// Writes each split or recombined artifact as NAME_COMPONENT_TARGET.tar.zst, a file with its SHA-256, and
/// index.json. All of them appear together, the index last. The same artifacts give the same bytes on every machine:
/// owners are 0, modes are 644 and 755, and all times are SOURCE_DATE_EPOCH (default: 1980).
///
/// kpack uploads nothing itself. Use any program, and upload the index last.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true)))]
#[command(after_help = concat!("\
Examples:
  kpack artifact pack shards/linux-a --output-dir store/shards/12345-linux/linux-a --run 12345-linux --shard linux-a
  kpack artifact pack packages --output-dir store/12345-linux --run 12345-linux
  kpack artifact pack --archives store/12345-linux    # write the index of archives that other tools packed

", exit_codes!()))]
pub(super) struct Arguments {
    /// Directory with artifacts (blas_lib_generic, blas_lib_gfx1100, …)
    #[arg(value_name = "DIR", group = "input", requires = "output_dir")]
    artifacts: Option<PathBuf>,
    /// Directory for the packed artifacts. Those of an earlier run of the same shard are replaced
    #[arg(long, value_name = "DIR", conflicts_with = "archives")]
    output_dir: Option<PathBuf>,
    /// Only write the index of the archives in DIR, which other tools packed. An index of `kpack artifact pack` is kept
    #[arg(long, value_name = "DIR", group = "input", conflicts_with = "level")]
    archives: Option<PathBuf>,
    /// Name of the build, for the index
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Name of the machine, for the index. Leave it out for the result of `kpack artifact recombine`
    #[arg(long, value_name = "NAME")]
    shard: Option<String>,
    /// Targets that the machine built for, for the index. Default: those of the artifacts
    #[arg(long, value_name = "TARGETS", value_delimiter = ',', value_parser = spelling::read_target)]
    built_for: Vec<TargetId>,
    /// Zstandard level, from 1 to 19. Default: 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    level: Option<i32>,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    outcome: &'static str,
    index: &'a Index,
    findings: &'a [Finding],
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let jobs = arguments.jobs.unwrap_or_else(processors);
    let mut options = IndexOptions::default();
    options.run.clone_from(&arguments.run);
    options.shard.clone_from(&arguments.shard);
    options.built_for = arguments.built_for.iter().map(TargetId::to_string).collect();
    let packed = match (&arguments.archives, &arguments.artifacts) {
        (Some(archives), _) => index(archives, &options, jobs)?,
        (None, Some(artifacts)) => pack_artifacts(arguments, artifacts, options, jobs)?,
        (None, None) => return Err(Error::usage("expected a directory with artifacts")),
    };
    let (index, findings) = (packed.index, packed.findings);
    for finding in &findings {
        output::complain_finding(finding);
    }
    if print().json {
        output::json(&Summary { outcome: "packed", index: &index, findings: &findings })?;
    } else if !print().quiet {
        summary(&index).write()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn pack_artifacts(
    arguments: &Arguments,
    artifacts: &PathBuf,
    index: IndexOptions,
    jobs: NonZeroUsize,
) -> Result<Packed, Error> {
    let output = arguments.output_dir.clone().unwrap_or_default();
    let mut options = PackOptions::new(artifacts, output);
    options.index = index;
    options.jobs = jobs;
    options.level = arguments.level.unwrap_or(options.level);
    let bar = Bar::new(ALL);
    let packed = pack(&options, &bar);
    bar.finish();
    packed
}

fn summary(index: &Index) -> Text {
    let rows = index.artifacts.iter().map(|entry| {
        vec![entry.file.clone(), count(entry.files, "file"), size(entry.unpacked), size(entry.size)]
    });
    let mut text = Text::default();
    text.table(0, &["file", ">files", ">unpacked", ">packed"], rows);
    text
}
