//! The shards: what each machine uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use crate::Error;
use crate::artifact::classify::Class;
use crate::artifact::tree::{Role, Siblings, Tree, is_of_group};
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
    pub(super) targets: BTreeMap<TargetId, Input>,
}

impl Artifacts {
    /// The artifact directories, that of a group for each of its targets.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let targets = self.targets.values().map(Input::path);
        self.generic.as_deref().into_iter().chain(targets)
    }
}

/// What a shard has for one target.
#[derive(Debug)]
pub(super) enum Input {
    /// An artifact directory.
    Directory(PathBuf),
    /// What a group's artifact has for it.
    Part(Box<Tree>),
}

impl Input {
    /// The artifact directory.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Directory(path) => path,
            Self::Part(tree) => &tree.root,
        }
    }
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
            let found = Siblings::read(&path)?;
            leftovers.extend(found.leftovers);
            others.extend(found.others.into_iter().map(|path| (path, false)));
            let mut artifacts: BTreeMap<String, Artifacts> = BTreeMap::new();
            for (path, component, role) in found.artifacts {
                let file_name = path.file_name().unwrap_or_default().to_string_lossy();
                if file_name.starts_with('.') {
                    continue;
                }
                let parts = match role {
                    Role::Group => parts(Tree::read(&name, &path)?),
                    _ => None,
                };
                if role == Role::Unsplit || role == Role::Group && parts.is_none() {
                    others.push((path, true));
                    continue;
                }
                let component = artifacts.entry(component).or_default();
                match role {
                    Role::Generic => component.generic = Some(path),
                    Role::Target(target) => {
                        component.targets.insert(target, Input::Directory(path));
                    }
                    Role::Group | Role::Unsplit => {
                        let parts = parts.into_iter().flatten();
                        let parts =
                            parts.map(|(target, tree)| (target, Input::Part(Box::new(tree))));
                        component.targets.extend(parts);
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
        let artifacts = artifacts.flat_map(Artifacts::paths);
        let shards = self.shards.iter().map(|shard| shard.path.as_path());
        shards.chain(artifacts)
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

/// What the artifact of a group has for each target; `None` for one that is no group's, but has its
/// name, such as one that is not split (`blas_lib_gfx110X`).
fn parts(tree: Tree) -> Option<BTreeMap<TargetId, Tree>> {
    let mut parts: BTreeMap<TargetId, Tree> = BTreeMap::new();
    let mut others = Vec::new();
    for (path, item) in &tree.entries {
        let target = match &item.class {
            Class::Target { target, .. } => target,
            Class::Unknown {
                target: Some(target),
                ..
            } => target,
            _ if item.is_directory() || item.is_manifest() => continue,
            _ => {
                others.push(path);
                continue;
            }
        };
        let part = parts.entry(target.clone());
        let part = part.or_insert_with(|| Tree::empty(&tree.shard, &tree.root));
        part.add_from(&tree, path);
    }
    if !others.is_empty() && !is_of_group(&tree.root) {
        return None;
    }
    // What belongs to no target is found to be misplaced, wherever it is.
    let first = parts.values_mut().next()?;
    for path in others {
        first.add_from(&tree, path);
    }
    (first.observations, first.rejected) = (tree.observations, tree.rejected);
    Some(parts)
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
