//! The unsplit original of a tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_core::{Error, ids};
use kpack_split::leftover::directories;

use crate::manifest_txt;
use crate::mark;
use crate::tree::is_artifact;
use kpack_tree::gaps::{DatabaseFile, Gap, files_in, gaps};
use kpack_tree::{Class, Only, Parsed, Selection, Tree, Walk};

/// The unsplit original of a tree: the contents of its install prefixes, by directory.
#[derive(Default)]
pub(super) struct Original {
    pub(super) prefixes: BTreeMap<PathBuf, Tree>,
    /// What its kernel databases lack, with paths in the prefix or the artifact.
    gaps: Vec<Gap>,
}

impl Original {
    /// Reads an install prefix, an artifact directory, or a directory of these.
    ///
    /// # Errors
    /// As [`Walk::collect`]; [`Error::Refused`] if it is itself split, so that it could not show a loss.
    pub(super) fn read(
        unsplit: &Path,
        databases: &Selection,
        parsed: Parsed<'_>,
    ) -> Result<Self, Error> {
        let mut original = Self::default();
        let artifacts = artifacts(unsplit)?;
        let mut prefixes = Vec::new();
        for artifact in &artifacts {
            if mark::is_marked(artifact) {
                let reason = "the original is already split: kpack wrote it";
                return Err(Error::rejected(ids::SPLIT_ARTIFACT, artifact, reason));
            }
            let listed = manifest_txt::read(artifact)?.into_iter();
            prefixes.extend(listed.map(|prefix| artifact.join(prefix)));
        }
        if artifacts.is_empty() {
            prefixes.push(unsplit.to_owned());
        }
        for prefix in prefixes.into_iter().filter(|prefix| prefix.is_dir()) {
            let walk = Walk { prefix: &prefix, databases, parsed, only: Only::All };
            let content = walk.collect()?;
            original.prefixes.insert(prefix, content);
        }
        let entries = || {
            let prefixes = original.prefixes.iter();
            prefixes.flat_map(|(prefix, content)| content.entries.iter().map(move |e| (prefix, e)))
        };
        let first_split = entries().find(|(_, entry)| entry.class == Class::Split);
        match first_split {
            Some((prefix, split)) if !entries().any(|(_, entry)| entry.class == Class::Fat) => {
                let reason = "the original is already split";
                let path = prefix.join(&split.path);
                return Err(Error::rejected(ids::SPLIT_ARTIFACT, &path, reason));
            }
            _ => {}
        }
        // Components are installed together, but each has databases of its own.
        let roots = match &artifacts[..] {
            [] => vec![unsplit],
            artifacts => artifacts.iter().map(PathBuf::as_path).collect(),
        };
        for artifact in roots {
            let own = original.prefixes.iter().filter_map(|(prefix, content)| {
                let within = prefix.strip_prefix(artifact).ok()?;
                Some(files_in(content, artifact, within))
            });
            let files = Vec::from_iter(own.flatten());
            let gaps = gaps(files.iter().map(DatabaseFile::from));
            original.gaps.extend(gaps);
        }
        Ok(original)
    }

    pub(super) fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.iter()
    }
}

/// The artifact directories that an original is: itself, or those in it; none for an install prefix.
pub(super) fn artifacts(unsplit: &Path) -> Result<Vec<PathBuf>, Error> {
    if is_artifact(unsplit) {
        return Ok(vec![unsplit.to_owned()]);
    }
    let mut artifacts = directories(unsplit)?;
    artifacts.retain(|path| is_artifact(path));
    Ok(artifacts)
}
