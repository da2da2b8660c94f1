//! Target-specific host files, such as the plugins of a library: only the shard that builds for the
//! target has them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_format::{TargetId, target_names};

use super::Severity;
use super::component::Component;
use crate::classify::Class;
use crate::tree::{Item, Tree};
use kpack_core::ids;

impl Component<'_> {
    /// Adds the target-specific host files that `tree` has and the `first` one, whose other host files
    /// are taken, lacks.
    pub(super) fn take_target_files(
        &mut self,
        first: &Tree,
        tree: &Tree,
        taken: &mut BTreeMap<PathBuf, Item>,
    ) {
        for (path, item, target) in self.target_files(tree, first) {
            let text = format!(
                "taken: only shard {} builds for {target}, and only it has this host file",
                tree.shard
            );
            self.say(Severity::Note, ids::MERGED_FILE, &item.from, text);
            taken.insert(path.to_owned(), item.clone());
        }
    }

    /// The target-specific host files of `tree` that `other` lacks: their names have one target, which a
    /// group lists and no other shard builds for.
    pub(super) fn target_files<'t>(
        &self,
        tree: &'t Tree,
        other: &Tree,
    ) -> Vec<(&'t Path, &'t Item, TargetId)> {
        let entries = tree.entries.iter();
        let entries = entries.filter(|(path, _)| !other.entries.contains_key(*path));
        let own = entries.filter_map(|(path, item)| {
            let target = self.only_target(path, item)?;
            Some((&**path, item, target))
        });
        own.collect()
    }

    fn only_target(&self, path: &Path, item: &Item) -> Option<TargetId> {
        let is_host = match item.class {
            Class::Host | Class::Split => true,
            Class::Unknown { device_code, .. } => !device_code,
            Class::Fat | Class::Target { .. } => false,
        };
        if item.is_directory() || !is_host || item.for_all(path).is_some() {
            return None;
        }
        let target = target_names::only_in_file_name(path.file_name()?.to_str()?)?;
        let agrees = |own: &TargetId| target.agrees_with(own);
        let groups = self.options.configuration.groups_of(self.name);
        let with = self.shards_with(agrees);
        let mut taken = groups.iter().flat_map(|group| &group.architectures);
        let is_taken = taken.any(agrees);
        let is_only = with.len() == 1 && with.contains(&*item.shard);
        (is_taken && is_only).then_some(target)
    }
}
