//! The generic artifact: the primary shard's, with which the others' are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kpack_format::marker::Marker;

use super::Severity;
use super::component::Component;
use crate::classify::Class;
use crate::code_ids::MoreCodeIds;
use crate::names;
use crate::output::Edits;
use crate::rules::{HostFault, kernels_without_host};
use crate::tree::{Role, Tree};
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_format::names::is_object;

impl<'a> Component<'a> {
    /// Reads the generic artifacts, the primary shard's first, which becomes the output's, and
    /// compares the others with it. Of a component that the primary shard has nothing of, the first
    /// one by name stands for it.
    pub(super) fn generics(&mut self) -> Result<Vec<Tree>, Error> {
        let with = self.with_generic();
        if with.is_empty() {
            return Ok(Vec::new());
        }
        let mut trees = Vec::new();
        let mut own = BTreeMap::new();
        let mut ids = MoreCodeIds::default();
        for (shard, path) in &with {
            let mut tree = self.inputs.tree(shard, path)?;
            self.report_damage(&tree);
            // Of other shards' device code than the primary one's, nothing would be taken.
            self.nothing_misplaced(&tree, &Role::Generic, "; was all of it split?");
            self.hosts_are_sound(&tree)?;
            self.read_markers(&tree, (!trees.is_empty()).then_some(&mut ids))?;
            if let Some(first) = trees.first() {
                self.compare_generic(first, &tree)?;
                self.take_target_files(first, &tree, &mut own);
                // All else was compared, and there may be many shards.
                tree.entries.retain(|path, item| {
                    item.is_directory() || item.is_manifest() || item.shared(path).is_some()
                });
            }
            trees.push(tree);
        }
        let tree = &trees[0];
        let mut artifact = self.artifact(None, &tree.root);
        artifact.output.add_prefixes(&tree.prefixes);
        artifact.output.add_prefix_directories(tree);
        artifact.output.shards.insert(tree.shard.to_string());
        for path in tree.unlisted_files() {
            let text = "skipped: it is in no prefix that the artifact lists, so in no package";
            self.say(Severity::Warning, ids::IN_NO_PREFIX, path, text);
        }
        let unreadable = tree.about(ids::UNREADABLE_DEVICE_CODE).cloned();
        self.findings.extend(unreadable);
        let merged = self.merge_shared(&trees)?;
        for (path, item) in &tree.entries {
            if item.is_manifest() || merged.contains_key(path.as_path()) {
                continue;
            }
            let edits = match item.class {
                Class::Split => ids.edits(path, item)?,
                _ => Edits::new(),
            };
            if !edits.is_empty() && item.linked()?.image.is_signed() {
                let text = "has a signature, which would not fit the recombined binary; recombine unsigned ones, then \
                            sign the result";
                self.say(Severity::Fault, ids::SIGNED_BINARY, &item.from, text);
            }
            artifact.output.add_edited(path, item, edits);
        }
        for (path, file) in merged {
            file.add_to(path, &mut artifact.output);
        }
        for (path, item) in own {
            artifact.output.add_prefixes(&[item.prefix.to_string()]);
            artifact.output.add(&path, &item);
        }
        self.artifacts.push(artifact);
        Ok(trees)
    }

    /// The shards with generic artifacts, that whose host files are taken first; none where there is no
    /// such shard.
    fn with_generic(&mut self) -> Vec<(&'a str, &'a Path)> {
        let primary = &self.options.configuration.primary_shard;
        let with: Vec<(&str, &Path)> = self
            .shards()
            .filter_map(|(shard, artifacts)| Some((shard, artifacts.generic.as_deref()?)))
            .collect();
        let is_built = self.shards().any(|(shard, _)| shard == primary);
        let stands_for_it = |shard: &str| shard == primary || !is_built;
        let first = with.first().copied();
        let Some((first, path)) = first.filter(|(shard, _)| stands_for_it(shard)) else {
            let others = list(self.shards().map(|(shard, _)| shard));
            let text = match first {
                Some(_) => format!(
                    "missing, so there are no host files of {}, which {others} built; choose a \
                     primary shard that has it, or name the components to recombine",
                    self.name
                ),
                None => format!(
                    "no shard has host files of {}: {others} have device code only",
                    self.name
                ),
            };
            let path = self.options.shards_dir.join(primary);
            self.say(
                Severity::Fault,
                ids::MISSING_ARTIFACT,
                path.join(self.artifact_name(names::GENERIC)),
                text,
            );
            return Vec::new();
        };
        if first != primary {
            let text = format!(
                "taking its host files: the primary shard {primary} has nothing of {}",
                self.name
            );
            self.say(Severity::Warning, ids::MISSING_ARTIFACT, path, text);
        }
        for (shard, artifacts) in self.shards.of(self.name) {
            if artifacts.generic.is_none() {
                let text = format!(
                    "missing, although shard {shard} has device code of {}; its host files cannot be \
                     compared with those of {first}",
                    self.name
                );
                let path = self.options.shards_dir.join(shard);
                let path = path.join(self.artifact_name(names::GENERIC));
                self.say(Severity::Warning, ids::MISSING_ARTIFACT, path, text);
            }
        }
        with
    }

    /// Refuses files in the place of host binaries that archives in `groups` have kernels of: `host`
    /// has been split, so a file that loads no kernels is a truncated or another one.
    pub(super) fn hosts_are_split(&mut self, host: &Tree, groups: &[Tree]) -> Result<(), Error> {
        let mut wrong = BTreeSet::new();
        for tree in groups {
            let kpacks = tree.entries.iter().filter(|(_, item)| item.is_kpack());
            for (path, item) in kpacks {
                let toc = self.inputs.archives.toc(&item.from)?;
                let entry = |path: &Path| host.entries.get(path);
                for found in kernels_without_host(path, &toc, &host.prefixes, &entry).into_values()
                {
                    if let HostFault::NotSplit(path) = found {
                        wrong.extend(host.entries.get(&path).map(|item| &item.from));
                    }
                }
            }
        }
        for path in wrong {
            let text = "not a split binary, although archives have its kernels: it is truncated, or \
                        another file; split again";
            self.say(Severity::Fault, ids::UNUSED_KERNELS, path, text);
        }
        Ok(())
    }

    /// Refuses host binaries that the system would not load.
    fn hosts_are_sound(&mut self, tree: &Tree) -> Result<(), Error> {
        let split = tree.entries.values().filter(|item| item.class == Class::Split);
        for item in split {
            if let Err(error) = item.linked()?.image.check_loaded() {
                let text = format!("{error}; split again");
                self.say(Severity::Fault, ids::DAMAGED_BINARY, &item.from, text);
            }
        }
        Ok(())
    }

    /// Reads the markers of host binaries, where several shards built them. Collects the IDs of their
    /// device code in `ids`, and refuses kernels that are named after objects: such a name has a digest of
    /// the device code, which is another one in each shard.
    fn read_markers(
        &mut self,
        tree: &Tree,
        mut ids: Option<&mut MoreCodeIds>,
    ) -> Result<(), Error> {
        if self.shards().count() < 2 {
            return Ok(());
        }
        let split = tree.entries.iter();
        for (path, item) in split.filter(|(_, item)| item.class == Class::Split) {
            let markers = item.linked()?.markers()?;
            let markers: Vec<Marker> = markers.into_iter().map(|group| group.marker).collect();
            let mut names = markers.iter().filter_map(|m| m.kernel_name.as_deref());
            if let Some(name) = names.find(|name| is_object(name)) {
                let text = format!(
                    "the kernels are named after an object that was split before the link (`{name}`), \
                     and those of other shards have other names; run `kpack install` on it before \
                     `kpack split`"
                );
                self.say(Severity::Fault, ids::SPLIT_BEFORE_LINK, &item.from, text);
            }
            if let Some(ids) = &mut ids {
                ids.collect(path, markers);
            }
        }
        Ok(())
    }
}
