//! The shards: what each machine uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::names::{self, Kind};
use crate::leftover;

/// What one machine uploaded: split artifacts.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    path: PathBuf,
    /// By component.
    pub(super) artifacts: BTreeMap<String, Artifacts>,
}

/// A component as one shard has it.
#[derive(Debug, Default)]
pub(super) struct Artifacts {
    pub(super) generic: Option<PathBuf>,
    pub(super) targets: BTreeMap<TargetId, PathBuf>,
}

/// All shards, by name, and the directories in them that are no split artifacts.
pub(super) struct Shards {
    /// What splits that were interrupted left behind.
    pub(super) leftovers: Vec<PathBuf>,
    pub(super) shards: Vec<Shard>,
    /// Each with whether something of it may be missed: it is like an artifact, or in place of a shard.
    pub(super) others: Vec<(PathBuf, bool)>,
}

impl Shards {
    /// Reads the names of the artifacts in the shards in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let mut shards = Vec::new();
        let mut others = Vec::new();
        let mut leftovers = leftover::directories_in(directory)?;
        for (name, path) in directories(directory)? {
            leftovers.extend(leftover::directories_in(&path)?);
            let mut artifacts: BTreeMap<String, Artifacts> = BTreeMap::new();
            for (artifact, path) in directories(&path)? {
                let parsed = names::parse(&artifact)
                    .filter(|_| path.join(manifest_txt::FILE_NAME).is_file());
                let Some((component, kind)) = parsed else {
                    let is_artifact = path.join(manifest_txt::FILE_NAME).is_file();
                    others.push((path, is_artifact));
                    continue;
                };
                let component = artifacts.entry(component.to_owned()).or_default();
                match kind {
                    Kind::Generic => component.generic = Some(path),
                    Kind::Target(target) => {
                        component.targets.insert(target, path);
                    }
                }
            }
            if artifacts.is_empty() {
                others.push((path, true));
            } else {
                shards.push(Shard {
                    name,
                    path,
                    artifacts,
                });
            }
        }
        if shards.is_empty() {
            return Err(Error::refused(
                directory,
                "it has no shards; expected a directory for each, with the output of `kpack split` \
                 in it (blas_lib_generic, blas_lib_gfx1100, …)",
            ));
        }
        Ok(Self {
            leftovers,
            shards,
            others,
        })
    }

    /// The directories of all shards and their artifacts.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        let artifacts = self
            .shards
            .iter()
            .flat_map(|shard| shard.artifacts.values());
        let artifacts = artifacts.flat_map(|a| a.generic.iter().chain(a.targets.values()));
        let shards = self.shards.iter().map(|shard| &shard.path);
        shards.chain(artifacts).map(PathBuf::as_path)
    }

    /// The names of all shards.
    pub(super) fn names(&self) -> Vec<&str> {
        self.shards
            .iter()
            .map(|shard| shard.name.as_str())
            .collect()
    }

    /// The components that any shard has.
    pub(super) fn components(&self) -> BTreeSet<&str> {
        let artifacts = self.shards.iter().flat_map(|shard| shard.artifacts.keys());
        artifacts.map(String::as_str).collect()
    }

    /// The shards that have something of `component`.
    pub(super) fn of<'a>(
        &'a self,
        component: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Artifacts)> {
        self.shards
            .iter()
            .filter_map(move |shard| Some((shard.name.as_str(), shard.artifacts.get(component)?)))
    }

    /// Puts the shard `primary` in front.
    pub(super) fn put_first(&mut self, primary: &str) -> bool {
        let Some(index) = self.shards.iter().position(|shard| shard.name == primary) else {
            return false;
        };
        self.shards[..=index].rotate_right(1);
        true
    }
}

/// The directories in `directory`, by name; hidden ones are somebody's work in progress.
pub(super) fn directories(directory: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
    let failed = |error| Error::io(directory, "list", error);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
            continue;
        };
        if path.is_dir() {
            found.insert(name.to_owned(), path);
        }
    }
    Ok(found)
}
