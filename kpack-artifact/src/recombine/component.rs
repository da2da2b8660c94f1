//! One component of all shards, and what is asked of it.

use std::path::Path;

use kpack_format::{Selection, TargetId};
use kpack_split::input::Archives;

use super::Options;
use super::shards::{ComponentArtifacts, Shards};
use crate::packaging::{TargetGroup, Validation};
use crate::tree::{Role, Tree};
use kpack_core::Error;
use kpack_tree::Parsed;

/// A component, and where everything about it is read.
#[derive(Clone, Copy)]
pub(super) struct Component<'a> {
    pub(super) name: &'a str,
    pub(super) options: &'a Options,
    pub(super) shards: &'a Shards,
    /// The archives and digests of inputs.
    pub(super) archives: &'a Archives,
}

impl<'a> Component<'a> {
    /// The shards that have something of it.
    pub(super) fn shards(
        self,
    ) -> impl Iterator<Item = (&'a str, &'a ComponentArtifacts)> + use<'a> {
        self.shards.of(self.name)
    }

    pub(super) fn groups(self) -> &'a [TargetGroup] {
        self.options.configuration.groups_of(self.name)
    }

    pub(super) fn validation(self) -> &'a Validation {
        &self.options.configuration.validation
    }

    /// The targets of each group.
    pub(super) fn selections(self) -> Vec<Selection> {
        let groups = self.groups().iter();
        groups.map(|group| group.architectures.iter().collect()).collect()
    }

    /// Whether a group takes what is for `target`.
    pub(super) fn takes(self, group: &TargetGroup, target: &TargetId) -> bool {
        let taking = Selection::groups_of(&self.selections(), target);
        taking.into_iter().any(|position| self.groups()[position].name == group.name)
    }

    /// A directory name: what the component is called for `suffix`.
    pub(super) fn artifact_name(self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    /// Reads an artifact directory of a shard.
    pub(super) fn tree(self, shard: &str, root: &Path, role: &Role) -> Result<Tree, Error> {
        let parsed = Parsed { binaries: None, archives: Some(&self.archives.parsed) };
        Tree::read(shard, root, role, parsed)
    }
}
