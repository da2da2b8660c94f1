//! Plans the artifacts: a generic one and one for each group. It merges files for all targets, in which each shard has
//! only the entries for its targets. It writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kpack_format::{Selection, TargetId};
use serde::Serialize;

use super::read::{Component, Inputs};
use super::tree_differences::target_files;
use super::{Finding, MOST_NAMES, Severity, manifests};
use crate::code_ids::MoreCodeIds;
use crate::compare::explain;
use crate::names;
use crate::output::{Edits, OutputTree};
use crate::packaging::TargetGroup;
use crate::shared::Entries;
use crate::tree::ArtifactTree;
use kpack_core::words::{list, list_some};
use kpack_core::{Error, ids};
use kpack_tree::place::Merge;
use kpack_tree::{Class, Entry};

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
    pub(super) output: OutputTree,
}

fn as_text<S: serde::Serializer>(
    targets: &BTreeSet<TargetId>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(targets.iter().map(TargetId::to_string))
}

/// The artifacts of a component, and what was found on the way.
pub(super) struct MergedComponent {
    pub(super) artifacts: Vec<Artifact>,
    pub(super) findings: Vec<Finding>,
}

/// Plans the artifacts of a component, and adds to what was found when it was read and checked.
pub(super) fn merge(
    inputs: &Inputs<'_>,
    mut findings: Vec<Finding>,
) -> Result<MergedComponent, Error> {
    let (mut artifacts, mut trees) = (Vec::new(), Vec::new());
    for (group, taken) in &inputs.groups {
        let (artifact, tree) = of_group(inputs, group, taken, &mut findings)?;
        if !artifact.targets.is_empty() {
            artifacts.push(artifact);
            trees.push(tree);
        }
    }
    // Without a generic artifact, which is an error already, nothing can be said of manifests.
    if let Some(artifact) = generic(inputs, &mut findings)? {
        artifacts.push(artifact);
        findings.extend(add_manifests(inputs, &mut artifacts, &trees)?);
    }
    // The generic artifact is for the targets of all groups, be it for their databases alone.
    let targets: BTreeSet<TargetId> = artifacts.iter().flat_map(|a| a.targets.clone()).collect();
    for artifact in &mut artifacts {
        if artifact.group.is_none() {
            artifact.targets.clone_from(&targets);
        }
        (artifact.files, artifact.size) = (artifact.output.files, artifact.output.size);
        artifact.shards.clone_from(&artifact.output.shards);
    }
    artifacts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(MergedComponent { artifacts, findings })
}

fn artifact(
    inputs: &Inputs<'_>,
    group: Option<&TargetGroup>,
    model: &Path,
) -> Result<Artifact, Error> {
    let name = inputs.component.artifact_name(group.map_or(names::GENERIC, |group| &group.name));
    Ok(Artifact {
        name: name.clone(),
        component: inputs.component.name.to_owned(),
        group: group.map(|group| group.name.clone()),
        display_name: group.map(|group| group.display_name.clone()),
        output: OutputTree::new(name, model, &inputs.databases)?,
        ..Artifact::default()
    })
}

/// The artifact of a group, made from those of its targets, and the tree of all of them; both are empty if no
/// shard has any.
fn of_group(
    inputs: &Inputs<'_>,
    group: &TargetGroup,
    taken: &BTreeSet<TargetId>,
    findings: &mut Vec<Finding>,
) -> Result<(Artifact, ArtifactTree), Error> {
    let mut artifact = artifact(inputs, Some(group), Path::new(""))?;
    let mut all = ArtifactTree::empty("", Path::new(""));
    for (target, trees) in inputs.device.iter().filter(|(target, _)| taken.contains(*target)) {
        // If several shards have it, the first one's is taken, and entries that only others have.
        let Some((first, others)) = trees.split_first() else {
            continue;
        };
        let mut tree = first.clone();
        others.iter().for_each(|other| tree.add_missing(other.clone()));
        if artifact.targets.is_empty() {
            artifact.output.model.clone_from(&tree.root);
        }
        artifact.targets.insert(target.clone());
        artifact.output.add_prefixes(&tree.prefixes);
        for item in tree.entries {
            if item.is_manifest() {
                continue;
            }
            if let Some(known) = all.entries.get(&item) {
                if !(known.is_directory() && item.is_directory()) {
                    let text = format!(
                        "{} has the same path in group `{}`; a file is of one target",
                        known.full().display(),
                        group.name
                    );
                    let id = ids::CONFLICTING_FILES;
                    findings.push(Finding::new(Severity::Fault, id, item.full(), text));
                }
                continue;
            }
            artifact.output.add(&item);
            all.entries.insert(item);
        }
    }
    Ok((artifact, all))
}

/// The generic artifact: the first shard's, with what only others have of a target, and what is merged.
fn generic(inputs: &Inputs<'_>, findings: &mut Vec<Finding>) -> Result<Option<Artifact>, Error> {
    let Some((first, others)) = inputs.generics.split_first() else {
        return Ok(None);
    };
    let tree = &first.tree;
    let mut artifact = artifact(inputs, None, &tree.root)?;
    artifact.output.add_prefixes(&tree.prefixes);
    artifact.output.add_prefix_directories(tree);
    artifact.output.shards.insert(tree.shard.to_string());
    for path in tree.unlisted_files() {
        let text = "skipped: it is in no prefix that the artifact lists, so in no package";
        findings.push(Finding::new(Severity::Warning, ids::IN_NO_PREFIX, path, text));
    }
    findings.extend(tree.about(ids::UNREADABLE_DEVICE_CODE).cloned());
    let trees = Vec::from_iter(inputs.generics.iter().map(|generic| &generic.tree));
    let merged = merge_shared(inputs.component, &trees, findings)?;
    let mut code_ids = MoreCodeIds::default();
    for (path, markers) in others.iter().flat_map(|other| &other.markers) {
        code_ids.collect(path, markers.clone());
    }
    for item in &tree.entries {
        if item.is_manifest() || merged.contains_key(&*item.path) {
            continue;
        }
        let edits = match *item.class {
            Class::Split => code_ids.edits(item)?,
            _ => Edits::new(),
        };
        if !edits.is_empty() && item.linked()?.image.is_signed() {
            let text = "has a signature, which would not fit the recombined binary; recombine unsigned ones, then \
                        sign the result";
            findings.push(Finding::new(Severity::Fault, ids::SIGNED_BINARY, item.full(), text));
        }
        artifact.output.add_edited(item, edits);
    }
    for file in merged.into_values() {
        file.add_to(&mut artifact.output);
    }
    let mut own = BTreeSet::new();
    for other in others {
        for (item, target) in target_files(inputs, &other.tree, tree) {
            let text = format!(
                "taken: only shard {} builds for {target}, and only it has this host file",
                item.origin.tree
            );
            findings.push(Finding::new(Severity::Note, ids::MERGED_FILE, item.full(), text));
            own.insert(item);
        }
    }
    for item in own {
        artifact.output.add_prefixes(&[item.origin.prefix.to_string()]);
        artifact.output.add(item);
    }
    Ok(Some(artifact))
}

/// Gives each artifact the manifests of its kpacks.
fn add_manifests(
    inputs: &Inputs<'_>,
    artifacts: &mut [Artifact],
    groups: &[ArtifactTree],
) -> Result<Vec<Finding>, Error> {
    let selections = inputs.component.selections();
    let wanted = |target: &str| {
        let target: Result<TargetId, _> = target.parse();
        target.is_ok_and(|target| !Selection::groups_of(&selections, &target).is_empty())
    };
    let generics = Vec::from_iter(inputs.generics.iter().map(|generic| &generic.tree));
    let archives = inputs.component.archives;
    let (modules, findings) = manifests::merge(&generics, groups, &wanted, archives)?;
    for artifact in artifacts {
        for module in &modules {
            let Some((path, manifest)) = module.manifest(artifact) else {
                continue;
            };
            artifact.output.add_bytes(&path.into(), manifest.to_bytes(), &module.like);
            if artifact.group.is_none() {
                let targets = manifest.kpack_files.keys().filter_map(|t| t.parse().ok());
                artifact.targets.extend(targets);
            }
        }
    }
    Ok(findings)
}

/// A file for all targets with the entries of all shards.
struct MergedFile<'t> {
    like: &'t Entry,
    /// The bytes, if no shard's copy has everything.
    bytes: Option<Vec<u8>>,
    shards: Vec<String>,
}

impl MergedFile<'_> {
    /// Adds it, and the directories that it is in.
    fn add_to(self, output: &mut OutputTree) {
        output.add_prefixes(&[self.like.origin.prefix.to_string()]);
        match self.bytes {
            Some(bytes) => output.add_bytes(&self.like.path, bytes, self.like.full()),
            None => output.add(self.like),
        }
        output.shards.extend(self.shards);
    }
}

/// A shard's copy of a file for all targets.
type ShardCopy<'t> = (&'t Entry, Entries);

/// Merges the shared files of the generic artifacts `trees`, so that each has the entries of all
/// shards. Returns them by path.
fn merge_shared<'t>(
    component: Component<'_>,
    trees: &[&'t ArtifactTree],
    findings: &mut Vec<Finding>,
) -> Result<BTreeMap<&'t Path, MergedFile<'t>>, Error> {
    let mut files: BTreeMap<&Path, Merge> = BTreeMap::new();
    for tree in trees {
        let entries = tree.entries.iter();
        files.extend(entries.filter_map(|item| Some((&*item.path, item.shared()?))));
    }
    let mut merged = BTreeMap::new();
    for (path, kind) in files {
        let items = Vec::from_iter(trees.iter().filter_map(|tree| tree.entries.get(path)));
        match copies(&items, kind)? {
            Ok(copies) => {
                let file = merge_copies(component, &copies, findings)?;
                merged.extend(file.map(|file| (path, file)));
            }
            Err(reason) => all_the_same(component, &items, &reason, findings)?,
        }
    }
    Ok(merged)
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
            Ok(entries) => copies.push((*item, entries)),
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
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let severity = if component.validation().verify_generic_artifacts_match {
        Severity::Fault
    } else {
        Severity::Warning
    };
    let Some((first, others)) = copies.split_first() else {
        return Ok(());
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
    Ok(())
}

fn merge_copies<'t>(
    component: Component<'_>,
    copies: &[ShardCopy<'t>],
    findings: &mut Vec<Finding>,
) -> Result<Option<MergedFile<'t>>, Error> {
    let Some(((first, entries), others)) = copies.split_first() else {
        return Ok(None);
    };
    let mut all = entries.clone();
    for (index, (item, entries)) in others.iter().enumerate() {
        let differ = all.merge(entries.clone());
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
            list(before.map(|(item, _)| &item.origin.tree)),
            item.origin.tree
        );
        let id = ids::DUPLICATE_DEVICE_CODE;
        findings.push(Finding::new(severity, id, item.full(), text));
    }
    if let Some((like, _)) = copies.iter().find(|(_, entries)| entries.same(&all)) {
        return Ok(Some(MergedFile { like, bytes: None, shards: Vec::new() }));
    }
    let shards: Vec<String> = copies.iter().map(|(item, _)| item.origin.tree.to_string()).collect();
    let text = format!("merged from the copies of {}", list(&shards));
    findings.push(Finding::new(Severity::Note, ids::MERGED_FILE, first.full(), text));
    let bytes = all.to_bytes().map_err(|e| Error::io(first.full(), "merge", e))?;
    Ok(Some(MergedFile { like: first, bytes: Some(bytes), shards }))
}
