//! The artifacts of groups: device code of all shards.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use kpack_format::TargetId;

use super::compare::{DifferenceKind, TreeDifference, differences};
use super::component::Component;
use super::{Artifact, Finding, Severity};
use crate::packaging::TargetGroup;
use crate::tree::Tree;
use kpack_core::{Error, ids};

impl Component<'_> {
    /// The artifact of a group, made from those of its targets, and the tree of all of them; `None` if no
    /// shard has any.
    pub(super) fn group(&mut self, group: &TargetGroup) -> Result<Option<(Artifact, Tree)>, Error> {
        let mut artifact = self.artifact(Some(group), Path::new(""));
        let mut all = Tree::empty("", Path::new(""));
        let targets = self.device.keys().filter(|target| self.takes(group, target));
        for target in targets.cloned().collect::<Vec<_>>() {
            let Some(tree) = self.target(&target)? else {
                continue;
            };
            if artifact.targets.is_empty() {
                artifact.output.model.clone_from(&tree.root);
            }
            artifact.targets.insert(target.clone());
            artifact.output.add_prefixes(&tree.prefixes);
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
                        self.say(Severity::Fault, ids::CONFLICTING_FILES, &item.from, text);
                    }
                    continue;
                }
                artifact.output.add(&path, &item);
                all.entries.insert(path, item);
            }
        }
        Ok((!artifact.targets.is_empty()).then_some((artifact, all)))
    }

    /// The device code for a target. If several shards have it, the first one's is taken, and entries that
    /// only others have.
    fn target(&mut self, target: &TargetId) -> Result<Option<Tree>, Error> {
        let mut trees = self.device.get(target).cloned().unwrap_or_default().into_iter();
        let Some(mut taken) = trees.next() else {
            return Ok(None);
        };
        // Several groups may take it.
        let is_new = self.compared.insert(target.clone());
        for other in trees {
            let mut differences = differences(&taken, &other, self.inputs, |_, _| true)?;
            if self.strict() && parts_of_one(&taken, &other, &differences) {
                differences.clear();
            }
            if is_new {
                self.say_duplicates(target, &taken, &other, &differences);
            }
            // With errors, nothing is written, but manifests are compared with all that is there.
            taken.add_missing(other);
        }
        Ok(Some(taken))
    }

    /// Whether device code that differs between shards is an error.
    pub(super) fn strict(&self) -> bool {
        let validation = &self.options.configuration.validation;
        validation.error_on_duplicate_device_code
    }

    fn say_duplicates(
        &mut self,
        target: &TargetId,
        taken: &Tree,
        other: &Tree,
        differences: &[TreeDifference],
    ) {
        let (strict, shard) = (self.strict(), &*other.shard);
        let mut said: Vec<Finding> = Vec::new();
        for TreeDifference { path, kind, text } in differences {
            let first = taken.entries.get(path);
            let from = other.entries.get(path).or(first);
            let from = from.map_or_else(|| other.root.join(path), |item| item.from.clone());
            let first = first.map_or(&*taken.shard, |item| &*item.shard);
            let (severity, what) = match kind {
                _ if strict => (Severity::Fault, String::new()),
                DifferenceKind::OnlyFirst => continue,
                DifferenceKind::OnlySecond => (Severity::Warning, "; it is taken".to_owned()),
                DifferenceKind::Content | DifferenceKind::Bytes => {
                    (Severity::Warning, format!("; {first}'s is taken"))
                }
                DifferenceKind::Irreconcilable => {
                    let what = format!(
                        "; taking {first}'s would lose something of {shard}'s, so let only \
                         one shard build for {target}"
                    );
                    (Severity::Fault, what)
                }
            };
            let text = format!(
                "device code for {target} that shards {first} and {shard} both have: {text}{what}"
            );
            said.push(Finding::new(severity, ids::DUPLICATE_DEVICE_CODE, from, text));
        }
        let worst = said.iter_mut().min_by_key(|finding| Reverse(finding.severity));
        if strict && let Some(worst) = worst {
            worst.text += &format!(
                "; build for {target} on one shard only, or split what {shard} built again without {target} \
                 (`--gpu-targets` with its other targets)"
            );
        }
        self.say_differences(said, &other.root, &format!("shard {}", taken.shard));
    }
}

/// Whether two shards have different parts of the device code for a target, rather than two builds of it:
/// what both have is the same, and a prefix of which one has more has no archive in the other. Databases
/// are often installed for all targets, whatever was built.
fn parts_of_one(first: &Tree, second: &Tree, differences: &[TreeDifference]) -> bool {
    let with_kpacks = |tree: &Tree| -> BTreeSet<Arc<str>> {
        let kpacks = tree.entries.values().filter(|item| item.is_kpack());
        kpacks.map(|item| Arc::clone(&item.prefix)).collect()
    };
    let (ours, theirs) = (with_kpacks(first), with_kpacks(second));
    differences.iter().all(|difference| {
        let tree = match difference.kind {
            DifferenceKind::OnlyFirst => first,
            DifferenceKind::OnlySecond => second,
            DifferenceKind::Content | DifferenceKind::Irreconcilable | DifferenceKind::Bytes => {
                return false;
            }
        };
        let item = tree.entries.get(&difference.path);
        item.is_some_and(|item| !(ours.contains(&item.prefix) && theirs.contains(&item.prefix)))
    })
}
