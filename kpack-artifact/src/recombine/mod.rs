//! Merges the split artifacts of all shards: into one generic artifact for each component, and one for
//! each group of targets.
//!
//! `shards` finds the artifacts. Each component then goes through three steps: `read` gives `Inputs`, `check` gives
//! findings about them, and `merge` gives the planned artifacts, `MergedComponent`. [`plan()`] takes all components
//! through these steps, compares them in `together`, and lists everything that is wrong. [`Recombination::apply`] writes
//! every artifact under a hidden name, and renames them when all are complete.

mod apply;
mod check;
mod manifests;
mod merge;
mod read;
mod shards;
mod together;
mod tree_differences;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_core::parallel::{self, processors};
use kpack_core::report::Progress;
use kpack_core::words::list;
use kpack_core::{Error, Reason, ids};
use kpack_split::input::Archives;

use crate::packaging::Configuration;
use check::check;
use merge::{MergedComponent, merge};
use read::{Component, read};
use shards::Shards;
use together::together;

pub use kpack_core::{Finding, Severity};
pub use merge::Artifact;

/// What to recombine, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// A directory for each shard, with its split artifacts. It is only read.
    pub shards_dir: PathBuf,
    /// Which targets go into which artifacts.
    pub configuration: Configuration,
    /// The output directory.
    pub output_dir: PathBuf,
    /// The components to recombine; if empty, all.
    pub components: Vec<String>,
    /// Number of threads.
    pub jobs: NonZeroUsize,
}

impl Options {
    /// Options with defaults for everything else: all components, one thread per processor.
    pub fn new(
        shards_dir: impl Into<PathBuf>,
        configuration: Configuration,
        output_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            shards_dir: shards_dir.into(),
            configuration,
            output_dir: output_dir.into(),
            components: Vec::new(),
            jobs: processors(),
        }
    }
}

/// The artifacts to write, and what is wrong with them.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Recombination {
    /// The artifacts, by name.
    pub artifacts: Vec<Artifact>,
    /// Findings about the shards. A component with an error is not written.
    pub findings: Vec<Finding>,
    /// The components with errors.
    pub failed: BTreeSet<String>,
    /// Whether reading one of them failed, rather than that its shards were refused.
    pub io: bool,
    /// How many components there are.
    pub components: usize,
}

/// Reads the shards and plans the artifacts. Writes nothing. `progress` counts components.
///
/// # Errors
/// [`Error::Refused`] for a directory without shards and a primary shard that is not there;
/// [`Error::Usage`] for a component that no shard has; [`Error::Io`]. Damaged files, and what is
/// wrong with the shards together, are no errors here, but among the plan's findings.
pub fn plan(options: &Options, progress: &dyn Progress) -> Result<Recombination, Error> {
    let shards = Shards::read(options)?;
    let components = shards.chosen(options)?;
    let mut plan = Recombination {
        findings: shards.unused(options),
        components: components.len(),
        ..Recombination::default()
    };
    let archives = Archives::default();
    progress.start(components.len() as u64);
    let planned = parallel::with_jobs(options.jobs, || {
        parallel::map(&components, |name| {
            progress.file(Path::new(name));
            let component = Component { name, options, shards: &shards, archives: &archives };
            let merged = read(component).and_then(|(inputs, mut findings)| {
                findings.extend(check(&inputs)?);
                merge(&inputs, findings)
            });
            progress.advance(1);
            (*name, merged)
        })
    });
    let mut read = Vec::new();
    for (name, component) in planned {
        let MergedComponent { artifacts, findings } = match component {
            Ok(merged) => {
                read.push(name);
                merged
            }
            // A damaged file, or one that cannot be read; the others go on.
            Err(error) => {
                plan.io |= matches!(error, Error::Io { .. });
                let id = error.id();
                let (path, text) = match error {
                    Error::Refused { path, reason, details, .. } => {
                        (path, Reason::new(reason, details))
                    }
                    error => (options.shards_dir.clone(), Reason::from(&error)),
                };
                let finding = Finding::new(Severity::Fault, id, path, text);
                MergedComponent { artifacts: Vec::new(), findings: vec![finding] }
            }
        };
        if findings.iter().any(is_error) {
            plan.failed.insert(name.to_owned());
        }
        plan.artifacts.extend(artifacts);
        plan.findings.extend(findings);
    }
    for (components, finding) in together(options, &shards, &read, &plan.artifacts)? {
        if is_error(&finding) {
            plan.failed.extend(components);
        }
        plan.findings.push(finding);
    }
    Ok(plan)
}

/// A finding, and the components that it is about.
type Concerning = (Vec<String>, Finding);

impl Recombination {
    /// Number of errors.
    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|f| is_error(f)).count()
    }

    /// The artifacts of the components that did not fail.
    pub fn writable(&self) -> impl Iterator<Item = &Artifact> {
        let artifacts = self.artifacts.iter();
        artifacts.filter(|artifact| !self.failed.contains(&artifact.component))
    }

    /// The error that names the components that failed, of the shards in `directory`; none where all
    /// can be written.
    pub fn failure(&self, directory: &Path) -> Result<(), Error> {
        let (failed, all) = (self.failed.len(), self.components);
        let text = match failed {
            0 => return Ok(()),
            _ if failed == all => match self.errors() {
                1 => "1 error; nothing was written".to_owned(),
                errors => format!("{errors} errors; nothing was written"),
            },
            _ => format!("{failed} of {all} components failed: {}", list(&self.failed)),
        };
        Err(if self.io {
            Error::io(directory, "recombine", io::Error::other(text))
        } else {
            Error::rejected(ids::FAILED_COMPONENTS, directory, text)
        })
    }
}

/// How many differences between two trees are listed one by one.
const MOST_DIFFERENCES: usize = 20;
/// Maximum number of differing entries or files to name.
const MOST_NAMES: usize = 5;

/// What differs in the tree at `root` from `other`, the worst first: what is an error is not to be cut off.
fn worst_first(mut found: Vec<Finding>, root: &Path, other: &str) -> Vec<Finding> {
    found.sort_by_key(|finding| Reverse(finding.severity));
    let more = found.len().saturating_sub(MOST_DIFFERENCES);
    let worst = found.get(MOST_DIFFERENCES).map(|finding| (finding.severity, finding.id));
    found.truncate(MOST_DIFFERENCES);
    found.extend(worst.map(|(severity, id)| {
        Finding::new(severity, id, root, format!("{more} more differences from {other}"))
    }));
    found
}

fn is_error(finding: &Finding) -> bool {
    finding.severity == Severity::Fault
}
