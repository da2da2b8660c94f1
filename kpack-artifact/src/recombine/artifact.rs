//! The artifacts that a merge writes.

use std::collections::BTreeSet;

use kpack_format::TargetId;
use serde::Serialize;

use crate::output::Output;

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
    pub(super) output: Output,
}

fn as_text<S: serde::Serializer>(
    targets: &BTreeSet<TargetId>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(targets.iter().map(TargetId::to_string))
}
