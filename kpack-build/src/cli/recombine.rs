//! `kpack recombine`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;

use super::output::{self, count, size, table};
use super::progress::{ALL, draw_target, style};
use crate::Error;
use crate::artifact::packaging::Configuration;
use crate::artifact::recombine::{Options, Plan, Severity, plan};

/// Combine the split artifacts of several shards: one generic artifact, one for each group of targets
///
/// Each shard is a directory with the output of `kpack split`. Host files come from the primary
/// shard; the other shards' have to be the same. Device code comes from whichever shard has the
/// target. The shards are only read, and nothing is written where something is wrong with them.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Configuration (JSON):
  {
    \"primary_shard\": \"linux-gfx110X\",
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

Exit codes:
  0  fine
  2  wrong usage
  3  an input was refused: damaged, or shards that do not go together
  4  reading or writing failed"))]
pub(super) struct Arguments {
    /// Directory with a directory for each shard
    #[arg(long, value_name = "DIR")]
    input_shards_dir: PathBuf,
    /// Configuration: which targets go into which artifacts
    #[arg(long, value_name = "FILE.json")]
    config: PathBuf,
    /// Where the artifacts go; one that is there is replaced
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Component to recombine, such as blas_lib. Can be repeated; without it, all
    #[arg(long, value_name = "NAME")]
    component: Vec<String>,
    /// How many artifacts are read and written at once; by default, as many as there are processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Print errors and warnings only
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let default_jobs = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = Options {
        shards_dir: arguments.input_shards_dir.clone(),
        configuration: Configuration::read(&arguments.config)?,
        output_dir: arguments.output_dir.clone(),
        components: arguments.component.clone(),
        jobs: arguments.jobs.unwrap_or(default_jobs),
    };
    let bar = ProgressBar::no_length();
    bar.set_draw_target(draw_target(arguments.quiet || arguments.json));
    bar.set_style(style("{bar:40} {pos}/{len} components read"));
    let plan = plan(&options, &|_, total| {
        bar.set_length(total as u64);
        bar.inc(1);
    })?;
    bar.reset();
    bar.set_style(style(ALL));
    bar.set_length(plan.artifacts.iter().map(|artifact| artifact.size).sum());
    let refused = plan.errors() > 0;
    let applied = match refused || arguments.dry_run {
        true => Ok(()),
        false => plan.apply(&options, &|bytes| bar.inc(bytes)),
    };
    bar.finish_and_clear();

    for finding in &plan.findings {
        let kind = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note if arguments.quiet => continue,
            Severity::Note => "note",
        };
        output::complain(
            kind,
            format_args!("{}: {}", finding.path.display(), finding.text),
        );
    }
    applied?;
    if arguments.json {
        output::json(&plan)?;
    } else if !arguments.quiet && !refused {
        output::write(summary(&plan))?;
    }
    if refused {
        output::complain(
            "error",
            format_args!(
                "{}: {}; nothing was written",
                options.shards_dir.display(),
                count(plan.errors() as u64, "error")
            ),
        );
        return Ok(ExitCode::from(3));
    }
    Ok(ExitCode::SUCCESS)
}

fn summary(plan: &Plan) -> String {
    let rows = plan.artifacts.iter().map(|artifact| {
        let targets: Vec<String> = artifact.targets.iter().map(ToString::to_string).collect();
        let shards: Vec<&str> = artifact.shards.iter().map(String::as_str).collect();
        vec![
            artifact.name.clone(),
            count(artifact.files as u64, "file"),
            size(artifact.size),
            shards.join(" "),
            match (&artifact.group, targets.is_empty()) {
                (None, true) => "no device code".to_owned(),
                _ => targets.join(" "),
            },
        ]
    });
    table(
        0,
        &["artifact", ">files", ">size", "from shards", "targets"],
        rows,
    )
}
