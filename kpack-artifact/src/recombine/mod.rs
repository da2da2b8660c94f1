//! Merges the split artifacts of all shards: into one generic artifact for each component, and one for
//! each group of targets.
//!
//! Each component goes through four phases, and each has a type: `read` gives `Inputs`, `check` findings about them,
//! `merge` the planned artifacts, `Merged`. [`plan()`] does so for all components and looks at them together; it lists
//! everything that is wrong. [`Recombination::apply`] writes every artifact under a hidden name, and renames them when
//! all are complete.

mod apply;
mod check;
mod compare;
mod manifests;
mod merge;
mod options;
mod plan;
mod read;
mod shards;
mod shared_files;
mod target_files;
mod together;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use kpack_core::words::list;
use kpack_core::{Error, ids};

pub use kpack_core::{Finding, Severity};
pub use merge::Artifact;
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
    let worst = found.get(MOST_DIFFERENCES);
    let worst = worst.map(|finding| (finding.severity, finding.id));
    found.truncate(MOST_DIFFERENCES);
    found.extend(worst.map(|(severity, id)| {
        Finding::new(severity, id, root, format!("{more} more differences from {other}"))
    }));
    found
}

fn is_error(finding: &Finding) -> bool {
    finding.severity == Severity::Fault
}
