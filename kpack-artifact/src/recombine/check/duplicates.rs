//! Compares the device code for a target that several shards have.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use kpack_format::TargetId;

use super::super::read::Inputs;
use super::super::tree_differences::{DifferenceKind, TreeDifference, tree_differences};
use super::super::{Finding, Severity, worst_first};
use crate::tree::ArtifactTree;
use kpack_core::{Error, Reason, ids};

/// Compares each shard's device code for `target` with what is taken of those before it: the first one's, and entries
/// that only others have.
pub(super) fn check_duplicates(
    inputs: &Inputs<'_>,
    target: &TargetId,
    trees: &[ArtifactTree],
) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let is_strict = inputs.component.validation().error_on_duplicate_device_code;
    let Some((first, others)) = trees.split_first() else {
        return Ok(findings);
    };
    let mut taken = first.clone();
    for other in others {
        let mut found = tree_differences(&taken, other, inputs.component.archives, |_| true)?;
        if is_strict && parts_of_one(&taken, other, &found) {
            found.clear();
        }
        let said = duplicates(is_strict, target, &taken, other, &found);
        findings.extend(worst_first(said, &other.root, &format!("shard {}", taken.shard)));
        // With errors, nothing is written, but the next one is compared with all that is there.
        taken.add_missing(other.clone());
    }
    Ok(findings)
}

fn duplicates(
    is_strict: bool,
    target: &TargetId,
    taken: &ArtifactTree,
    other: &ArtifactTree,
    differences: &[TreeDifference],
) -> Vec<Finding> {
    let shard = &*other.shard;
    let mut said: Vec<Finding> = Vec::new();
    for TreeDifference { path, kind, text: Reason { text, details, .. } } in differences {
        let known = taken.entries.get(&**path);
        let from = other
            .entries
            .get(&**path)
            .or(known)
            .map_or_else(|| other.root.join(path), |item| item.full().to_path_buf());
        let first = known.map_or(&*taken.shard, |item| &*item.origin.tree);
        let (severity, what) = match kind {
            _ if is_strict => (Severity::Fault, String::new()),
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
        let text = Reason::new(text, details.clone()).target(target);
        said.push(Finding::new(severity, ids::DUPLICATE_DEVICE_CODE, from, text));
    }
    let worst = said.iter_mut().min_by_key(|finding| Reverse(finding.severity));
    if is_strict && let Some(worst) = worst {
        worst.text += &format!(
            "; build for {target} on one shard only, or split what {shard} built again without {target} \
             (`--gpu-targets` with its other targets)"
        );
    }
    said
}

/// Whether two shards have different parts of the device code for a target, rather than two builds of it:
/// what both have is the same, and a prefix of which one has more has no archive in the other. Databases
/// are often installed for all targets, whatever was built.
fn parts_of_one(
    first: &ArtifactTree,
    second: &ArtifactTree,
    differences: &[TreeDifference],
) -> bool {
    let with_kpacks = |tree: &ArtifactTree| -> BTreeSet<Arc<str>> {
        let kpacks = tree.entries.iter().filter(|item| item.is_kpack());
        kpacks.map(|item| Arc::clone(&item.origin.prefix)).collect()
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
        let item = tree.entries.get(&*difference.path);
        item.is_some_and(|item| {
            !(ours.contains(&item.origin.prefix) && theirs.contains(&item.origin.prefix))
        })
    })
}
