//! Merges the split artifacts of all shards: into one generic artifact for each component, and one for
//! each group of targets.
//!
//! [`plan`] reads everything; the plan lists everything that is wrong. Nothing gets a name before all of it was read.
//! [`Recombination::apply`] writes every artifact under a hidden name, and renames them when all are complete.

mod apply;
mod artifact;
mod compare;
mod component;
mod finished;
mod generic;
mod group;
mod host_files;
mod inputs;
mod manifests;
mod merge;
mod options;
mod plan;
mod published;
mod shards;
mod target_files;
mod together;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use self::finished::Made;
use self::inputs::Inputs;
use kpack_core::words::list;
use kpack_core::{Error, ids};

pub use artifact::Artifact;
pub use kpack_core::{Finding, Severity};
pub use options::Options;
pub use plan::plan;

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

fn is_error(finding: &Finding) -> bool {
    finding.severity == Severity::Fault
}
