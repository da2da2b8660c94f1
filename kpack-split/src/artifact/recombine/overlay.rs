//! All artifacts of a component laid over one root, as they are installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::component::Component;
use super::{Artifact, Severity, Source};
use crate::Error;

/// An entry of an artifact.
#[derive(Clone, Copy)]
struct Owned<'a> {
    artifact: &'a Artifact,
    /// Path in the artifact.
    path: &'a Path,
    source: &'a Source,
}

impl Component<'_> {
    /// Finds what would lie over one another: files that two artifacts have, and other files in
    /// several prefixes of one artifact.
    pub(super) fn overlaps(&mut self) -> Result<(), Error> {
        let mut first: BTreeMap<&Path, Owned<'_>> = BTreeMap::new();
        let mut found: Vec<(PathBuf, String)> = Vec::new();
        for artifact in &self.artifacts {
            for (outer, inner) in nested(&artifact.prefixes) {
                let text = format!(
                    "shards list the prefixes `{outer}` and `{inner}` for it, which overlap"
                );
                found.push((PathBuf::from(&artifact.name), text));
            }
            for (path, source) in &artifact.entries {
                let mut prefixes = artifact.prefixes.iter();
                let Some(installed) = prefixes.find_map(|prefix| path.strip_prefix(prefix).ok())
                else {
                    continue;
                };
                let own = Owned {
                    artifact,
                    path,
                    source,
                };
                let other = *first.entry(installed).or_insert(own);
                if std::ptr::eq(other.path, own.path) || other.lies_below(&own)? {
                    continue;
                }
                let text = match other.artifact.name == artifact.name {
                    true => format!(
                        "it is not the same as {} of the same artifact, and both are installed as {}",
                        other.path.display(),
                        installed.display()
                    ),
                    false => format!(
                        "{} has it too; a file is in one artifact only",
                        other.artifact.name
                    ),
                };
                found.push((Path::new(&artifact.name).join(path), text));
            }
        }
        for (path, text) in found {
            self.say(Severity::Error, self.options.output_dir.join(path), text);
        }
        Ok(())
    }
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

impl Owned<'_> {
    /// Whether the other can be laid over this: both are directories, or the same in one artifact.
    fn lies_below(&self, other: &Self) -> Result<bool, Error> {
        match (self.source, other.source) {
            (Source::Directory(_), Source::Directory(_)) => Ok(true),
            (Source::Directory(_), _) | (_, Source::Directory(_)) => Ok(false),
            _ if self.artifact.name != other.artifact.name => Ok(false),
            (one, other) => Ok(content(one)? == content(other)?),
        }
    }
}

/// The bytes of a file, or where a symbolic link leads to.
fn content(source: &Source) -> Result<(bool, Vec<u8>), Error> {
    use std::os::unix::ffi::OsStringExt;
    let from = match source {
        Source::Bytes(bytes, _) => return Ok((false, bytes.clone())),
        Source::Copy(from) | Source::Directory(from) => from,
    };
    let failed = |error| Error::io(from, "read", error);
    match from.is_symlink() {
        true => {
            let target = fs::read_link(from).map_err(failed)?;
            Ok((true, target.into_os_string().into_vec()))
        }
        false => Ok((false, fs::read(from).map_err(failed)?)),
    }
}
