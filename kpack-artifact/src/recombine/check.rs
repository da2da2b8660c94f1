//! Compares what the shards have. It changes nothing.

mod duplicates;
mod host_files;

use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::names::{is_manifest, is_object};
use kpack_format::unstable::spelling;

use super::read::{GenericArtifact, Inputs};
use super::{Finding, Severity};
use crate::packaging::TargetGroup;
use crate::rules::{HostFault, kernels_without_host};
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_tree::Entry;

/// What does not fit together.
pub(super) fn check(inputs: &Inputs<'_>) -> Result<Vec<Finding>, Error> {
    let mut findings = missing_targets(inputs);
    findings.extend(inputs.generics.iter().flat_map(split_before_link));
    if let Some((first, others)) = inputs.generics.split_first() {
        findings.extend(hosts_are_split(inputs, first)?);
        for other in others {
            findings.extend(host_files::check_host_files(inputs, &first.tree, &other.tree)?);
        }
    }
    for (target, trees) in &inputs.device {
        findings.extend(duplicates::check_duplicates(inputs, target, trees)?);
    }
    Ok(findings)
}

/// The targets of groups that no shard has.
fn missing_targets(inputs: &Inputs<'_>) -> Vec<Finding> {
    // A component without device code lacks nothing. One with manifests had some.
    let has_manifests = || {
        let mut trees = inputs.generics.iter().map(|generic| &generic.tree);
        trees.any(|tree| {
            tree.entries.iter().any(Entry::is_manifest) || tree.unlisted_files().any(is_manifest)
        })
    };
    if inputs.targets.iter().all(|(_, targets)| targets.is_empty()) && !has_manifests() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (group, taken) in &inputs.groups {
        let missing = missing_of(group, taken);
        if !missing.is_empty() {
            findings.push(missing_finding(inputs, group, &missing));
        }
    }
    findings
}

/// The targets of a group that nothing `taken` is for. What is for a processor is for its variants, and what is
/// for a family for its processors, and the reverse where the group lists the family.
fn missing_of<'g>(group: &'g TargetGroup, taken: &BTreeSet<TargetId>) -> Vec<&'g TargetId> {
    let has = |target: &&TargetId| {
        let is_plain = target.features().count() == 0;
        let mut taken = taken.iter();
        taken.any(|own| own.may_run_on(target) || is_plain && target.may_run_on(own))
    };
    group.architectures.iter().filter(|target| !has(target)).collect()
}

fn missing_finding(inputs: &Inputs<'_>, group: &TargetGroup, missing: &[&TargetId]) -> Finding {
    let component = inputs.component;
    let by_shard = inputs.targets.iter().map(|(shard, targets)| {
        if targets.is_empty() {
            format!("{shard} has none")
        } else {
            format!("{shard} has {}", list(targets))
        }
    });
    let mut text = format!(
        "no shard has {} for group `{}`: {}",
        list(missing.iter().copied()),
        group.name,
        by_shard.collect::<Vec<_>>().join("; ")
    );
    for target in missing.iter().filter(|target| !spelling::is_known(target)) {
        text += &format!("; {target} is not a known processor");
    }
    let severity = if component.validation().error_on_missing_architecture {
        Severity::Fault
    } else {
        Severity::Warning
    };
    let path = component.options.shards_dir.join("*").join(component.artifact_name("*"));
    Finding::new(severity, ids::MISSING_TARGET, path, text)
}

/// Kernels that are named after objects: such a name has a digest of the device code, which is another one in each
/// shard.
fn split_before_link(generic: &GenericArtifact) -> Vec<Finding> {
    let of_object = generic.markers.iter().filter_map(|(path, markers)| {
        let mut names = markers.iter().filter_map(|marker| marker.kernel_name.as_deref());
        let name = names.find(|name| is_object(name))?;
        let text = format!(
            "the kernels are named after an object that was split before the link (`{name}`), \
             and those of other shards have other names; run `kpack split` on it before \
             `kpack artifact split`"
        );
        let from = generic.tree.entries.get(&**path)?.full();
        Some(Finding::new(Severity::Fault, ids::SPLIT_BEFORE_LINK, from, text))
    });
    of_object.collect()
}

/// Files in the place of host binaries that archives have kernels of: `host` has been split, so a file that loads no
/// kernels is a truncated or another one.
fn hosts_are_split(inputs: &Inputs<'_>, host: &GenericArtifact) -> Result<Vec<Finding>, Error> {
    let host = &host.tree;
    let mut wrong = BTreeSet::new();
    for tree in inputs.device.values().flatten() {
        for item in tree.entries.iter().filter(|item| item.is_kpack()) {
            let toc = inputs.component.archives.toc(item.full())?;
            let entry = |path: &Path| host.entries.get(path);
            let faults = kernels_without_host(&item.path, &toc, &host.prefixes, &entry);
            wrong.extend(faults.into_values().filter_map(|fault| match fault {
                HostFault::NotSplit(path) => host.entries.get(&*path).map(|item| item.full()),
                _ => None,
            }));
        }
    }
    let text = "not a split binary, although archives have its kernels: it is truncated, or \
                another file; split again";
    let finding = |path| Finding::new(Severity::Fault, ids::UNUSED_KERNELS, path, text);
    Ok(wrong.into_iter().map(finding).collect())
}
