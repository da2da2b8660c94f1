//! Merges the split artifacts of all shards: into one generic artifact for each component, and one for
//! each group of targets.
//!
//! [`plan`] reads everything; the plan lists everything that is wrong. Nothing gets a name before all of it was read.
//! [`Recombination::apply`] writes every artifact under a hidden name, and renames them when all are complete.

mod apply;
mod compare;
mod component;
mod finished;
mod generic;
mod group;
mod host_files;
mod inputs;
mod manifests;
mod merge;
mod plan;
mod published;
mod shards;
mod target_files;
mod together;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use serde::Serialize;

use self::finished::Made;
use self::inputs::Inputs;
use super::output::Output;
use super::packaging::Configuration;
use kpack_core::parallel::processors;
use kpack_core::words::list;
use kpack_core::{Error, ids};

pub use kpack_core::{Finding, Severity};
pub use plan::plan;

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
    /// Whether each shard must have the index that `kpack unpack` left, and the artifacts that it lists, by name and
    /// size.
    pub require_index: bool,
    /// Whether [`apply`](Recombination::apply) follows. Inputs are then copied into the output directory, without
    /// names, while they are read: each is read once.
    pub will_apply: bool,
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
            require_index: false,
            will_apply: false,
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
    /// The components that an earlier run finished, from the same contents. They are not written again.
    pub finished: BTreeSet<String>,
    /// What each component is made of, if its shards have indexes.
    made: BTreeMap<String, Made>,
    inputs: Inputs,
}

/// An artifact to be written.
#[derive(Debug, Default, Serialize)]
pub struct Artifact {
    /// The name of its directory.
    pub name: String,
    /// The component.
    pub component: String,
    /// The group; `None` for the generic artifact.
    pub group: Option<String>,
    /// The name of the group for people.
    pub display_name: Option<String>,
    /// The shards that it is from.
    pub shards: BTreeSet<String>,
    /// The targets that it has device code for; of the generic artifact, those of all groups.
    #[serde(serialize_with = "as_text")]
    pub targets: BTreeSet<TargetId>,
    /// Number of files and symbolic links.
    pub files: u64,
    /// Size of the files in bytes.
    pub size: u64,
    #[serde(skip)]
    output: Output,
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
            _ => format!(
                "{failed} of {all} components failed: {}",
                list(&self.failed)
            ),
        };
        Err(if self.io {
            Error::io(directory, "recombine", io::Error::other(text))
        } else {
            Error::rejected(ids::FAILED_COMPONENTS, directory, text)
        })
    }
}

fn is_error(finding: &Finding) -> bool {
    finding.severity == Severity::Fault
}

fn as_text<S: serde::Serializer>(
    targets: &BTreeSet<TargetId>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(targets.iter().map(TargetId::to_string))
}
