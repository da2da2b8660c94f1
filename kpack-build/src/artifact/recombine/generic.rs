//! The generic artifact: the primary shard's, with which the others' are compared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Severity;
use super::compare::{Difference, Kind, differences};
use super::component::{Component, MOST_DIFFERENCES};
use super::tree::{Item, Tree};
use crate::Error;
use crate::artifact::classify::{Class, Node};
use crate::artifact::manifest_txt;
use crate::artifact::names;

impl Component<'_> {
    /// Reads the generic artifacts, the primary shard's first, which becomes the output's, and
    /// compares the others with it.
    pub(super) fn generics(&mut self) -> Result<Vec<Tree>, Error> {
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
        let mut trees = Vec::new();
        for (shard, path) in &with {
            let mut tree = self.tree(shard, path)?;
            self.nothing_unsplit(&tree);
            if let Some(first) = trees.first() {
                self.compare_whole(first, &tree)?;
                match self.compares_host_files() {
                    true => self.compare_generic(first, &tree)?,
                    false => self.device_code_left_out(first, &tree)?,
                }
                // All else was compared, and there may be many shards.
                tree.entries.retain(|path, item| {
                    item.is_directory() || item.is_manifest() || item.shared(path).is_some()
                });
            }
            trees.push(tree);
        }
        let tree = &trees[0];
        let mut artifact = self.artifact(None, &tree.prefixes);
        artifact.shards.insert(first.to_owned());
        for stray in manifest_txt::outside(path, &tree.prefixes).flatten() {
            let text = "left out: it is in no prefix that the artifact lists, so in no package";
            self.say(Severity::Warning, stray.path(), text);
        }
        let merged = self.merge_shared(&trees)?;
        for (path, item) in &tree.entries {
            if !item.is_manifest() && !merged.has(path) {
                artifact.add(path, item);
            }
        }
        merged.add_to(&mut artifact);
        self.artifacts.push(artifact);
        Ok(trees)
    }

    /// Whether host files that differ between shards are an error.
    pub(super) fn compares_host_files(&self) -> bool {
        let validation = &self.options.configuration.validation;
        validation.verify_generic_artifacts_match
    }

    /// Refuses device code that was to be split, in any shard's generic artifact: of other shards'
    /// than the primary one's, nothing would be taken.
    fn nothing_unsplit(&mut self, tree: &Tree) {
        for (path, item) in &tree.entries {
            let wrong = match &item.class {
                _ if item.shared(path).is_some() => continue,
                // Split leaves an empty one where it is.
                Class::Target { .. } if item.is_directory() => continue,
                Class::Target { target, database } => format!("is of {target} ({database})"),
                Class::Fat => "is a fat binary".to_owned(),
                _ => continue,
            };
            let text = format!("it {wrong}, in a generic artifact: was all of it split?");
            self.say(Severity::Error, &item.from, text);
        }
    }

    /// Compares files for all targets that cannot be put together.
    fn compare_whole(&mut self, first: &Tree, tree: &Tree) -> Result<(), Error> {
        for difference in differences(first, tree, |path, item| item.whole(path).is_some())? {
            // Where only the one that is taken has it, other shards' device code does without.
            if difference.kind == Kind::OnlyFirst && !self.compares_host_files() {
                continue;
            }
            let text = format!(
                "{}'s and {}'s cannot be put together: it maps ranges of numbers, which begin with \
                 0 in every build, to files with kernels, so kernels of one build would be looked \
                 for in files of the other; build with a hipBLASLt that writes a \
                 TensileLiteLibrary_lazy_<target>_Mapping.dat or a directory for each target, or \
                 let one shard build for all targets ({})",
                first.shard, tree.shard, difference.text
            );
            self.say(Severity::Error, from(first, tree, &difference), text);
        }
        Ok(())
    }

    fn compare_generic(&mut self, first: &Tree, tree: &Tree) -> Result<(), Error> {
        // Directories that only one has for such files' sake.
        let shared: BTreeSet<&Path> = [first, tree].into_iter().flat_map(around_shared).collect();
        let mut differences = differences(first, tree, |path, item| {
            !is_for_all(path, item) && !shared.contains(path)
        })?;
        // What is an error is not to be cut off.
        differences.sort_by_key(|difference| difference.kind == Kind::Layout);
        let severity = |kind: Kind| match kind {
            Kind::Layout => Severity::Warning,
            _ => Severity::Error,
        };
        for difference in differences.iter().take(MOST_DIFFERENCES) {
            let text = format!(
                "host file, {} against {}: {}",
                first.shard, tree.shard, difference.text
            );
            self.say(
                severity(difference.kind),
                tree.root.join(&difference.path),
                text,
            );
        }
        if let Some(rest) = differences
            .get(MOST_DIFFERENCES..)
            .filter(|rest| !rest.is_empty())
        {
            let text = format!("{} more differences from {}", rest.len(), first.shard);
            self.say(severity(rest[0].kind), &tree.root, text);
        }
        Ok(())
    }

    /// Names what is device code, or has some elsewhere, in a generic artifact of which nothing is
    /// taken, where it is not the same in the one that is taken.
    fn device_code_left_out(&mut self, first: &Tree, tree: &Tree) -> Result<(), Error> {
        let is_code = |path: &Path, item: &Item| {
            let is_file = matches!(item.node, Node::File { .. });
            is_file
                && !is_for_all(path, item)
                && matches!(item.class, Class::Unknown { .. } | Class::Split)
        };
        for difference in differences(first, tree, is_code)? {
            let Some(item) = tree.entries.get(&difference.path) else {
                continue;
            };
            let text = match (&item.class, difference.kind) {
                (Class::Split, Kind::OnlySecond) => format!(
                    "left out: only shard {} has this host binary, so nothing will load its \
                     device code",
                    tree.shard
                ),
                (Class::Unknown { reason, .. }, Kind::OnlySecond) => {
                    format!("left out: {reason}, and only shard {} has it", tree.shard)
                }
                (Class::Unknown { reason, .. }, _) => {
                    format!(
                        "{reason}, and is not the same as {}'s, which is taken",
                        first.shard
                    )
                }
                _ => continue,
            };
            self.say(Severity::Warning, &item.from, text);
        }
        Ok(())
    }
}

/// Where the file is that a difference is about: the second shard's, if it has it.
fn from(first: &Tree, second: &Tree, difference: &Difference) -> PathBuf {
    let item = [second, first]
        .into_iter()
        .find_map(|tree| tree.entries.get(&difference.path));
    item.map_or_else(
        || second.root.join(&difference.path),
        |item| item.from.clone(),
    )
}

/// Whether it is a file for all targets, each of which is compared in its own way.
fn is_for_all(path: &Path, item: &Item) -> bool {
    item.shared(path).is_some() || item.whole(path).is_some()
}

/// The directories that files for all targets are in.
fn around_shared(tree: &Tree) -> impl Iterator<Item = &Path> {
    let shared = tree.entries.iter();
    let shared = shared.filter(|(path, item)| is_for_all(path, item));
    shared.flat_map(|(path, _)| path.ancestors().skip(1))
}
