//! The unsplit original of a tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_core::{Error, ids};
use kpack_split::leftover::directories;

use crate::directories::is_artifact;
use crate::manifest_txt;
use crate::mark;
use kpack_tree::gaps::{Gap, gaps};
use kpack_tree::{Class, DatabaseSelection, Only, Parsed, Tree, Walk};

/// The unsplit original of a tree: the contents of its install prefixes, by directory.
#[derive(Default)]
pub(super) struct Original {
    /// The artifact directories that it is: itself, or those in it; none for an install prefix.
    pub(super) artifacts: Vec<PathBuf>,
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
        databases: &DatabaseSelection,
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
        let entries = || original.prefixes.values().flat_map(|content| &content.entries);
        let first_split = entries().find(|entry| *entry.class == Class::Split);
        match first_split {
            Some(split) if !entries().any(|entry| *entry.class == Class::Fat) => {
                let reason = "the original is already split";
                return Err(Error::rejected(ids::SPLIT_ARTIFACT, split.full(), reason));
            }
            _ => {}
        }
        // Components are installed together, but each has databases of its own.
        let roots = match &artifacts[..] {
            [] => vec![unsplit],
            artifacts => artifacts.iter().map(PathBuf::as_path).collect(),
        };
        for artifact in roots {
            let files: Vec<_> = original
                .prefixes
                .iter()
                .filter(|(prefix, _)| prefix.starts_with(artifact))
                .flat_map(|(_, content)| &content.entries)
                .map(|file| file.clone().within(artifact))
                .collect();
            original.gaps.extend(gaps(files.iter()));
        }
        Ok(Self { artifacts, ..original })
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
