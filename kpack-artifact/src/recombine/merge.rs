//! Merges files for all targets, where each shard has the part of its own targets.

use std::collections::BTreeMap;
use std::path::Path;

use super::Severity;
use super::component::Component;
use crate::databases::Merge;
use crate::differences;
use crate::output::Output;
use crate::shared::Entries;
use crate::tree::{Item, Tree};
use kpack_core::words::{list, list_some};
use kpack_core::{Error, ids};

/// Maximum number of differing entries or files to name.
pub(super) const MOST_NAMES: usize = 5;

/// A file for all targets with the entries of all shards.
pub(super) struct MergedFile<'t> {
    like: &'t Item,
    /// The bytes, if no shard's copy has everything.
    bytes: Option<Vec<u8>>,
    shards: Vec<String>,
}

impl MergedFile<'_> {
    /// Adds it at `path`, and the directories that it is in.
    pub(super) fn add_to(self, path: &Path, output: &mut Output) {
        output.add_prefixes(&[self.like.prefix.to_string()]);
        match self.bytes {
            Some(bytes) => output.add_bytes(path, bytes, &self.like.from),
            None => output.add(path, self.like),
        }
        output.shards.extend(self.shards);
    }
}

struct ShardCopy<'a> {
    item: &'a Item,
    entries: Entries,
}

impl Component<'_> {
    /// Merges the shared files of the generic artifacts `trees`, so that each has the entries of all
    /// shards.
    pub(super) fn merge_shared<'t>(
        &mut self,
        trees: &'t [Tree],
    ) -> Result<BTreeMap<&'t Path, MergedFile<'t>>, Error> {
        let mut files: BTreeMap<&Path, Merge> = BTreeMap::new();
        for tree in trees {
            let entries = tree.entries.iter();
            files.extend(entries.filter_map(|(path, item)| Some((&**path, item.shared(path)?))));
        }
        let mut merged = BTreeMap::new();
        for (path, kind) in files {
            let copies = self.copies(path, kind, trees)?;
            if let Some(file) = self.merge(&copies)? {
                merged.insert(path, file);
            }
        }
        Ok(merged)
    }

    /// The shards' copies of a shared file; none if they are not in the expected format, which makes
    /// them host files like others.
    fn copies<'t>(
        &mut self,
        path: &Path,
        kind: Merge,
        trees: &'t [Tree],
    ) -> Result<Vec<ShardCopy<'t>>, Error> {
        let mut copies = Vec::new();
        for tree in trees {
            let Some(item) = tree.entries.get(path) else {
                continue;
            };
            match Entries::read(&item.from, kind)? {
                Ok(entries) => copies.push(ShardCopy { item, entries }),
                Err(reason) => {
                    let found = trees.iter().filter_map(|tree| tree.entries.get(path));
                    self.all_the_same(&found.collect::<Vec<_>>(), &reason)?;
                    return Ok(Vec::new());
                }
            }
        }
        Ok(copies)
    }

    /// Compares copies that cannot be merged, for `reason`, as host files.
    fn all_the_same(&mut self, copies: &[&Item], reason: &str) -> Result<(), Error> {
        let severity = if self.compares_host_files() { Severity::Fault } else { Severity::Warning };
        let Some((first, others)) = copies.split_first() else {
            return Ok(());
        };
        for other in others {
            if let Some(difference) = differences::explain(&first.from, &other.from)? {
                let text = format!(
                    "cannot be merged with shard {}'s ({reason}), and {}",
                    first.shard, difference.text
                );
                self.say(severity, ids::UNMERGEABLE_FILE, &other.from, text);
            }
        }
        Ok(())
    }

    fn merge<'t>(&mut self, copies: &[ShardCopy<'t>]) -> Result<Option<MergedFile<'t>>, Error> {
        let Some((first, others)) = copies.split_first() else {
            return Ok(None);
        };
        let mut all = first.entries.clone();
        for (index, copy) in others.iter().enumerate() {
            let differ = all.merge(copy.entries.clone());
            if differ.is_empty() {
                continue;
            }
            let before = copies[..=index].iter();
            let (severity, end) = if self.strict() {
                (Severity::Fault, "let only one shard build for it")
            } else {
                (Severity::Warning, "the first one's is taken")
            };
            let text = format!(
                "its entries {} {} differ between shards {} and {}; {end}",
                all.noun(),
                list_some(differ, MOST_NAMES),
                list(before.map(|copy| &copy.item.shard)),
                copy.item.shard
            );
            self.say(severity, ids::DUPLICATE_DEVICE_CODE, &copy.item.from, text);
        }
        if let Some(whole) = copies.iter().find(|copy| copy.entries.same(&all)) {
            return Ok(Some(MergedFile { like: whole.item, bytes: None, shards: Vec::new() }));
        }
        let shards = copies.iter().map(|copy| copy.item.shard.to_string());
        let shards: Vec<String> = shards.collect();
        let text = format!("merged from the copies of {}", list(&shards));
        self.say(Severity::Note, ids::MERGED_FILE, &first.item.from, text);
        let bytes = all.to_bytes();
        let bytes = bytes.map_err(|e| Error::io(&first.item.from, "merge", e))?;
        Ok(Some(MergedFile { like: first.item, bytes: Some(bytes), shards }))
    }
}
