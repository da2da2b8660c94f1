//! `kpack artifact split`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use kpack_format::TargetId;
use kpack_format::unstable::spelling;
use serde::Serialize;

use crate::cli::exit_codes::Problem;
use crate::cli::kernel_files::KernelFilesArguments;
use crate::cli::output::{self, Text, count, size};
use crate::cli::print::print;
use crate::cli::progress::{ALL, Bar};
use crate::cli::storage::{InstallHint, StorageArguments, Variants};
use kpack_artifact::split::{
    self, BatchOptions, BatchOutcome, BatchReport, Failure, Layout, Options, SplitReport, Unknown,
};
use kpack_core::Error;
use kpack_core::finding::with_id;
use kpack_core::{Finding, Severity, ids};
use kpack_split::install::Unexpected;
use kpack_tree::databases::{DATABASES, Database};
use kpack_tree::{DatabaseSelection, Known};

/// Split artifact directories into a generic artifact and one for each GPU target
///
/// An artifact directory lists its prefixes in artifact_manifest.txt. kpack splits fat binaries as
/// `kpack split` does, into one archive for each module and target. Files of kernel databases
/// (--split-databases, --kernel-files) move to the artifact of their target. The generic artifact and any of the others,
/// copied into one directory, are a working installation. kpack only reads the input. An artifact gets
/// its name when it is complete, the generic one last.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Split one artifact into out/blas_lib_generic, out/blas_lib_gfx1100, …:
    kpack artifact split --artifact-dir artifacts/blas_lib --artifact-prefix blas_lib --output-dir out
  Keep two targets, and reject unlisted files that look architecture-specific:
    kpack artifact split --artifact-dir artifacts/blas_lib --artifact-prefix blas_lib --output-dir out \\
        --gpu-targets gfx1100 gfx942 --unknown error
  Split all artifacts of a build, named after their directories:
    kpack artifact split --batch-artifact-parent-dir artifacts --output-dir out --json

", exit_codes!("\
an input was rejected (damaged, unsupported, contradictory, or without code for the expected
     targets); the other artifacts of a batch were split")))]
#[command(group(ArgGroup::new("input").required(true)))]
pub(super) struct Arguments {
    /// Artifact directory
    #[arg(long, value_name = "DIR", requires = "artifact_prefix", group = "input")]
    artifact_dir: Option<PathBuf>,
    /// Name and component of the artifact, such as blas_lib; the output is named after it
    #[arg(long, value_name = "NAME_COMPONENT")]
    artifact_prefix: Option<String>,
    /// Directory of artifact directories; all of them are split
    #[arg(long, value_name = "DIR", conflicts_with = "artifact_prefix", group = "input")]
    batch_artifact_parent_dir: Option<PathBuf>,
    /// Directory for the split artifacts
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', default_value = "auto")]
    #[arg(help = databases_help())]
    split_databases: Vec<String>,
    #[command(flatten)]
    kernel_files: KernelFilesArguments,
    /// Expected GPU targets. gfx90a also selects gfx90a:xnack+ and gfx90a:xnack-;
    /// gfx90a:xnack+ also selects plain gfx90a. Default: keep every target
    #[arg(long, value_name = "TARGET", value_parser = spelling::read_target, num_args = 1.., value_delimiter = ',')]
    pub(super) gpu_targets: Vec<TargetId>,
    /// Also reject an artifact, or a batch, whose kernel databases lack files for --gpu-targets. By default, only
    /// fat binaries count, and a batch with --layout module fails only if no artifact has any of the targets
    #[arg(long, requires = "gpu_targets")]
    require_targets: bool,
    /// What to do with code for targets that --gpu-targets does not list
    #[arg(long, value_enum, default_value_t = Unexpected::Drop, requires = "gpu_targets")]
    unexpected: Unexpected,
    /// What to do with files outside of kernel databases that look architecture-specific (a gfx name, an
    /// AMDGPU code object)
    #[arg(long, value_enum, default_value_t = Unknown::Report)]
    unknown: Unknown,
    /// Where archives go in an install prefix, and how they are named
    #[arg(long, value_enum, default_value_t = Layout::Module)]
    layout: Layout,
    /// Replace artifact directories of these names even if kpack did not write them, or if their .kpack-artifact file,
    /// which marks kpack's own output, is missing (as in a tree of fetched artifacts)
    #[arg(long)]
    replace_artifacts: bool,
    #[command(flatten)]
    hint: InstallHint,
    #[command(flatten)]
    storage: StorageArguments,
    #[command(flatten)]
    variants: Variants,
}

/// The output of `--json` for a batch.
#[derive(Debug, Serialize)]
struct BatchSummary<'a> {
    /// `split`, or `failed` if any artifact failed.
    outcome: &'static str,
    /// Why it failed: its ID and details are those of the first artifact, if several failed.
    #[serde(flatten)]
    problem: Option<Problem>,
    #[serde(flatten)]
    report: &'a BatchReport,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let bar = Bar::new(ALL);
    match &arguments.batch_artifact_parent_dir {
        None => {
            let result = options(arguments).and_then(|options| split::split(&options, &bar));
            bar.finish();
            print_one(result, arguments)
        }
        Some(parent) => {
            let result = options(arguments)
                .and_then(|each| split::batch(&BatchOptions::new(parent, each), &bar));
            bar.finish();
            print_batch(result)
        }
    }
}

fn options(arguments: &Arguments) -> Result<Options, Error> {
    let mut options = Options::new(
        arguments.artifact_dir.clone().unwrap_or_default(),
        &arguments.output_dir,
        arguments.artifact_prefix.clone().unwrap_or_default(),
    );
    let known = selection(&arguments.split_databases)?;
    options.databases = DatabaseSelection::new(known, arguments.kernel_files.rules()?);
    options.targets.clone_from(&arguments.gpu_targets);
    options.require_targets = arguments.require_targets;
    options.unexpected = arguments.unexpected;
    options.unknown = arguments.unknown;
    options.layout = arguments.layout;
    options.install_hint.clone_from(&arguments.hint.install_hint);
    options.replace_artifacts = arguments.replace_artifacts;
    options.storage = arguments.storage.storage_for(&arguments.gpu_targets);
    options.storage.complete_variants = arguments.variants.complete_variants;
    if options.layout == Layout::Artifact && options.install_hint.is_some() {
        let text = "--install-hint has no effect with --layout artifact, which writes no manifest; remove one of the two options";
        return Err(Error::usage(text));
    }
    Ok(options)
}

fn names_of(databases: impl IntoIterator<Item = &'static Database>) -> String {
    let names: Vec<&str> = databases.into_iter().map(|each| each.name).collect();
    names.join(", ")
}

fn databases_help() -> String {
    let optional = DATABASES.iter().filter(|database| database.with.is_some());
    format!(
        "Kernel databases whose files move to their targets: `none` alone, or any of auto (all but {}), {}",
        names_of(optional),
        names_of(DATABASES)
    )
}

fn selection(names: &[String]) -> Result<Known, Error> {
    match names {
        [name] if name == "auto" => return Ok(Known::Auto),
        [name] if name == "none" => return Ok(Known::None),
        _ => {}
    }
    for name in names.iter().filter(|name| *name != "auto") {
        if name == "none" {
            let text = "kernel database `none` cannot be combined with others; use it alone";
            return Err(Error::usage(text));
        }
        if !DATABASES.iter().any(|database| database.name == name) {
            return Err(Error::usage(format!(
                "unknown kernel database `{name}` (expected `none` alone, or any of auto, {})",
                names_of(DATABASES)
            )));
        }
    }
    let is_named = |name: &str| names.iter().any(|named| named == name);
    let chosen = DATABASES.iter().filter(|database| {
        let default = is_named("auto") && database.with.is_none();
        default || is_named(database.name) || database.with.is_some_and(is_named)
    });
    Ok(Known::Named(chosen.map(|database| database.name.to_owned()).collect()))
}

/// The most findings of one severity that are printed for an artifact; the JSON has them all.
const MOST_FINDINGS: usize = 40;

fn print_findings(findings: &[Finding]) {
    let most = if print().verbose { usize::MAX } else { MOST_FINDINGS };
    for severity in [Severity::Warning, Severity::Note] {
        let of_kind = || findings.iter().filter(|finding| finding.severity == severity);
        for finding in of_kind().take(most) {
            output::complain_finding(finding);
        }
        let more = of_kind().count().saturating_sub(most);
        if more > 0 && !(severity == Severity::Note && print().quiet) {
            let kind = output::kind(severity);
            let what = count(more as u64, &format!("more {kind}"));
            output::complain(kind, format_args!("{what}; --verbose lists all of them"));
        }
    }
}

fn print_one(result: Result<SplitReport, Error>, arguments: &Arguments) -> Result<ExitCode, Error> {
    if let Ok(report) = &result {
        print_findings(&report.findings);
    }
    let (outcome, result) = match result {
        Ok(report) => (BatchOutcome::Split(report), Ok(ExitCode::SUCCESS)),
        Err(error) => {
            let directory = arguments.artifact_dir.clone().unwrap_or_default();
            let prefix = arguments.artifact_prefix.as_deref().unwrap_or_default();
            let failure = Failure::new(prefix, &directory, &error);
            (BatchOutcome::Failed(failure), Err(error))
        }
    };
    match &outcome {
        outcome if print().json => output::json(outcome)?,
        BatchOutcome::Split(report) if !print().quiet => {
            let mut text = Text::default();
            add_summary(&mut text, report);
            text.write()?;
        }
        BatchOutcome::Split(_) | BatchOutcome::Failed(_) => {}
    }
    result
}

fn print_batch(result: Result<BatchReport, Error>) -> Result<ExitCode, Error> {
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            if print().json {
                output::json(&BatchSummary {
                    outcome: "failed",
                    problem: Some((&error).into()),
                    report: &BatchReport::default(),
                })?;
            }
            return Err(error);
        }
    };
    print_findings(&report.findings);
    let mut text = Text::default();
    let mut split = 0;
    for outcome in &report.artifacts {
        match outcome {
            BatchOutcome::Split(report) => {
                print_findings(&report.findings);
                add_summary(&mut text, report);
                split += 1;
            }
            BatchOutcome::Failed(failure) => {
                output::complain("error", with_id(&failure.error, failure.id));
                text.line(format_args!("{}: failed", failure.artifact_prefix));
            }
        }
    }
    let failures: Vec<&Failure> = report.failures().collect();
    let mut total = format!("{} split", count(split, "artifact"));
    let mut problem = None;
    if let [first, ..] = failures[..] {
        let prefixes = failures.iter().map(|failure| &*failure.artifact_prefix);
        let names = Vec::from_iter(prefixes).join(", ");
        let (failed, all) = (failures.len(), count(report.artifacts.len(), "artifact"));
        total += &format!(", {failed} failed: {names}");
        let (id, details) = (first.id, (*first.details).clone());
        problem =
            Some(Problem { error: format!("{failed} of {all} failed: {names}"), id, details });
    }
    text.line(total);
    if print().json {
        output::json(&BatchSummary {
            outcome: if problem.is_some() { "failed" } else { "split" },
            problem,
            report: &report,
        })?;
    } else if !print().quiet {
        text.write()?;
    }
    Ok(match failures.iter().any(|failure| failure.id == ids::SYSTEM) {
        _ if failures.is_empty() => ExitCode::SUCCESS,
        false => ExitCode::from(3),
        true => ExitCode::from(4),
    })
}

fn add_summary(text: &mut Text, report: &SplitReport) {
    let mut line = format!(
        "{}: {} -> {}",
        report.artifact_prefix,
        size(report.size_before),
        size(report.size_after)
    );
    let counts = [
        (report.binaries.len() as u64, "binary split", "binaries split"),
        (report.already_split, "binary already split", "binaries already split"),
        (
            report.left_generic,
            "file with device code stays generic",
            "files with device code stay generic",
        ),
    ];
    let mut words = Vec::new();
    for (number, one, several) in counts.into_iter().filter(|(number, ..)| *number > 0) {
        words.push(format!("{number} {}", if number == 1 { one } else { several }));
    }
    if !report.device_code {
        words.push("no device code, so only a generic artifact".to_owned());
    }
    if !report.left_out.is_empty() {
        let mut artifacts = report.artifacts.iter();
        let all = if artifacts.any(|artifact| artifact.target.is_some()) { "" } else { "all " };
        let targets = report.left_out.join(", ");
        words.push(format!("skipped {all}device code for {targets}"));
    }
    if !words.is_empty() {
        line += &format!(" ({})", words.join("; "));
    }
    text.line(line);
    let rows = report.artifacts.iter().map(|artifact| {
        let name = artifact.path.file_name().unwrap_or_default();
        vec![
            name.to_string_lossy().into_owned(),
            artifact.files.to_string(),
            size(artifact.size),
            artifact.archives.to_string(),
        ]
    });
    text.table(2, &["artifact", ">files", ">size", ">archives"], rows);
}
