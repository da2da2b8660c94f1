//! What a walk found, in order.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use kpack_core::{Error, Finding, Spirv, ids};

use crate::entry::{Class, Entry, Node};

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
    /// Why something could not be listed or read, if the walk goes on then. A directory that could not be listed is
    /// an entry that is not empty.
    pub unread: Vec<Error>,
    /// Leftovers of interrupted runs, if the walk lists them separately, by their paths in the prefix.
    pub leftovers: Vec<PathBuf>,
}

impl From<Vec<Entry>> for Tree {
    /// These are sorted by their paths.
    fn from(mut entries: Vec<Entry>) -> Self {
        mark_empty(&mut entries);
        Self { entries, ..Self::default() }
    }
}

impl Tree {
    /// Adds why something could not be listed or read, after all entries.
    pub(crate) fn leave_unread(&mut self, unread: Vec<Error>) {
        for error in &unread {
            if let Error::Io { path, .. } = error
                && let Ok(at) = self.entries.binary_search_by(|entry| entry.full().cmp(path))
                && self.entries[at].is_directory()
            {
                let entry = &mut self.entries[at];
                *entry = Entry { node: Node::Directory { empty: false }, ..entry.clone() };
            }
        }
        self.unread = unread;
    }

    /// Takes binaries that stay because of their SPIR-V for fat ones, if that is dropped or archived.
    pub fn treat_spirv(&mut self, spirv: Spirv) {
        let stays = |o: &Finding| o.id != ids::SPIRV_KEPT || spirv == Spirv::Keep;
        let (stay, fat): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.observations).into_iter().partition(stays);
        self.observations = stay;
        let fat: BTreeSet<PathBuf> = fat.into_iter().filter_map(|found| found.path).collect();
        let class = Arc::new(Class::Fat);
        for entry in self.entries.iter_mut().filter(|entry| fat.contains(&*entry.path)) {
            entry.class = Arc::clone(&class);
        }
    }
}

/// Marks each directory as not empty, and of no target, if the next entry is in it.
fn mark_empty(entries: &mut [Entry]) {
    let host = Arc::new(Class::Host);
    for at in 1..entries.len() {
        let [directory, next] = &mut entries[at - 1..=at] else { continue };
        if directory.is_directory() && next.path.starts_with(&*directory.path) {
            directory.node = Node::Directory { empty: false };
            directory.class = Arc::clone(&host);
        }
    }
}
