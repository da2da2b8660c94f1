//! Checks all artifacts as installed into one root.

use std::path::Path;

use super::{Artifact, Concerning, Notice, Options, Severity};
use crate::Error;
use crate::artifact::rules::conflicts;

/// Finds what would lie over one another: files that two artifacts have, and other files in several
/// prefixes of one artifact.
pub(super) fn overlaps(
    artifacts: &[Artifact],
    options: &Options,
) -> Result<Vec<Concerning>, Error> {
    let mut found = Vec::new();
    for artifact in artifacts {
        for (outer, inner) in nested(&artifact.output.prefixes) {
            let path = options.output_dir.join(&artifact.name);
            let text =
                format!("shards list the prefixes `{outer}` and `{inner}` for it, which overlap");
            let finding = Notice::new(Severity::Error, path, text);
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
        let name = Path::new(&artifact.name);
        artifact
            .output
            .installed(&artifact.component, name, may_share)
    });
    for conflict in conflicts(installed)? {
        let (entry, other) = (conflict.entry, conflict.other);
        let severity = match conflict.is_harmless {
            true => Severity::Warning,
            false => Severity::Error,
        };
        let path = options.output_dir.join(entry.artifact).join(entry.path);
        let finding = Notice::new(severity, path, format!("it {}", conflict.text));
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
