//! All artifacts laid over one root, as they are installed.

use std::path::Path;

use super::{Artifact, Concerning, Finding, Options, Severity, Source};
use crate::Error;
use crate::artifact::rules::{Content, Owner, Owners};

/// Finds what would lie over one another: files that two artifacts have, and other files in several
/// prefixes of one artifact.
pub(super) fn overlaps(
    artifacts: &[Artifact],
    options: &Options,
) -> Result<Vec<Concerning>, Error> {
    let mut owners = Owners::default();
    let mut found = Vec::new();
    let mut say = |components: &[&str], severity, path: &Path, text| {
        let path = options.output_dir.join(path);
        let finding = Finding {
            severity,
            path,
            text,
        };
        found.push((
            components.iter().copied().map(str::to_owned).collect(),
            finding,
        ));
    };
    for artifact in artifacts {
        let name = Path::new(&artifact.name);
        let may_share = artifacts.iter().any(|other| {
            let groups = (&artifact.group, &other.group);
            matches!(groups, (Some(own), Some(group)) if own != group)
                && artifact.component == other.component
                && !artifact.targets.is_disjoint(&other.targets)
        });
        for (outer, inner) in nested(&artifact.prefixes) {
            let text =
                format!("shards list the prefixes `{outer}` and `{inner}` for it, which overlap");
            say(&[&artifact.component], Severity::Error, name, text);
        }
        for (path, source) in &artifact.entries {
            let mut prefixes = artifact.prefixes.iter();
            let Some(installed) = prefixes.find_map(|prefix| path.strip_prefix(prefix).ok()) else {
                continue;
            };
            let owner = Owner {
                component: &artifact.component,
                artifact: name,
                may_share,
                path,
                content: match source {
                    Source::Directory(_) => Content::Directory,
                    // Code IDs are added to all copies of a host file.
                    Source::Copy(from) | Source::Edited(from, _) => Content::File(from),
                    Source::Bytes(bytes, _) | Source::Manifest(bytes) => Content::Bytes(bytes),
                },
            };
            let Some((other, same)) = owners.add(installed, owner)? else {
                continue;
            };
            let (other_name, at) = (other.artifact.display(), installed.display());
            let (severity, text) = match other.component == artifact.component {
                true if other.artifact == name => {
                    let path = other.path.display();
                    let text = format!(
                        "it is not the same as {path} of the same artifact, and both are installed \
                         as {at}"
                    );
                    (Severity::Error, text)
                }
                true => {
                    let text = format!("{other_name} has it too; a file is in one artifact only");
                    (Severity::Error, text)
                }
                false if same => {
                    let text = format!(
                        "{other_name} of another component has the same file, and both are installed \
                         as {at}"
                    );
                    (Severity::Warning, text)
                }
                false => {
                    let text = format!(
                        "it is not the same as that of {other_name}, another component, and both \
                         are installed as {at}; let one component have it"
                    );
                    (Severity::Error, text)
                }
            };
            let both = [other.component, &artifact.component];
            say(&both, severity, &name.join(path), text);
        }
    }
    Ok(found)
}

/// Prefixes that are in others. No list of an artifact can have both.
fn nested(prefixes: &[String]) -> impl Iterator<Item = (&String, &String)> {
    prefixes.iter().flat_map(move |outer| {
        let inner = prefixes
            .iter()
            .filter(move |inner| *inner != outer && Path::new(inner).starts_with(outer));
        inner.map(move |inner| (outer, inner))
    })
}
