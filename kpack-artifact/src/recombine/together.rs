//! Checks all artifacts together, as they are in one directory and installed into one root.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::shards::Shards;
use super::{Artifact, Concerning, Finding, Options, Severity};
use crate::directories::Siblings;
use crate::manifest_txt;
use crate::names;
use crate::rules::conflicts;
use kpack_core::publish::hidden;
use kpack_core::{Error, ids};

/// What is wrong with the `planned` artifacts of `components` together.
pub(super) fn together(
    options: &Options,
    shards: &Shards,
    components: &[&str],
    planned: &[Artifact],
) -> Result<Vec<Concerning>, Error> {
    let mut findings = unique_names(planned, options);
    findings.extend(overlaps(planned, options)?);
    findings.extend(stale(options, shards, components, planned)?);
    Ok(findings)
}

/// Refuses two artifacts that would have one name: `blas` for the group `lib_all`, `blas_lib` for
/// `all`.
fn unique_names(artifacts: &[Artifact], options: &Options) -> Vec<Concerning> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for artifact in artifacts {
        if let Some(other) = names.insert(&artifact.name, &artifact.component) {
            let path = options.output_dir.join(&artifact.name);
            let component = &artifact.component;
            let text = format!(
                "would be an artifact of {other} and of {component}; give the group another name"
            );
            let finding = Finding::new(Severity::Fault, ids::BAD_CONFIGURATION, path, text);
            findings.push((vec![other.to_owned(), component.clone()], finding));
        }
    }
    findings
}

/// Finds what would lie over one another: files that two artifacts have, and other files in several
/// prefixes of one artifact.
fn overlaps(artifacts: &[Artifact], options: &Options) -> Result<Vec<Concerning>, Error> {
    let mut found = Vec::new();
    for artifact in artifacts {
        for (outer, inner) in nested(&artifact.output.prefixes) {
            let path = options.output_dir.join(&artifact.name);
            let text =
                format!("shards list the prefixes `{outer}` and `{inner}` for it, which overlap");
            let finding = Finding::new(Severity::Fault, ids::INVALID_PREFIX_LIST, path, text);
            found.push((vec![artifact.component.clone()], finding));
        }
    }
    let installed = artifacts.iter().flat_map(|artifact| {
        let may_share = artifacts.iter().any(|other| {
            let groups = (&artifact.group, &other.group);
            matches!(groups, (Some(own), Some(group)) if own != group)
                && artifact.component == other.component
                && !artifact.targets.is_disjoint(&other.targets)
        });
        artifact.output.to_install(&artifact.component, may_share)
    });
    for conflict in conflicts(installed)? {
        let (entry, other) = (conflict.entry, conflict.other);
        let severity = if conflict.is_harmless { Severity::Warning } else { Severity::Fault };
        let path = options.output_dir.join(entry.artifact).join(entry.path);
        let finding =
            Finding::new(severity, ids::CONFLICTING_FILES, path, format!("it {}", conflict.text));
        let components = [other.component, entry.component];
        found.push((components.map(str::to_owned).to_vec(), finding));
    }
    Ok(found)
}

/// Prefixes within other prefixes. A list of prefixes cannot have both.
fn nested(prefixes: &[String]) -> impl Iterator<Item = (&String, &String)> {
    prefixes.iter().flat_map(move |outer| {
        let inner = prefixes
            .iter()
            .filter(move |inner| *inner != outer && Path::new(inner).starts_with(outer));
        inner.map(move |inner| (outer, inner))
    })
}

/// Artifacts in the output directory of the `components` that are recombined, and of components that
/// no shard has, besides those that are `planned`. Nothing is removed here: somebody may need it.
fn stale(
    options: &Options,
    shards: &Shards,
    components: &[&str],
    planned: &[Artifact],
) -> Result<Vec<Concerning>, Error> {
    let output = &options.output_dir;
    if !output.is_dir() {
        return Ok(Vec::new());
    }
    let listed = Siblings::read(output)?;
    let there: BTreeMap<&str, &PathBuf> = listed
        .artifacts
        .iter()
        .filter_map(|path| Some((path.file_name()?.to_str()?, path)))
        .collect();
    let generic = format!("_{}", names::GENERIC);
    let known: BTreeSet<&str> = there
        .keys()
        .filter_map(|name| name.strip_suffix(&generic))
        .chain(shards.components())
        .collect();
    let mut findings = Vec::new();
    for (name, path) in &there {
        // The name of one component can be the start of another's.
        let of = |component: &&&str| {
            let rest = name.strip_prefix(**component);
            rest.is_some_and(|rest| rest.len() > 1 && rest.starts_with('_'))
        };
        let longest = known.iter().filter(of).max_by_key(|name| name.len());
        let Some(component) = longest.copied() else {
            continue;
        };
        let is_planned = planned.iter().any(|artifact| artifact.name == *name);
        let (severity, text) = match components.contains(&component) {
            _ if is_planned => continue,
            true => (
                Severity::Fault,
                format!(
                    "stale: this configuration has no such artifact of {component} (was a group \
                     renamed or removed?), and packages would be made from it; remove it, or \
                     choose another output directory"
                ),
            ),
            false if shards.components().contains(component) => continue,
            false => (
                Severity::Warning,
                format!("stays, although no shard has the component {component}"),
            ),
        };
        let finding = Finding::new(severity, ids::STALE_ARTIFACT, path, text);
        findings.push((vec![component.to_owned()], finding));
    }
    for (path, error) in &listed.unreadable {
        let is_planned = |artifact: &Artifact| path.ends_with(&artifact.name);
        if !planned.iter().any(is_planned) {
            let text =
                format!("perhaps stale: its {} cannot be read: {error}", manifest_txt::FILE_NAME);
            findings
                .push((Vec::new(), Finding::new(Severity::Note, ids::STALE_ARTIFACT, path, text)));
        }
    }
    // What interrupted runs left, and this one does not replace.
    for path in listed.leftovers {
        // The artifacts of a component are written under that name, and replace it.
        let replaces = |artifact: &Artifact| path.ends_with(hidden(&artifact.component));
        if !planned.iter().any(replaces) {
            let text = "leftover of an interrupted run, which this run does not replace; remove it, \
                        if no other run is at work";
            findings.push((Vec::new(), Finding::new(Severity::Warning, ids::LEFTOVER, path, text)));
        }
    }
    Ok(findings)
}
