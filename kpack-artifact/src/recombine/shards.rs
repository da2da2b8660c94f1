//! Finds the shards and their artifacts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use super::{Finding, Options, Severity};
use crate::directories::{Siblings, role_of};
use crate::names::Role;
use crate::tree::ArtifactTree;
use kpack_core::publish::{is_leftover, resolve};
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_split::leftover::{self, directories};
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
    /// That of a group of targets, and what it contains; `None` where it could not be read. Its component then reads it again,
    /// because the error must fail no other.
    Group(PathBuf, Option<Box<ArtifactTree>>),
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
            Self::Target(_, path) | Self::Group(path, _) => path,
        }
    }
}

/// All shards, by name, and the directories in them that are not split artifacts.
pub(super) struct Shards {
    /// Leftovers of interrupted splits.
    pub(super) leftovers: Vec<PathBuf>,
    pub(super) shards: Vec<Shard>,
    /// What is said of directories that cannot be read.
    skipped: Vec<Finding>,
    /// Each with whether somebody may miss it: it looks like an artifact or a shard.
    pub(super) others: Vec<(PathBuf, bool)>,
}

impl Shards {
    /// Reads the names of the artifacts in the shards. The primary shard is the first.
    ///
    /// # Errors
    /// Without shards, or without one that the configuration lists; if they and the output contain each other.
    pub(super) fn read(options: &Options) -> Result<Self, Error> {
        let Options { shards_dir: directory, configuration, .. } = options;
        let mut shards: Vec<Shard> = Vec::new();
        let mut others = Vec::new();
        let (mut leftovers, mut skipped) = (Vec::new(), Vec::new());
        for path in directories(directory)? {
            let name = path.file_name().unwrap_or_default();
            if is_leftover(name) {
                leftovers.push(path);
                continue;
            }
            let Some(name) = name.to_str() else { continue };
            let found = Siblings::read(&path)?;
            skipped.extend(found.skipped());
            leftovers.extend_from_slice(&found.leftovers);
            others.extend(found.others.iter().map(|path| (path.clone(), false)));
            let mut artifacts: BTreeMap<String, ComponentArtifacts> = BTreeMap::new();
            for (path, component, role) in found.roles() {
                let path = path.to_owned();
                let own = match &role {
                    Role::Generic => None,
                    Role::Target(target) => {
                        Some(DeviceArtifact::Target(target.clone(), path.clone()))
                    }
                    Role::Group => {
                        match ArtifactTree::read(name, &path, &role, Parsed::default()) {
                            Ok(tree) if tree.rejected.is_empty() && !is_of_targets(&tree) => {
                                others.push((path, true));
                                continue;
                            }
                            read => {
                                Some(DeviceArtifact::Group(path.clone(), read.ok().map(Box::new)))
                            }
                        }
                    }
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
        let found = Self { leftovers, shards, skipped, others };
        found.check_list(options)?;
        found.refuse_overlap(options)?;
        Ok(found)
    }

    /// Checks that the shards are those that the configuration lists.
    fn check_list(&self, options: &Options) -> Result<(), Error> {
        let listed: BTreeSet<&str> =
            options.configuration.shards.iter().map(String::as_str).collect();
        let there: BTreeSet<&str> = self.names().collect();
        if listed.is_empty() {
            return Ok(());
        }
        let missing: Vec<&&str> = listed.difference(&there).collect();
        let others: Vec<&&str> = there.difference(&listed).collect();
        let text = match (missing.is_empty(), others.is_empty()) {
            (true, true) => return Ok(()),
            (false, _) => format!(
                "no artifacts of {}, which the configuration lists (found {}); fetch or build what is missing",
                list(missing),
                list(&there)
            ),
            (true, false) => format!(
                "the configuration does not list {} (expected {}); list it, or remove it",
                list(others),
                list(&listed)
            ),
        };
        Err(Error::rejected(ids::MISSING_SHARD, &options.shards_dir, text))
    }

    /// Refuses an output directory that holds shards or artifacts of them, or lies in one. Symbolic links
    /// are followed.
    fn refuse_overlap(&self, options: &Options) -> Result<(), Error> {
        let output = resolve(&options.output_dir)?;
        for input in self.directories().chain([&*options.shards_dir]) {
            let real = input.canonicalize().map_err(|e| Error::io(input, "find", e))?;
            if output.starts_with(&real) || real.starts_with(&output) {
                return Err(Error::usage(format!(
                    "the shards in {} and the output in {} must not contain each other",
                    input.display(),
                    options.output_dir.display()
                )));
            }
        }
        Ok(())
    }

    /// The components to recombine.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that no shard has.
    pub(super) fn chosen(&self, options: &Options) -> Result<Vec<&str>, Error> {
        let known = self.components();
        if options.components.is_empty() {
            return Ok(known.into_iter().collect());
        }
        let mut chosen = BTreeSet::new();
        for component in &options.components {
            let Some(known) = known.get(component.as_str()) else {
                return Err(Error::usage(format!(
                    "no shard has the component `{component}`; there are {}",
                    list(&known)
                )));
            };
            chosen.insert(*known);
        }
        Ok(chosen.into_iter().collect())
    }

    /// Reports what the shards' directory has besides shards, and configured components that no shard has.
    pub(super) fn unused(&self, options: &Options) -> Vec<Finding> {
        let mut findings = self.skipped.clone();
        for path in &self.leftovers {
            let text = format!("skipped: {}", leftover::TEXT);
            findings.push(Finding::new(Severity::Warning, ids::LEFTOVER, path, text));
        }
        for (path, missed) in &self.others {
            let is_shard = path.parent() == Some(&options.shards_dir);
            let text = if is_shard {
                "skipped: a shard without split artifacts, which have names such as"
            } else {
                "skipped: not a split artifact, which has a name such as"
            };
            let text =
                format!("{text} blas_lib_generic or blas_lib_gfx1100 and an artifact_manifest.txt");
            let severity = if *missed { Severity::Warning } else { Severity::Note };
            findings.push(Finding::new(severity, ids::NOT_AN_ARTIFACT, path, text));
        }
        for component in options.configuration.overrides.keys() {
            if !self.components().contains(component.as_str()) {
                let reason = options.configuration.refuse(
                    &["component_overrides", component],
                    format_args!("no shard has the component `{component}`"),
                );
                let text = reason.to_string();
                findings.push(Finding::new(
                    Severity::Warning,
                    reason.id(),
                    &options.shards_dir,
                    text,
                ));
            }
        }
        findings
    }

    /// The directories of all shards and their artifacts.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        let artifacts = self
            .shards
            .iter()
            .flat_map(|shard| shard.artifacts.values())
            .flat_map(ComponentArtifacts::paths);
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
fn is_of_targets(tree: &ArtifactTree) -> bool {
    let mut files = tree.entries.iter();
    let is_of_one = |item: &Entry| item.class.target().is_some();
    let may_be = |item: &Entry| is_of_one(item) || item.is_directory() || item.is_manifest();
    tree.entries.iter().any(is_of_one) && (files.all(may_be) || role_of(&tree.root) == Role::Group)
}
