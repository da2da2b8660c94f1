//! One component of all shards: its generic artifact, and those of its groups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use walkdir::WalkDir;

use super::manifests;
use super::shards::{Artifacts, Shards};
use super::tree::{Item, Tree};
use super::{Artifact, Finding, Options, Severity, Source, list};
use crate::Error;
use crate::artifact::classify::{Class, Node};
use crate::artifact::manifest_txt;
use crate::artifact::names;
use crate::artifact::packaging::Group;
use crate::artifact::target_name::agrees;
use crate::kpack_dir;

/// How many differences between two trees are listed one by one.
const MOST_DIFFERENCES: usize = 20;

/// A component: what becomes of it.
pub(super) struct Component<'a> {
    name: &'a str,
    options: &'a Options,
    shards: &'a Shards,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) findings: Vec<Finding>,
}

impl<'a> Component<'a> {
    pub(super) fn read(
        name: &'a str,
        options: &'a Options,
        shards: &'a Shards,
    ) -> Result<Self, Error> {
        let mut component = Self {
            name,
            options,
            shards,
            artifacts: Vec::new(),
            findings: Vec::new(),
        };
        let groups = options.configuration.groups_of(name);
        component.compare_targets(groups);
        let generics = component.generics()?;
        let mut trees = Vec::new();
        for group in groups {
            if let Some((artifact, tree)) = component.group(group)? {
                component.artifacts.push(artifact);
                trees.push(tree);
            }
        }
        let wanted = |target: &str| {
            let mut named = groups.iter().flat_map(|group| &group.architectures);
            named.any(|named| named.to_string() == target)
        };
        component.manifests(&generics, &trees, &wanted)?;
        component.overlaps();
        component.artifacts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(component)
    }

    fn say(&mut self, severity: Severity, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.findings.push(Finding {
            severity,
            path: path.into(),
            text: text.into(),
        });
    }

    fn shards(&self) -> impl Iterator<Item = (&'a str, &'a Artifacts)> {
        self.shards.of(self.name)
    }

    /// A directory name: what the component is called for `suffix`.
    fn artifact_name(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    /// The targets that no shard has, and those that no group takes.
    fn compare_targets(&mut self, groups: &[Group]) {
        let there: BTreeSet<&TargetId> = self
            .shards()
            .flat_map(|(_, artifacts)| artifacts.targets.keys())
            .collect();
        // A component without device code lacks nothing.
        if there.is_empty() && !self.has_manifests() {
            return;
        }
        let by_shard: Vec<String> = self
            .shards()
            .map(|(shard, artifacts)| match artifacts.targets.is_empty() {
                true => format!("{shard} has none"),
                false => format!("{shard} has {}", list(artifacts.targets.keys())),
            })
            .collect();
        let severity = match self
            .options
            .configuration
            .validation
            .error_on_missing_architecture
        {
            true => Severity::Error,
            false => Severity::Warning,
        };
        for group in groups {
            // Databases are often of a processor, whatever its features, or of a family (gfx11xx), and
            // who takes these in names them besides the targets of binaries.
            let has = |target: &TargetId| {
                let covers = |own: &&TargetId| {
                    agrees(own, target) || target.features().count() == 0 && agrees(target, own)
                };
                // What no group takes covers nothing.
                let mut taken = there.iter().filter(|own| group.architectures.contains(own));
                taken.any(covers)
            };
            let missing: Vec<&TargetId> = group
                .architectures
                .iter()
                .filter(|target| !has(target))
                .collect();
            if !missing.is_empty() {
                let text = format!(
                    "no shard has {} for group `{}`: {}",
                    list(missing),
                    group.name,
                    by_shard.join("; ")
                );
                let path = self
                    .options
                    .shards_dir
                    .join("*")
                    .join(self.artifact_name("*"));
                self.say(severity, path, text);
            }
        }
        let claimed: BTreeSet<&TargetId> = groups.iter().flat_map(|g| &g.architectures).collect();
        for (_, artifacts) in self.shards.of(self.name) {
            for (target, path) in &artifacts.targets {
                if !claimed.contains(target) {
                    let text = format!("left out: no group takes {target}");
                    self.say(Severity::Warning, path, text);
                }
            }
        }
    }

    /// Whether a generic artifact has a manifest of kpacks, so that there was device code.
    fn has_manifests(&self) -> bool {
        let generics = self
            .shards()
            .filter_map(|(_, artifacts)| artifacts.generic.as_ref());
        let mut files = generics.flat_map(WalkDir::new).flatten();
        files.any(|file| kpack_dir::is_manifest(file.path()))
    }

    /// Reads the generic artifacts, the primary shard's first, which becomes the output's, and
    /// compares the others with it.
    fn generics(&mut self) -> Result<Vec<Tree>, Error> {
        let primary = &self.options.configuration.primary_shard;
        let with: Vec<(&str, &Path)> = self
            .shards()
            .filter_map(|(shard, artifacts)| Some((shard, artifacts.generic.as_deref()?)))
            .collect();
        let Some((first, path)) = with.first().copied().filter(|(shard, _)| shard == primary)
        else {
            let others: Vec<&str> = self.shards().map(|(shard, _)| shard).collect();
            let text = format!(
                "it is not there, so there are no host files of {}, which {} built; make a shard \
                 that has it the primary one, or name the components that are to be recombined",
                self.name,
                others.join(", ")
            );
            let path = self.options.shards_dir.join(primary);
            self.say(
                Severity::Error,
                path.join(self.artifact_name(names::GENERIC)),
                text,
            );
            return Ok(Vec::new());
        };
        let tree = Tree::read(path)?;
        let mut artifact = self.artifact(None, &tree.prefixes);
        artifact.shards.insert(first.to_owned());
        for stray in manifest_txt::outside(path, &tree.prefixes).flatten() {
            let text = "left out: it is in no prefix that the artifact lists, so in no package";
            self.say(Severity::Warning, stray.path(), text);
        }
        for (path, item) in &tree.entries {
            // Of the other shards' such files nothing would be taken.
            let wrong = match &item.class {
                // Split leaves an empty one where it is.
                Class::Target { .. } if item.is_directory() => None,
                Class::Target { target, database } => Some(format!("is of {target} ({database})")),
                Class::Fat => Some("is a fat binary".to_owned()),
                _ => None,
            };
            if let Some(wrong) = wrong {
                let text = format!("it {wrong}, in a generic artifact: was all of it split?");
                self.say(Severity::Error, &item.from, text);
            }
            if !item.is_manifest() {
                artifact.add(path, item);
            }
        }
        self.artifacts.push(artifact);
        for (shard, artifacts) in self.shards.of(self.name) {
            if artifacts.generic.is_none() {
                let text = format!(
                    "shard {shard} has device code of {}, but it is not there, so it \
                                    cannot be compared with {first}'s",
                    self.name
                );
                let path = self.options.shards_dir.join(shard);
                let path = path.join(self.artifact_name(names::GENERIC));
                self.say(Severity::Warning, path, text);
            }
        }
        let mut trees = vec![tree];
        for (shard, path) in &with[1..] {
            let other = Tree::read(path)?;
            if self
                .options
                .configuration
                .validation
                .verify_generic_artifacts_match
            {
                let mut differences = trees[0].differences(&other, (first, shard))?;
                // What is an error is not to be cut off.
                differences.sort_by_key(|(_, difference)| difference.layout_only);
                for (path, difference) in differences.iter().take(MOST_DIFFERENCES) {
                    let severity = match difference.layout_only {
                        true => Severity::Warning,
                        false => Severity::Error,
                    };
                    let text = format!("host file, {first} against {shard}: {}", difference.text);
                    self.say(severity, other.root.join(path), text);
                }
                if let Some(more) = differences.len().checked_sub(MOST_DIFFERENCES + 1) {
                    let errors = differences[MOST_DIFFERENCES..].iter();
                    let severity = match errors.clone().all(|(_, d)| d.layout_only) {
                        true => Severity::Warning,
                        false => Severity::Error,
                    };
                    let text = format!("{} more differences from {first}", more + 1);
                    self.say(severity, &other.root, text);
                }
            }
            trees.push(other);
        }
        Ok(trees)
    }

    fn artifact(&self, group: Option<&Group>, prefixes: &[String]) -> Artifact {
        let suffix = group.map_or(names::GENERIC, |group| &group.name);
        Artifact {
            name: self.artifact_name(suffix),
            component: self.name.to_owned(),
            group: group.map(|group| group.name.clone()),
            display_name: group.map(|group| group.display_name.clone()),
            shards: BTreeSet::new(),
            targets: BTreeSet::new(),
            files: 0,
            size: 0,
            prefixes: prefixes.to_vec(),
            entries: BTreeMap::new(),
        }
    }

    /// The artifact of a group, from those of its targets; `None` where no shard has any. Also all
    /// that is in it.
    fn group(&mut self, group: &Group) -> Result<Option<(Artifact, Tree)>, Error> {
        let mut artifact = self.artifact(Some(group), &[]);
        let mut all = Tree {
            root: PathBuf::new(),
            prefixes: Vec::new(),
            entries: BTreeMap::new(),
        };
        for target in &group.architectures {
            let Some((shard, tree)) = self.target(target)? else {
                continue;
            };
            artifact.shards.insert(shard.to_owned());
            artifact.targets.insert(target.clone());
            for prefix in &tree.prefixes {
                if !artifact.prefixes.contains(prefix) {
                    artifact.prefixes.push(prefix.clone());
                }
            }
            for (path, item) in tree.entries {
                if item.is_manifest() {
                    continue;
                }
                if let Some(known) = all.entries.get(&path) {
                    if !(known.is_directory() && item.is_directory()) {
                        let text = format!(
                            "{} has the same path in group `{}`; a file is of one target",
                            known.from.display(),
                            group.name
                        );
                        self.say(Severity::Error, &item.from, text);
                    }
                    continue;
                }
                artifact.add(&path, &item);
                all.entries.insert(path, item);
            }
        }
        Ok((!artifact.targets.is_empty()).then_some((artifact, all)))
    }

    /// What there is for a target, from the first shard that has it, compared with the others.
    fn target(&mut self, target: &TargetId) -> Result<Option<(&'a str, Tree)>, Error> {
        let with: Vec<(&str, &Path)> = self
            .shards()
            .filter_map(|(shard, artifacts)| {
                Some((shard, artifacts.targets.get(target)?.as_path()))
            })
            .collect();
        let Some((first, path)) = with.first().copied() else {
            return Ok(None);
        };
        let tree = Tree::read(path)?;
        for item in tree.entries.values() {
            if let Some(reason) = misplaced(item, target) {
                self.say(Severity::Error, &item.from, reason);
            }
        }
        let severity = match self
            .options
            .configuration
            .validation
            .error_on_duplicate_device_code
        {
            true => Severity::Error,
            false => Severity::Warning,
        };
        for (shard, path) in &with[1..] {
            let other = Tree::read(path)?;
            let differences = tree.differences(&other, (first, shard))?;
            let taken = match severity {
                Severity::Error => String::new(),
                _ => format!("; {first}'s is taken"),
            };
            for (path, difference) in differences.iter().take(MOST_DIFFERENCES) {
                let text = format!(
                    "device code for {target} that shards {first} and {shard} both have: {}{taken}",
                    difference.text
                );
                self.say(severity, other.root.join(path), text);
            }
            if let Some(more) = differences.len().checked_sub(MOST_DIFFERENCES + 1) {
                let text = format!("{} more differences from shard {first}", more + 1);
                self.say(severity, &other.root, text);
            }
        }
        Ok(Some((first, tree)))
    }

    /// Gives each artifact the manifests of its kpacks.
    fn manifests(
        &mut self,
        generics: &[Tree],
        groups: &[Tree],
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let made = manifests::merge(generics, groups, wanted)?;
        for (severity, path, text) in made.findings {
            self.say(severity, path, text);
        }
        for artifact in &mut self.artifacts {
            let group = artifact.group.as_deref();
            for module in &made.modules {
                let targets = &artifact.targets;
                let Some((path, manifest)) = module.manifest(group, targets) else {
                    continue;
                };
                if let Some(directory) = path.parent() {
                    for above in directory.ancestors().filter(|a| *a != Path::new("")) {
                        let source = Source::Directory(module.directory_like(above));
                        artifact.entries.entry(above.to_owned()).or_insert(source);
                    }
                }
                let bytes = manifest.to_bytes();
                artifact.files += 1;
                artifact.size += bytes.len() as u64;
                artifact.entries.insert(path, Source::Bytes(bytes));
                if group.is_none() {
                    let targets = manifest.kpack_files.keys().filter_map(|t| t.parse().ok());
                    artifact.targets.extend(targets);
                }
            }
        }
        Ok(())
    }

    /// Files that two artifacts would have: laid over each other, one would hide the other.
    fn overlaps(&mut self) {
        let mut owners: BTreeMap<&Path, &str> = BTreeMap::new();
        let mut found = Vec::new();
        for artifact in &self.artifacts {
            for (path, source) in &artifact.entries {
                if matches!(source, Source::Directory(_)) {
                    continue;
                }
                if let Some(other) = owners.insert(path, &artifact.name) {
                    let text = format!("{other} has it too; a file is in one artifact only");
                    found.push((Path::new(&artifact.name).join(path), text));
                }
            }
        }
        for (path, text) in found {
            self.say(Severity::Error, self.options.output_dir.join(path), text);
        }
    }
}

impl Artifact {
    fn add(&mut self, path: &Path, item: &Item) {
        let source = match item.node {
            Node::Directory { .. } => Source::Directory(item.from.clone()),
            Node::Symlink | Node::File { .. } => {
                self.files += 1;
                self.size += item.size();
                Source::Copy(item.from.clone())
            }
        };
        self.entries.insert(path.to_owned(), source);
    }
}

/// Why something may not be in the artifact of `target`.
fn misplaced(item: &Item, target: &TargetId) -> Option<String> {
    let host = || Some(format!("it is for the host, in an artifact for {target}"));
    match (&item.class, item.node) {
        _ if item.is_manifest() => None,
        (Class::Target { target: own, .. }, _) if own != target => {
            Some(format!("it is of {own}, in an artifact for {target}"))
        }
        (Class::Target { .. } | Class::Unknown { .. }, _) => None,
        (Class::Host, Node::Directory { .. }) => None,
        (Class::Host | Class::Fat | Class::Split, _) => host(),
    }
}
