//! `kpack artifact recombine`.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::cli::exit_codes::Problem;
use crate::cli::output::{self, Text, count, size};
use crate::cli::print::print;
use crate::cli::progress::{ALL, Bar, COMPONENTS};
use kpack_artifact::packaging::Configuration;
use kpack_artifact::recombine::{Artifact, Finding, Options, Recombination, plan};
use kpack_core::Error;
use kpack_store::check_shards;

/// Merge the split artifacts of several shards: a generic artifact, and one for each group of targets
///
/// A shard is a directory with the output of `kpack artifact split`. Host files come from the primary shard, or else
/// from the first one with the component, and must match those of the other shards. Device code comes from every
/// shard. kpack only reads the shards. If a component has an error, kpack does not write it, but still writes the
/// others.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Configuration (JSON):
  {
    \"primary_shard\": \"linux-gfx110X\",
    \"shards\": [\"linux-gfx110X\", \"linux-instinct\"],
    \"architecture_groups\": {
      \"gfx110X\": {\"display_name\": \"Radeon RX 7000\", \"architectures\": [\"gfx1100\", \"gfx1101\"]},
      \"instinct\": {\"architectures\": [\"gfx90a:xnack+\", \"gfx942\"]}
    },
    \"component_overrides\": {\"sparselt_lib\": {\"architecture_groups\": [\"instinct\"]}},
    \"validation\": {
      \"error_on_duplicate_device_code\": true,
      \"verify_generic_artifacts_match\": true,
      \"error_on_missing_architecture\": false
    }
  }

", exit_codes!("an input was rejected (damaged or unsupported), or the shards do not fit together")))]
pub(super) struct Arguments {
    /// Directory with one subdirectory for each shard
    #[arg(long, value_name = "DIR")]
    input_shards_dir: PathBuf,
    /// Configuration: which targets go into which artifact
    #[arg(long, value_name = "FILE.json")]
    config: PathBuf,
    /// Directory for the artifacts; existing ones are replaced
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Component to recombine, such as blas_lib. Can be repeated. Default: all
    #[arg(long, value_name = "NAME")]
    component: Vec<String>,
    /// Reject a shard without an index from `kpack artifact unpack`, or whose artifacts do not match it
    #[arg(long)]
    require_index: bool,
    /// Also write what --json prints into FILE, whatever the outcome
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Reject a configuration with unknown keys
    #[arg(long)]
    strict: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    /// `recombined`, `planned` with `--dry-run`, or `failed`.
    outcome: &'static str,
    /// Why it failed.
    #[serde(flatten)]
    problem: Option<Problem>,
    /// The components that were not written, or would not be.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    failed: &'a BTreeSet<String>,
    artifacts: &'a [Artifact],
    findings: &'a [Finding],
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    let mut plan = Recombination::default();
    let result = recombine(arguments, &mut plan);
    let error = result.as_ref().err();
    let report = Summary {
        outcome: match (error, arguments.dry_run) {
            (Some(_), _) => "failed",
            (None, true) => "planned",
            (None, false) => "recombined",
        },
        problem: error.map(Problem::from),
        failed: &plan.failed,
        artifacts: &plan.artifacts,
        findings: &plan.findings,
    };
    let printed = if print().json {
        output::json(&report)
    } else if plan.failed.len() < plan.components && !print().quiet {
        summary(&plan).write()
    } else {
        Ok(())
    };
    let file = arguments.report.as_ref();
    let written = file.map_or(Ok(()), |path| output::json_file(path, &report));
    if result.is_err() {
        // Why the shards do not fit together matters more than where the report went.
        for error in [written, printed].into_iter().filter_map(Result::err) {
            output::complain_error(&error);
        }
        return result.map(|()| ExitCode::SUCCESS);
    }
    written.and(printed)?;
    Ok(ExitCode::SUCCESS)
}

/// Plans the merge and, without `--dry-run`, writes it. `planned` holds the plan even if it was
/// rejected.
fn recombine(arguments: &Arguments, planned: &mut Recombination) -> Result<(), Error> {
    let configuration = Configuration::read(&arguments.config)?;
    for error in configuration.unknown_keys() {
        if arguments.strict {
            return Err(error);
        } else {
            output::complain("warning", format_args!("ignored: {}", error.in_one_line()))
        }
    }
    let shards_dir = &arguments.input_shards_dir;
    let mut options = Options::new(shards_dir, configuration, &arguments.output_dir);
    options.components.clone_from(&arguments.component);
    options.jobs = arguments.jobs.unwrap_or(options.jobs);
    if arguments.require_index {
        check_shards(shards_dir)?;
    }
    let components = Bar::new(COMPONENTS);
    *planned = plan(&options, &components)?;
    components.finish();
    for finding in &planned.findings {
        output::complain_finding(finding);
    }
    if arguments.dry_run || planned.failed.len() == planned.components {
        return planned.failure(&options.shards_dir);
    }
    let bar = Bar::new(ALL);
    let applied = planned.apply(&options, &bar);
    bar.finish();
    let failed = applied.inspect_err(|_| {
        let all = planned.artifacts.iter();
        planned.failed = all.map(|artifact| artifact.component.clone()).collect();
    })?;
    for (component, error) in failed {
        output::complain_error(&error);
        planned.io |= matches!(error, Error::Io { .. });
        planned.failed.insert(component);
    }
    planned.failure(&options.shards_dir)
}

fn summary(plan: &Recombination) -> Text {
    let rows = plan.writable().map(|artifact| {
        let targets: Vec<String> = artifact.targets.iter().map(ToString::to_string).collect();
        let shards: Vec<&str> = artifact.shards.iter().map(String::as_str).collect();
        vec![
            artifact.name.clone(),
            count(artifact.files, "file"),
            size(artifact.size),
            shards.join(" "),
            match (&artifact.group, targets.is_empty()) {
                (None, true) => "no device code".to_owned(),
                _ => targets.join(" "),
            },
        ]
    });
    let mut text = Text::default();
    let heading = ["artifact", ">files", ">size", "from shards", "targets"];
    text.table(0, &heading, rows);
    text
}
