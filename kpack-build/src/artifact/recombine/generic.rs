//! The generic artifact: the primary shard's, with which the others' are compared.

use std::path::Path;

use super::Severity;
use super::component::Component;
use super::tree::Tree;
use crate::Error;
use crate::artifact::classify::Class;
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
                self.compare_generic(first, &tree)?;
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
}
