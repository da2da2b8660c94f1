//! One component of all shards: its generic artifact, and those of its groups.

use kpack_core::{Id, ids};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::{Selection, TargetId};

use super::inputs::Inputs;
use super::manifests;
use super::shards::{ComponentArtifacts, DeviceArtifact, Shards, parts};
use super::{Artifact, Finding, Options, Severity};
use crate::databases;
use crate::mark;
use crate::names;
use crate::output::Output;
use crate::packaging::TargetGroup;
use crate::rules::misplaced;
use crate::tree::{Role, Tree, manifest_names};
use kpack_core::Error;
use kpack_core::words::list;

/// How many differences between two trees are listed one by one.
const MOST_DIFFERENCES: usize = 20;

/// A component: what becomes of it.
pub(super) struct Component<'a> {
    pub(super) name: &'a str,
    pub(super) options: &'a Options,
    pub(super) shards: &'a Shards,
    pub(super) inputs: &'a Inputs,
    /// The databases that were split, the same in all shards.
    databases: databases::Selection,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) findings: Vec<Finding>,
    /// The device code, by target: a tree for each shard that has some.
    pub(super) device: BTreeMap<TargetId, Vec<Tree>>,
    /// The targets of each shard, in order.
    targets: Vec<(&'a str, BTreeSet<TargetId>)>,
    /// The targets whose device code was compared between shards.
    pub(super) compared: BTreeSet<TargetId>,
}

impl<'a> Component<'a> {
    pub(super) fn read(
        name: &'a str,
        options: &'a Options,
        shards: &'a Shards,
        inputs: &'a Inputs,
    ) -> Result<Self, Error> {
        let mut component = Self {
            name,
            options,
            shards,
            inputs,
            databases: databases::Selection::Auto,
            artifacts: Vec::new(),
            findings: Vec::new(),
            device: BTreeMap::new(),
            targets: Vec::new(),
            compared: BTreeSet::new(),
        };
        component.choose_databases()?;
        let groups = options.configuration.groups_of(name);
        component.read_device_code()?;
        component.compare_targets(groups);
        let generics = component.generics()?;
        let mut trees = Vec::new();
        for group in groups {
            if let Some((artifact, tree)) = component.group(group)? {
                component.artifacts.push(artifact);
                trees.push(tree);
            }
        }
        let selections = component.selections();
        let wanted = |target: &str| {
            let target: Result<TargetId, _> = target.parse();
            target.is_ok_and(|target| !Selection::groups_of(&selections, &target).is_empty())
        };
        // Without a generic artifact, which is an error already, nothing can be said of them.
        if let Some(first) = generics.first() {
            component.hosts_are_split(first, &trees)?;
            component.manifests(&generics, &trees, &wanted)?;
        }
        component.generic_has_all_targets();
        component.artifacts.sort_by(|a, b| a.name.cmp(&b.name));
        for artifact in &mut component.artifacts {
            (artifact.files, artifact.size) = (artifact.output.files, artifact.output.size);
            artifact.shards.clone_from(&artifact.output.shards);
        }
        Ok(component)
    }

    /// Which databases were split: what one shard has in the artifacts of targets must not be in
    /// another's generic one.
    fn choose_databases(&mut self) -> Result<(), Error> {
        let mut first: Option<(&str, databases::Selection)> = None;
        for (shard, artifacts) in self.shards() {
            for path in artifacts.paths() {
                let own = mark::databases(path)?;
                let Some((known, databases)) = &first else {
                    first = Some((shard, own));
                    continue;
                };
                if own.names() != databases.names() {
                    let text = format!(
                        "other databases were split than in shard {known} (expected {}, found {}); \
                         split all shards with the same --split-databases",
                        databases, own
                    );
                    self.say(Severity::Fault, ids::SHARDS_DIFFER, path, text);
                }
            }
        }
        self.databases = first.map_or(databases::Selection::Auto, |(_, databases)| databases);
        Ok(())
    }

    /// The targets of each group.
    fn selections(&self) -> Vec<Selection> {
        let groups = self.options.configuration.groups_of(self.name).iter();
        groups.map(|group| group.architectures.iter().collect()).collect()
    }

    /// Whether a group takes what is for `target`.
    pub(super) fn takes(&self, group: &TargetGroup, target: &TargetId) -> bool {
        let groups = self.options.configuration.groups_of(self.name);
        let taking = Selection::groups_of(&self.selections(), target);
        taking.into_iter().any(|position| groups[position].name == group.name)
    }

    /// Reads what each shard has for each target. Reports what is damaged or does not belong there, and what
    /// no group takes, which is not read if it can be helped.
    fn read_device_code(&mut self) -> Result<(), Error> {
        let selections = self.selections();
        let is_taken = |target: &TargetId| !Selection::groups_of(&selections, target).is_empty();
        let named = || selections.iter().flat_map(Selection::iter);
        for (shard, artifacts) in self.shards() {
            let mut own: BTreeMap<TargetId, Tree> = BTreeMap::new();
            let mut targets = BTreeSet::new();
            for artifact in &artifacts.device {
                let path = artifact.path();
                let found = match artifact {
                    // It has no variant that a group takes, either.
                    DeviceArtifact::Target(target, _)
                        if !is_taken(target)
                            && !named().any(|named| named.processor() == target.processor()) =>
                    {
                        targets.insert(target.clone());
                        self.say_unlisted(target, path);
                        continue;
                    }
                    DeviceArtifact::Target(target, _) => {
                        let tree = self.inputs.tree(shard, path)?;
                        self.report_damage(&tree);
                        self.nothing_misplaced(&tree, &Role::Target(target.clone()), "");
                        parts(&tree, Some(target))
                    }
                    DeviceArtifact::Group(tree) => {
                        self.report_damage(tree);
                        self.nothing_misplaced(tree, &Role::Group, "");
                        parts(tree, None)
                    }
                };
                for (target, tree) in found {
                    targets.insert(target.clone());
                    if !is_taken(&target) {
                        self.say_unlisted(&target, path);
                        continue;
                    }
                    // Earlier versions of kpack wrote an artifact for each variant.
                    if let (Some(known), DeviceArtifact::Target(..)) =
                        (own.get_mut(&target), artifact)
                    {
                        let mut files =
                            tree.entries.iter().filter(|(_, item)| !item.is_directory());
                        if let Some((_, file)) =
                            files.find(|(path, _)| known.entries.contains_key(*path))
                        {
                            let known = known.root.display();
                            let text = format!("is in {known} as well; remove one of them");
                            self.say(Severity::Fault, ids::CONFLICTING_FILES, &file.from, text);
                        }
                        known.add_missing(tree);
                        continue;
                    }
                    own.insert(target, tree);
                }
            }
            for (target, tree) in own {
                self.device.entry(target).or_default().push(tree);
            }
            self.targets.push((shard, targets));
        }
        Ok(())
    }

    fn say_unlisted(&mut self, target: &TargetId, path: &Path) {
        let validation = &self.options.configuration.validation;
        let (severity, text) = if validation.error_on_unlisted_architecture {
            (Severity::Fault, format!("no group lists {target}; add it to one"))
        } else {
            (Severity::Warning, format!("skipped: no group lists {target}"))
        };
        self.say(severity, ids::UNEXPECTED_TARGET, path, text);
    }

    /// The shards that have device code for a target that `is_one` accepts.
    pub(super) fn shards_with(&self, is_one: impl Fn(&TargetId) -> bool) -> BTreeSet<&'a str> {
        let with = self.targets.iter();
        let with = with.filter(|(_, targets)| targets.iter().any(&is_one));
        with.map(|(shard, _)| *shard).collect()
    }

    pub(super) fn say(
        &mut self,
        severity: Severity,
        id: Id,
        path: impl Into<PathBuf>,
        text: impl Into<String>,
    ) {
        self.findings.push(Finding::new(severity, id, path, text));
    }

    /// Says what differs in the tree at `root` from `other`, the worst first: what is an error is not
    /// to be cut off.
    pub(super) fn say_differences(&mut self, mut found: Vec<Finding>, root: &Path, other: &str) {
        found.sort_by_key(|finding| Reverse(finding.severity));
        let more = found.len().saturating_sub(MOST_DIFFERENCES);
        let worst = found.get(MOST_DIFFERENCES);
        let worst = worst.map(|finding| (finding.severity, finding.id));
        found.truncate(MOST_DIFFERENCES);
        self.findings.append(&mut found);
        if let Some((severity, id)) = worst {
            self.say(severity, id, root, format!("{more} more differences from {other}"));
        }
    }

    pub(super) fn shards(
        &self,
    ) -> impl Iterator<Item = (&'a str, &'a ComponentArtifacts)> + use<'a> {
        self.shards.of(self.name)
    }

    /// Reports the damaged files of a tree.
    pub(super) fn report_damage(&mut self, tree: &Tree) {
        self.findings.extend(tree.rejected.iter().cloned());
        let damaged = tree.about(ids::DAMAGED_DATABASE_FILE).cloned();
        self.findings.extend(damaged);
    }

    /// Reports what does not belong in a tree with this role, with `advice`.
    pub(super) fn nothing_misplaced(&mut self, tree: &Tree, role: &Role, advice: &str) {
        for (item, reason) in misplaced(tree, role) {
            let text = format!("it {reason}{advice}");
            self.say(Severity::Fault, ids::MISPLACED_FILE, &item.from, text);
        }
    }

    /// A directory name: what the component is called for `suffix`.
    pub(super) fn artifact_name(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    /// The generic artifact is for the targets of all groups, be it for their databases alone.
    fn generic_has_all_targets(&mut self) {
        let targets = self.artifacts.iter().flat_map(|a| a.targets.clone());
        let targets: BTreeSet<TargetId> = targets.collect();
        for artifact in self.artifacts.iter_mut().filter(|a| a.group.is_none()) {
            artifact.targets.clone_from(&targets);
        }
    }

    /// Reports the targets that no shard has.
    fn compare_targets(&mut self, groups: &[TargetGroup]) {
        let there: BTreeSet<TargetId> = {
            let targets = self.targets.iter();
            targets.flat_map(|(_, targets)| targets).cloned().collect()
        };
        // A component without device code lacks nothing.
        if there.is_empty() && !self.has_manifests() {
            return;
        }
        for group in groups {
            let taken = there.iter().filter(|target| self.takes(group, target));
            let missing = missing_targets(group, &taken.collect());
            if !missing.is_empty() {
                self.report_missing(group, &missing);
            }
        }
    }

    fn report_missing(&mut self, group: &TargetGroup, missing: &[&TargetId]) {
        let by_shard = self.targets.iter().map(|(shard, targets)| {
            let targets = list(targets);
            if targets.is_empty() {
                format!("{shard} has none")
            } else {
                format!("{shard} has {targets}")
            }
        });
        let mut text = format!(
            "no shard has {} for group `{}`: {}",
            list(missing.iter().copied()),
            group.name,
            by_shard.collect::<Vec<_>>().join("; ")
        );
        for target in missing.iter().filter(|target| !target.is_known()) {
            text += &format!("; {target} is not a known processor");
        }
        let validation = &self.options.configuration.validation;
        let severity = if validation.error_on_missing_architecture {
            Severity::Fault
        } else {
            Severity::Warning
        };
        let shards = self.options.shards_dir.join("*");
        let path = shards.join(self.artifact_name("*"));
        self.say(severity, ids::MISSING_TARGET, path, text);
    }

    /// Whether a generic artifact has a manifest of kpacks, so that there was device code.
    fn has_manifests(&self) -> bool {
        let mut shards = self.shards();
        shards.any(|(_, artifacts)| {
            let generic = artifacts.generic.as_deref();
            generic.is_some_and(|generic| !manifest_names(generic).is_empty())
        })
    }

    pub(super) fn artifact(&self, group: Option<&TargetGroup>, model: &Path) -> Artifact {
        let suffix = group.map_or(names::GENERIC, |group| &group.name);
        Artifact {
            name: self.artifact_name(suffix),
            component: self.name.to_owned(),
            group: group.map(|group| group.name.clone()),
            display_name: group.map(|group| group.display_name.clone()),
            output: Output::new(model, self.databases.clone()),
            ..Artifact::default()
        }
    }

    /// Gives each artifact the manifests of its kpacks.
    fn manifests(
        &mut self,
        generics: &[Tree],
        groups: &[Tree],
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let (modules, findings) = manifests::merge(generics, groups, wanted, self.inputs)?;
        self.findings.extend(findings);
        for artifact in &mut self.artifacts {
            for module in &modules {
                let Some((path, manifest)) = module.manifest(artifact) else {
                    continue;
                };
                let output = &mut artifact.output;
                output.add_bytes(&path, manifest.to_bytes(), &module.like);
                if artifact.group.is_none() {
                    let targets = manifest.kpack_files.keys().filter_map(|t| t.parse().ok());
                    artifact.targets.extend(targets);
                }
            }
        }
        Ok(())
    }
}

/// The targets of a group that nothing `taken` is for. What is for a processor is for its variants, and what is
/// for a family for its processors, and the reverse where the group lists the family.
fn missing_targets<'g>(group: &'g TargetGroup, taken: &BTreeSet<&TargetId>) -> Vec<&'g TargetId> {
    let has = |target: &&TargetId| {
        let is_plain = target.features().count() == 0;
        let mut taken = taken.iter();
        taken.any(|own| own.may_run_on(target) || is_plain && target.may_run_on(own))
    };
    let targets = group.architectures.iter();
    targets.filter(|target| !has(target)).collect()
}
