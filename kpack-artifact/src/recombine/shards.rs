//! Finds the shards and their artifacts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use crate::classify::Class;
use crate::tree::{Role, Siblings, Tree, is_of_group};
use kpack_core::Error;
use kpack_split::leftover::{directories, leftovers};

/// A shard: the split artifacts that one machine built.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    path: PathBuf,
    /// By component.
    pub(super) artifacts: BTreeMap<String, ComponentArtifacts>,
}

/// A component as one shard has it.
#[derive(Debug, Default)]
pub(super) struct ComponentArtifacts {
    pub(super) generic: Option<PathBuf>,
    pub(super) targets: BTreeMap<TargetId, ForTarget>,
}

impl ComponentArtifacts {
    /// Adds what there is for a target. Two groups may have it, but not two artifacts.
    fn add(&mut self, target: TargetId, input: ForTarget) -> Result<(), Error> {
        if let (Some(ForTarget::Directory(known)), ForTarget::Directory(path)) =
            (self.targets.get(&target), &input)
        {
            let known = known.display();
            let reason = format!("it is for {target}, as {known} is; remove one of them");
            return Err(Error::refused(path, reason));
        }
        self.targets.insert(target, input);
        Ok(())
    }

    /// The artifact directories, that of a group for each of its targets.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let targets = self.targets.values().map(ForTarget::path);
        self.generic.as_deref().into_iter().chain(targets)
    }
}

/// What a shard has for one target.
#[derive(Debug)]
pub(super) enum ForTarget {
    /// An artifact directory.
    Directory(PathBuf),
    /// What a group's artifact has for it.
    Part(Box<Tree>),
}

impl ForTarget {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Directory(path) => path,
            Self::Part(tree) => &tree.root,
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
    /// Reads the names of the artifacts in the shards in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let mut shards = Vec::new();
        let mut others = Vec::new();
        let all = directories(directory)?;
        let mut leftovers: Vec<PathBuf> = leftovers(&all).cloned().collect();
        for (name, path) in by_name(&all) {
            let found = Siblings::read(path)?;
            leftovers.extend(found.leftovers);
            others.extend(found.others.into_iter().map(|path| (path, false)));
            let mut artifacts: BTreeMap<String, ComponentArtifacts> = BTreeMap::new();
            for (path, component, role) in found.artifacts {
                let file_name = path.file_name().unwrap_or_default();
                if file_name.as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let targets = match &role {
                    Role::Generic => Some(BTreeMap::new()),
                    Role::Target(target) => {
                        let directory = ForTarget::Directory(path.clone());
                        Some(BTreeMap::from([(target.clone(), directory)]))
                    }
                    Role::Group => parts(Tree::read(name, &path)?),
                    Role::Unsplit => None,
                };
                let Some(targets) = targets else {
                    others.push((path, true));
                    continue;
                };
                let own = artifacts.entry(component).or_default();
                for (target, input) in targets {
                    own.add(target, input)?;
                }
                if role == Role::Generic {
                    own.generic = Some(path);
                }
            }
            if artifacts.is_empty() {
                others.push((path.clone(), true));
            } else {
                shards.push(Shard {
                    name: name.to_owned(),
                    path: path.clone(),
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

    /// Puts the shard `primary` in front.
    pub(super) fn put_first(&mut self, primary: &str) -> bool {
        let Some(index) = self.shards.iter().position(|shard| shard.name == primary) else {
            return false;
        };
        self.shards[..=index].rotate_right(1);
        true
    }
}

/// What the artifact of a group has for each target; `None` for an artifact that is only named like a
/// group's, such as an unsplit one (`blas_lib_gfx110X`).
fn parts(tree: Tree) -> Option<BTreeMap<TargetId, ForTarget>> {
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
    // Entries of no target are reported as misplaced, in whichever tree they are.
    let first = parts.values_mut().next()?;
    for path in others {
        first.add_from(&tree, path);
    }
    (first.observations, first.rejected) = (tree.observations, tree.rejected);
    let parts = parts.into_iter();
    let parts = parts.map(|(target, tree)| (target, ForTarget::Part(Box::new(tree))));
    Some(parts.collect())
}

/// The directories among these that are not hidden, by name. Hidden ones are work in progress.
pub(super) fn by_name(directories: &[PathBuf]) -> impl Iterator<Item = (&str, &PathBuf)> {
    let named = directories.iter();
    let named = named.filter_map(|path| Some((path.file_name()?.to_str()?, path)));
    named.filter(|(name, _)| !name.starts_with('.'))
}
