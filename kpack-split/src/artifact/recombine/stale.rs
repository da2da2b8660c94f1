//! What an earlier run left in the output directory, and this one does not replace.

use std::collections::BTreeSet;

use super::shards::{Shards, directories};
use super::{Artifact, Concerning, Finding, Options, Severity};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::names;
use crate::leftover;

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
    let mut there = directories(output)?;
    there.retain(|_, path| path.join(manifest_txt::FILE_NAME).is_file());
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
        let finding = Finding {
            severity,
            path: path.clone(),
            text,
        };
        findings.push((vec![component.to_owned()], finding));
    }
    for path in leftover::directories_in(output)? {
        // The artifacts of a component are written under that name, and replace it.
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.strip_prefix('.').unwrap_or_default();
        if !planned.iter().any(|artifact| artifact.component == name) {
            let finding = Finding {
                severity: Severity::Warning,
                path: path.clone(),
                text: "leftover of an interrupted run, which this run does not replace; remove \
                       it, if no other run is at work"
                    .to_owned(),
            };
            findings.push((Vec::new(), finding));
        }
    }
    Ok(findings)
}
