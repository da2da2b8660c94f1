//! What a walk found, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::{Error, Finding, Spirv, ids};
use kpack_split::input::ClosedBinary;

use crate::entry::{Class, Classified, Entry, Node};

/// The content of a prefix.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Tree {
    /// Everything below the prefix, sorted by path, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// What is worth saying about some of them, by their paths in the prefix: a file that contradicts
    /// itself or is damaged is a fault, one that counts as a host file because it cannot be read is a
    /// warning, all else is a note.
    pub observations: Vec<Finding>,
    /// What was read of the binaries with device code, split or not, by path.
    pub binaries: BTreeMap<PathBuf, Arc<ClosedBinary>>,
    /// Why something could not be listed or read, if the walk goes on then. A directory that could not be listed is
    /// an entry that is not empty.
    pub unread: Vec<Error>,
    /// Leftovers of interrupted runs, if the walk lists them separately, by their paths in the prefix.
    pub leftovers: Vec<PathBuf>,
}

/// What an [inventory](crate::Only::Inventory) has no entries for.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct LeftOut {
    /// Why something could not be listed or read. A file whose content could not be read also has an entry.
    pub unread: Vec<Error>,
    /// Leftovers of interrupted runs, by their paths in the prefix.
    pub leftovers: Vec<PathBuf>,
}

impl Tree {
    pub(crate) fn add(&mut self, Classified { entry, observations, binary }: Classified) {
        let binary = binary.map(|binary| (entry.path.clone(), binary));
        self.binaries.extend(binary);
        self.entries.push(entry);
        self.observations.extend(observations);
    }

    /// Adds what a walk below `prefix` left out, after all entries.
    pub(crate) fn leave_out(&mut self, prefix: &Path, LeftOut { unread, leftovers }: LeftOut) {
        let entries = self.entries.iter_mut();
        let entries = entries.map(|entry| (&*entry.path, &mut entry.node, &mut entry.class));
        mark_empty(entries, &Class::Host);
        let failed = unread.iter().filter_map(|error| match error {
            Error::Io { path, .. } => path.strip_prefix(prefix).ok(),
            _ => None,
        });
        for path in failed {
            let at = self.entries.binary_search_by(|entry| (*entry.path).cmp(path));
            if let Ok(Entry { node: Node::Directory { empty }, class, .. }) =
                at.map(|at| &mut self.entries[at])
            {
                (*empty, *class) = (false, Class::Host);
            }
        }
        self.unread = unread;
        self.leftovers = leftovers;
    }

    /// Takes binaries that stay because of their SPIR-V for fat ones, if that is dropped or archived.
    pub fn treat_spirv(&mut self, spirv: Spirv) {
        let fat = no_more_kept(&mut self.observations, spirv);
        let entries = self.entries.iter_mut();
        let entries = entries.filter(|entry| fat.contains(&entry.path));
        entries.for_each(|entry| entry.class = Class::Fat);
    }
}

/// Removes the binaries that do not stay from observations.
pub fn no_more_kept(found: &mut Vec<Finding>, spirv: Spirv) -> BTreeSet<PathBuf> {
    let stays = |o: &Finding| o.id != ids::SPIRV_KEPT || spirv == Spirv::Keep;
    let (stay, fat): (Vec<_>, Vec<_>) = std::mem::take(found).into_iter().partition(stays);
    *found = stay;
    fat.into_iter().filter_map(|found| found.path).collect()
}

/// Marks a directory as not empty, and its class as `host`, if the next entry is in it.
pub fn mark_empty<'e, C: Clone + 'e>(
    entries: impl Iterator<Item = (&'e Path, &'e mut Node, &'e mut C)>,
    host: &C,
) {
    let mut last: Option<(&Path, &mut Node, &mut C)> = None;
    for next in entries {
        if let Some((path, node, class)) = last
            && *node == (Node::Directory { empty: true })
            && next.0.starts_with(path)
        {
            *node = Node::Directory { empty: false };
            class.clone_from(host);
        }
        last = Some(next);
    }
}
