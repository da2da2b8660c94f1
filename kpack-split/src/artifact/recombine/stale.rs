//! What an earlier run left in the output directory, and this one does not replace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::shards::{Shards, by_name};
use super::{Artifact, Concerning, Notice, Options, Severity};
use crate::Error;
use crate::artifact::names;
use crate::artifact::tree::is_artifact;
use crate::leftover::{directories, leftovers};

/// Artifacts in the output directory of the `components` that are recombined, and of components that
/// no shard has, besides those that are `planned`. Nothing is removed here: somebody may need it.
pub(super) fn stale(
    options: &Options,
    shards: &Shards,
    components: &[&str],
    planned: &[Artifact],
) -> Result<Vec<Concerning>, Error> {
    let output = &options.output_dir;
    if !output.is_dir() {
        return Ok(Vec::new());
    }
    let all = directories(output)?;
    let there = by_name(&all).filter(|(_, path)| is_artifact(path));
    let there: BTreeMap<&str, &PathBuf> = there.collect();
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
                Severity::Error,
                format!(
                    "stale: this configuration has no such artifact of {component} (was a group \
                     renamed or removed?), and packages would be made from it; remove it, or \
                     choose another output directory"
                ),
            ),
            false if shards.components().contains(component) => continue,
            false => (
                Severity::Warning,
                format!("it stays, although no shard has the component {component}"),
            ),
        };
        let finding = Notice::new(severity, path, text);
        findings.push((vec![component.to_owned()], finding));
    }
    findings.extend(report_leftovers(&all, planned));
    Ok(findings)
}

/// What interrupted runs left in the output directory, and this one does not replace.
fn report_leftovers(directories: &[PathBuf], planned: &[Artifact]) -> Vec<Concerning> {
    let mut findings = Vec::new();
    for path in leftovers(directories) {
        // The artifacts of a component are written under that name, and replace it.
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.strip_prefix('.').unwrap_or_default();
        if !planned.iter().any(|artifact| artifact.component == name) {
            let text = "leftover of an interrupted run, which this run does not replace; remove it, \
                        if no other run is at work";
            findings.push((Vec::new(), Notice::new(Severity::Warning, path, text)));
        }
    }
    findings
}
