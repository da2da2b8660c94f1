//! The differences between the trees of two shards: unexpected ones, and host files that only one builds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kpack_format::archive::Toc;
use kpack_format::unstable::target_names;
use kpack_format::{Blake3, TargetId};

use super::read::Inputs;
use crate::compare::{Difference, entry_differences, explain};
use crate::tree::ArtifactTree;
use kpack_core::words::list_some;
use kpack_core::{Error, Reason};
use kpack_split::input::Archives;
use kpack_tree::{Class, Entry, Node};

/// A difference between two trees at a path.
#[derive(Debug)]
pub(super) struct TreeDifference {
    /// Path in the artifact.
    pub(super) path: PathBuf,
    pub(super) kind: DifferenceKind,
    pub(super) text: Reason,
}

/// What a difference is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DifferenceKind {
    /// One cannot stand for both: a directory and a file, or an archive with kernels that the first
    /// shard's lacks.
    Irreconcilable,
    /// Two files, one of which can stand for both.
    Content,
    /// Only the first tree has it.
    OnlyFirst,
    /// Only the second tree has it.
    OnlySecond,
    /// Two host binaries with the same facts, or two builds of the same code.
    Bytes,
}

/// The differences between two trees, without manifests of kpacks and entries that `compared` rejects.
/// If one tree lacks a directory, its entries are not listed.
pub(super) fn tree_differences<'t>(
    first: &'t ArtifactTree,
    second: &'t ArtifactTree,
    archives: &Archives,
    compared: impl Fn(&Entry) -> bool,
) -> Result<Vec<TreeDifference>, Error> {
    let counts = |item: &&Entry| !item.is_manifest() && compared(item);
    let mut found = Vec::new();
    let entries = |tree: &'t ArtifactTree| tree.entries.iter().filter(counts);
    for item in entries(first) {
        if let Some(theirs) = second.entries.get(item)
            && let Some((kind, text)) = difference(item, theirs, archives)?
        {
            let path = item.path.to_path_buf();
            found.push(TreeDifference { path, kind, text });
        }
    }
    for (kind, tree, other) in
        [(DifferenceKind::OnlyFirst, first, second), (DifferenceKind::OnlySecond, second, first)]
    {
        let mut lacks = PathBuf::from("/");
        for item in entries(tree) {
            let is_there = other.entries.contains(item);
            if !is_there && !item.path.starts_with(&lacks) && !has_only_manifests(tree, item) {
                lacks = item.path.to_path_buf();
                let (path, text) =
                    (lacks.clone(), format!("only shard {} has it", item.origin.tree).into());
                found.push(TreeDifference { path, kind, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Whether an entry is a directory with manifests and nothing else.
fn has_only_manifests(tree: &ArtifactTree, item: &Entry) -> bool {
    item.node == Node::Directory { empty: false }
        && tree.at_and_below(&item.path).all(|item| item.is_manifest() || item.is_directory())
}

fn difference(
    first: &Entry,
    second: &Entry,
    archives: &Archives,
) -> Result<Option<(DifferenceKind, Reason)>, Error> {
    let (one, other) = (first.full(), second.full());
    let are_archives = first.is_kpack() && second.is_kpack();
    let same_bytes = || {
        let may_be = !are_archives && first.size() == second.size();
        Ok(may_be && archives.digest(one)? == archives.digest(other)?)
    };
    let mut found = entry_differences(one, other, same_bytes)?;
    let worst = found.find(|found| !matches!(found, Ok(Difference::Names(_))));
    Ok(match worst.transpose()? {
        None | Some(Difference::Names(_)) => None,
        Some(Difference::Kind([a, b])) => {
            let kind = if first.is_directory() || second.is_directory() {
                DifferenceKind::Irreconcilable
            } else {
                DifferenceKind::Content
            };
            Some((kind, format!("{a} against {b}").into()))
        }
        Some(Difference::Link([a, b])) => {
            let text = format!("link to {} against {}", a.display(), b.display());
            Some((DifferenceKind::Content, text.into()))
        }
        Some(Difference::Mode([a, b])) => {
            let text = Reason::from(format!("mode {a:o} against {b:o}"));
            Some((DifferenceKind::Content, text.differs(format!("{a:o}"), format!("{b:o}"))))
        }
        Some(Difference::Bytes) if are_archives => kernels_differ(first, second, archives)?,
        Some(Difference::Bytes) => explain(one, other)?.map(|found| {
            let kind =
                if found.is_same_code { DifferenceKind::Bytes } else { DifferenceKind::Content };
            (kind, found.text)
        }),
    })
}

/// Kernels with their targets, and the checksums of their code objects where the archive has them.
type KernelSums = BTreeMap<(String, String), Option<Blake3>>;

/// The difference between the kernels of two archives, however they are compressed.
fn kernels_differ(
    first: &Entry,
    second: &Entry,
    archives: &Archives,
) -> Result<Option<(DifferenceKind, Reason)>, Error> {
    let (a, b) = (archives.toc(first.full())?, archives.toc(second.full())?);
    let (ours, theirs) = (kernels(&a), kernels(&b));
    let only = |own: &KernelSums, other: &KernelSums| -> BTreeSet<String> {
        let names = own.keys().filter(|key| !other.contains_key(*key));
        names.map(|(kernel, _)| kernel.clone()).collect()
    };
    let (only_first, only_second) = (only(&ours, &theirs), only(&theirs, &ours));
    let summed = a.checksums.is_some() && b.checksums.is_some();
    let differ: BTreeSet<String> = ours
        .iter()
        .filter(|(key, sum)| theirs.get(*key).is_some_and(|theirs| theirs != *sum))
        .map(|((kernel, _), _)| kernel.clone())
        .collect();
    let same_names = only_first.is_empty() && only_second.is_empty();
    if same_names && (!summed || differ.is_empty()) {
        if summed && a.group_name == b.group_name {
            return Ok(None);
        }
        let explanation = explain(first.full(), second.full())?;
        return Ok(explanation.map(|found| (DifferenceKind::Content, found.text)));
    }
    let mut parts = Vec::new();
    for (names, what) in [
        (&differ, "other code for".to_owned()),
        (&only_first, format!("only shard {} has", first.origin.tree)),
        (&only_second, format!("only shard {} has", second.origin.tree)),
    ] {
        if !names.is_empty() {
            parts.push(format!("{what} {}", list_some(names, 1)));
        }
    }
    let kind = if only_second.is_empty() {
        DifferenceKind::Content
    } else {
        DifferenceKind::Irreconcilable
    };
    Ok(Some((kind, parts.join("; ").into())))
}

fn kernels(toc: &Toc) -> KernelSums {
    let mut found = BTreeMap::new();
    for (kernel, targets) in &toc.kernels {
        for (target, entry) in targets {
            let sums = toc.checksums.as_ref();
            let sum = sums.and_then(|sums| sums.get(entry.ordinal as usize).copied());
            found.insert((kernel.clone(), target.clone()), sum);
        }
    }
    found
}

/// The target-specific host files of `tree`, such as the plugins of a library, that `other` lacks: their names have one
/// target, which a group lists and no other shard builds for.
pub(super) fn target_files<'t>(
    inputs: &Inputs<'_>,
    tree: &'t ArtifactTree,
    other: &'t ArtifactTree,
) -> Vec<(&'t Entry, TargetId)> {
    tree.entries
        .difference(&other.entries)
        .filter_map(|item| Some((item, only_target(inputs, item)?)))
        .collect()
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
    let mut taken = inputs.groups.iter().flat_map(|(group, _)| &group.architectures);
    let is_taken = taken.any(agrees);
    let is_only = with.len() == 1 && with.contains(&*item.origin.tree);
    (is_taken && is_only).then_some(target)
}
