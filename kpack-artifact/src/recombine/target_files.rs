//! Target-specific host files, such as the plugins of a library: only the shard that builds for the
//! target has them.

use kpack_format::TargetId;
use kpack_format::unstable::target_names;

use super::read::Inputs;
use crate::tree::Tree;
use kpack_tree::{Class, Entry};

/// The target-specific host files of `tree` that `other` lacks: their names have one target, which a
/// group lists and no other shard builds for.
pub(super) fn target_files<'t>(
    inputs: &Inputs<'_>,
    tree: &'t Tree,
    other: &'t Tree,
) -> Vec<(&'t Entry, TargetId)> {
    let own = tree.entries.difference(&other.entries);
    own.filter_map(|item| Some((item, only_target(inputs, item)?))).collect()
}

fn only_target(inputs: &Inputs<'_>, item: &Entry) -> Option<TargetId> {
    let is_host = match *item.class {
        Class::Host | Class::Split => true,
        Class::Unknown { device_code, .. } => !device_code,
        Class::Fat | Class::Target { .. } => false,
    };
    if item.is_directory() || !is_host || item.for_all().is_some() {
        return None;
    }
    let target = target_names::only_in_file_name(item.path.file_name()?.to_str()?)?;
    let agrees = |own: &TargetId| target.agrees_with(own);
    let with = inputs.shards_with(agrees);
    let mut taken = inputs.component.groups().iter().flat_map(|group| &group.architectures);
    let is_taken = taken.any(agrees);
    let is_only = with.len() == 1 && with.contains(&*item.origin.tree);
    (is_taken && is_only).then_some(target)
}
