//! The prefixes of one artifact laid over one root, as they are installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::artifact::classify::{Entry, Node};
use crate::verify::unsplit::same_bytes;
use crate::verify::{Report, Subject};

/// What the prefixes until now have, by path in them: where it is, and what.
#[derive(Default)]
pub(super) struct Installed(BTreeMap<PathBuf, (PathBuf, Node)>);

impl Installed {
    /// Adds an entry of a prefix, which has to be the same in each that has it.
    pub(super) fn add(
        &mut self,
        prefix: &Path,
        entry: &Entry,
        report: &mut Report,
    ) -> Result<(), Error> {
        let path = prefix.join(&entry.path);
        let Some((other, node)) = self.0.get(&entry.path) else {
            self.0.insert(entry.path.clone(), (path, entry.node));
            return Ok(());
        };
        let link = |path: &Path| fs::read_link(path).map_err(|e| Error::io(path, "read", e));
        let same = match (node, &entry.node) {
            (Node::Directory { .. }, Node::Directory { .. }) => true,
            (Node::Symlink, Node::Symlink) => link(other)? == link(&path)?,
            (Node::File { .. }, Node::File { .. }) => same_bytes(other, &path)?,
            _ => false,
        };
        if !same {
            let text = format!(
                "is not the same as {}, and both are installed as {}",
                other.display(),
                entry.path.display()
            );
            report.fault(Subject::Artifact, &path, text);
        }
        Ok(())
    }
}
