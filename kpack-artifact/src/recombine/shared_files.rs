//! Merges files for all targets, where each shard has the part of its own targets.

use std::collections::BTreeMap;
use std::path::Path;

use super::read::Component;
use super::{Finding, MOST_NAMES, Severity};
use crate::compare::explain;
use crate::output::Output;
use crate::shared::Entries;
use crate::tree::Tree;
use kpack_core::words::{list, list_some};
use kpack_core::{Error, ids};
use kpack_tree::Entry;
use kpack_tree::place::Merge;

/// A file for all targets with the entries of all shards.
pub(super) struct MergedFile<'t> {
    like: &'t Entry,
    /// The bytes, if no shard's copy has everything.
    bytes: Option<Vec<u8>>,
    shards: Vec<String>,
}

impl MergedFile<'_> {
    /// Adds it, and the directories that it is in.
    pub(super) fn add_to(self, output: &mut Output) {
        output.add_prefixes(&[self.like.origin.prefix.to_string()]);
        match self.bytes {
            Some(bytes) => output.add_bytes(&self.like.path, bytes, self.like.full()),
            None => output.add(self.like),
        }
        output.shards.extend(self.shards);
    }
}

struct ShardCopy<'a> {
    item: &'a Entry,
    entries: Entries,
}

/// The merged files, by path.
type MergedFiles<'t> = BTreeMap<&'t Path, MergedFile<'t>>;

/// Merges the shared files of the generic artifacts `trees`, so that each has the entries of all
/// shards.
pub(super) fn merge_shared<'t>(
    component: Component<'_>,
    trees: &[&'t Tree],
) -> Result<(MergedFiles<'t>, Vec<Finding>), Error> {
    let mut files: BTreeMap<&Path, Merge> = BTreeMap::new();
    for tree in trees {
        let entries = tree.entries.iter();
        files.extend(entries.filter_map(|item| Some((&*item.path, item.shared()?))));
    }
    let (mut merged, mut findings) = (BTreeMap::new(), Vec::new());
    for (path, kind) in files {
        let items = trees.iter().filter_map(|tree| tree.entries.get(path));
        let items = Vec::from_iter(items);
        match copies(&items, kind)? {
            Ok(copies) => {
                let (file, found) = merge(component, &copies)?;
                findings.extend(found);
                merged.extend(file.map(|file| (path, file)));
            }
            Err(reason) => findings.extend(all_the_same(component, &items, &reason)?),
        }
    }
    Ok((merged, findings))
}

/// The shards' copies of a shared file; or why one is not in the expected format, which makes
/// them host files like others.
fn copies<'t>(
    items: &[&'t Entry],
    kind: Merge,
) -> Result<Result<Vec<ShardCopy<'t>>, String>, Error> {
    let mut copies = Vec::new();
    for item in items {
        match Entries::read(item.full(), kind)? {
            Ok(entries) => copies.push(ShardCopy { item, entries }),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(copies))
}

/// Compares copies that cannot be merged, for `reason`, as host files.
fn all_the_same(
    component: Component<'_>,
    copies: &[&Entry],
    reason: &str,
) -> Result<Vec<Finding>, Error> {
    let severity = if component.validation().verify_generic_artifacts_match {
        Severity::Fault
    } else {
        Severity::Warning
    };
    let mut findings = Vec::new();
    let Some((first, others)) = copies.split_first() else {
        return Ok(findings);
    };
    for other in others {
        if let Some(explanation) = explain(first.full(), other.full())? {
            let shard = &first.origin.tree;
            let text = explanation
                .text
                .after(format_args!("cannot be merged with shard {shard}'s ({reason}), and "));
            findings.push(Finding::new(severity, ids::UNMERGEABLE_FILE, other.full(), text));
        }
    }
    Ok(findings)
}

fn merge<'t>(
    component: Component<'_>,
    copies: &[ShardCopy<'t>],
) -> Result<(Option<MergedFile<'t>>, Vec<Finding>), Error> {
    let mut findings = Vec::new();
    let Some((first, others)) = copies.split_first() else {
        return Ok((None, findings));
    };
    let mut all = first.entries.clone();
    for (index, copy) in others.iter().enumerate() {
        let differ = all.merge(copy.entries.clone());
        if differ.is_empty() {
            continue;
        }
        let before = copies[..=index].iter();
        let (severity, end) = if component.validation().error_on_duplicate_device_code {
            (Severity::Fault, "let only one shard build for it")
        } else {
            (Severity::Warning, "the first one's is taken")
        };
        let text = format!(
            "its entries {} {} differ between shards {} and {}; {end}",
            all.noun(),
            list_some(differ, MOST_NAMES),
            list(before.map(|copy| &copy.item.origin.tree)),
            copy.item.origin.tree
        );
        let id = ids::DUPLICATE_DEVICE_CODE;
        findings.push(Finding::new(severity, id, copy.item.full(), text));
    }
    if let Some(whole) = copies.iter().find(|copy| copy.entries.same(&all)) {
        let file = MergedFile { like: whole.item, bytes: None, shards: Vec::new() };
        return Ok((Some(file), findings));
    }
    let shards: Vec<String> = copies.iter().map(|copy| copy.item.origin.tree.to_string()).collect();
    let text = format!("merged from the copies of {}", list(&shards));
    findings.push(Finding::new(Severity::Note, ids::MERGED_FILE, first.item.full(), text));
    let bytes = all.to_bytes().map_err(|e| Error::io(first.item.full(), "merge", e))?;
    Ok((Some(MergedFile { like: first.item, bytes: Some(bytes), shards }), findings))
}
