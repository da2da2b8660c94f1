//! Finds the shards and their artifacts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use super::Options;
use crate::names::Role;
use crate::tree::{Siblings, Tree, role_of};
use kpack_core::publish::is_leftover;
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_split::leftover::{directories, leftovers};
use kpack_tree::{Entry, Parsed};

/// A shard: the split artifacts that one machine built.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// By component.
    pub(super) artifacts: BTreeMap<String, ComponentArtifacts>,
}

/// A component as one shard has it.
#[derive(Debug, Default)]
pub(super) struct ComponentArtifacts {
    pub(super) generic: Option<PathBuf>,
    pub(super) device: Vec<DeviceArtifact>,
}

/// An artifact with device code.
#[derive(Debug)]
pub(super) enum DeviceArtifact {
    /// That of a target.
    Target(TargetId, PathBuf),
    /// That of a group of targets.
    Group(Box<Tree>),
}

impl ComponentArtifacts {
    /// Adds an artifact. A target has one at most.
    fn add(&mut self, artifact: DeviceArtifact) -> Result<(), Error> {
        if let DeviceArtifact::Target(target, path) = &artifact {
            let same = self
                .device
                .iter()
                .find(|known| matches!(known, DeviceArtifact::Target(known, _) if known == target));
            if let Some(known) = same {
                let known = known.path().display();
                let reason = format!("is for {target}, as {known} is; remove one of them");
                return Err(Error::rejected(ids::CONFLICTING_FILES, path, reason));
            }
        }
        self.device.push(artifact);
        Ok(())
    }

    /// The artifact directories.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let device = self.device.iter().map(DeviceArtifact::path);
        self.generic.as_deref().into_iter().chain(device)
    }
}

impl DeviceArtifact {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Target(_, path) => path,
            Self::Group(tree) => &tree.root,
        }
    }
}

/// All shards, by name, and the directories in them that are not split artifacts.
pub(super) struct Shards {
    /// Leftovers of interrupted splits.
    pub(super) leftovers: Vec<PathBuf>,
    pub(super) shards: Vec<Shard>,
    /// Each with whether somebody may miss it: it looks like an artifact or a shard.
    pub(super) others: Vec<(PathBuf, bool)>,
}

impl Shards {
    /// Reads the names of the artifacts in the shards. The primary shard is the first.
    pub(super) fn read(options: &Options) -> Result<Self, Error> {
        let Options { shards_dir: directory, configuration, .. } = options;
        let mut shards: Vec<Shard> = Vec::new();
        let mut others = Vec::new();
        let all = directories(directory)?;
        let mut leftovers: Vec<PathBuf> = leftovers(&all).cloned().collect();
        for (name, path) in by_name(&all) {
            let found = Siblings::read(path)?;
            leftovers.extend(found.leftovers);
            others.extend(found.others.into_iter().map(|path| (path, false)));
            let mut artifacts: BTreeMap<String, ComponentArtifacts> = BTreeMap::new();
            for (path, component, role) in found.artifacts {
                let own = match &role {
                    Role::Generic => None,
                    Role::Target(target) => {
                        Some(DeviceArtifact::Target(target.clone(), path.clone()))
                    }
                    Role::Group => match Tree::read(name, &path, &role, Parsed::default())? {
                        tree if is_of_targets(&tree) => Some(DeviceArtifact::Group(Box::new(tree))),
                        _ => {
                            others.push((path, true));
                            continue;
                        }
                    },
                    Role::Unsplit => {
                        others.push((path, true));
                        continue;
                    }
                };
                let component = artifacts.entry(component).or_default();
                if let Some(own) = own {
                    component.add(own)?;
                }
                if role == Role::Generic {
                    component.generic = Some(path);
                }
            }
            if artifacts.is_empty() {
                others.push((path.clone(), true));
            } else {
                shards.push(Shard { name: name.to_owned(), path: path.clone(), artifacts });
            }
        }
        if shards.is_empty() {
            return Err(Error::rejected(
                ids::NO_SHARDS,
                directory,
                "no shards; expected a directory for each, with the output of `kpack artifact split` \
                 in it (blas_lib_generic, blas_lib_gfx1100, …)",
            ));
        }
        let primary = &configuration.primary_shard;
        let Some(index) = shards.iter().position(|shard| shard.name == *primary) else {
            let text = format!(
                "there is no shard `{primary}` in {}, only {}",
                directory.display(),
                list(shards.iter().map(|shard| &shard.name))
            );
            return Err(configuration.refuse(&["primary_shard"], text));
        };
        shards[..=index].rotate_right(1);
        Ok(Self { leftovers, shards, others })
    }

    /// The directories of all shards and their artifacts.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        let artifacts = self.shards.iter().flat_map(|shard| shard.artifacts.values());
        let artifacts = artifacts.flat_map(ComponentArtifacts::paths);
        let shards = self.shards.iter().map(|shard| shard.path.as_path());
        shards.chain(artifacts)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.shards.iter().map(|shard| shard.name.as_str())
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
    ) -> impl Iterator<Item = (&'a str, &'a ComponentArtifacts)> {
        self.shards
            .iter()
            .filter_map(move |shard| Some((shard.name.as_str(), shard.artifacts.get(component)?)))
    }
}

/// Whether an artifact that is named like a group's is one. An unsplit one may be (`blas_lib_gfx110X`).
fn is_of_targets(tree: &Tree) -> bool {
    let mut files = tree.entries.iter();
    let is_of_one = |item: &Entry| item.class.target().is_some();
    let may_be = |item: &Entry| is_of_one(item) || item.is_directory() || item.is_manifest();
    tree.entries.iter().any(is_of_one) && (files.all(may_be) || role_of(&tree.root) == Role::Group)
}

/// The directories among these that are not kpack's work in progress, by name.
pub(super) fn by_name(directories: &[PathBuf]) -> impl Iterator<Item = (&str, &PathBuf)> {
    let named = directories.iter();
    let named = named.filter_map(|path| Some((path.file_name()?.to_str()?, path)));
    named.filter(|(name, _)| !is_leftover(name.as_ref()))
}
