//! The artifact directories to verify: which ones belong together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_split::input::Overlay;
use kpack_split::verify::Surroundings;

use crate::directories::{Siblings, find_artifacts, is_artifact};
use crate::manifest_txt;
use crate::names::Role;

/// The artifact directories to verify, and the ones next to them that belong to the same
/// components.
#[derive(Default)]
pub(super) struct Artifacts {
    /// By path, with symbolic links resolved.
    found: BTreeMap<PathBuf, FoundArtifact>,
    overlay: Overlay,
    /// Every set of artifacts of one component.
    pub(super) sets: Vec<ArtifactSet>,
    /// The artifacts in each parent directory: path, component and role.
    siblings: BTreeMap<PathBuf, Vec<(PathBuf, String, Role)>>,
}

#[derive(Default)]
struct FoundArtifact {
    /// The path as found, for messages; `None` if only a file in it is verified.
    asked_for: Option<PathBuf>,
    /// Its install prefixes; none if the list is damaged.
    prefixes: Vec<String>,
}

/// The artifacts of one component, which are installed over each other; or one unsplit artifact.
pub(super) struct ArtifactSet {
    pub(super) component: String,
    /// The resolved paths, the generic artifact first.
    pub(super) roots: Vec<(PathBuf, Role)>,
}

impl ArtifactSet {
    pub(super) fn is_split(&self) -> bool {
        self.roots.iter().all(|(_, role)| *role != Role::Unsplit)
    }
}

impl Artifacts {
    /// Finds the artifact directories at and below `paths`, and those that contain `paths`.
    pub(super) fn find(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut artifacts = Self::default();
        for path in paths {
            let real = resolved(path, "read")?;
            if let Some(around) = real.ancestors().skip(1).find(|above| is_artifact(above)) {
                artifacts.add(around.to_owned())?;
            }
            // Verification reports what cannot be listed.
            let (below, _) = find_artifacts(path, |_| Ok(()))?;
            for path in below {
                let found = artifacts.add(resolved(&path, "find")?)?;
                found.asked_for.get_or_insert(path);
            }
        }
        Ok(artifacts)
    }

    /// Adds the artifact directory `real`, with those of its component.
    fn add(&mut self, real: PathBuf) -> Result<&mut FoundArtifact, Error> {
        let parent = real.parent().unwrap_or(Path::new("/")).to_owned();
        if !self.siblings.contains_key(&parent) {
            let siblings = Siblings::read(&parent)?;
            let roles = siblings.roles().map(|(path, name, role)| (path.to_owned(), name, role));
            self.siblings.insert(parent.clone(), roles.collect());
        }
        let mut known = self.sets.iter().flat_map(|set| &set.roots);
        if !known.any(|(root, _)| *root == real) {
            let siblings = &self.siblings[&parent];
            let own = siblings.iter().find(|(path, ..)| *path == real);
            let set = match own {
                Some((_, component, role)) if *role != Role::Unsplit => {
                    ArtifactSet { component: component.clone(), roots: of(component, siblings) }
                }
                // It may be hidden.
                own => ArtifactSet {
                    component: own.map_or_else(String::new, |(_, name, _)| name.clone()),
                    roots: vec![(real.clone(), Role::Unsplit)],
                },
            };
            if set.is_split() {
                // All prefixes of all artifacts are installed into one.
                let mut prefixes = Vec::new();
                for (root, _) in &set.roots {
                    prefixes.extend(listed(root).into_iter().map(|prefix| root.join(prefix)));
                }
                self.overlay.add(prefixes);
                self.overlay.add(set.roots.iter().map(|(root, _)| root.clone()).collect());
            }
            self.sets.push(set);
        }
        let prefixes = listed(&real);
        Ok(self.found.entry(real).or_insert(FoundArtifact { prefixes, asked_for: None }))
    }

    pub(super) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    pub(super) fn split_sets(&self) -> impl Iterator<Item = &ArtifactSet> + Clone {
        self.sets.iter().filter(|set| set.is_split())
    }

    /// The path that the caller named an artifact directory by, or found it by.
    pub(super) fn asked_for(&self, root: &Path) -> Option<&Path> {
        self.found.get(root)?.asked_for.as_deref()
    }
}

impl Surroundings for Artifacts {
    /// Whether `path` is in an artifact directory, or contains one.
    fn covers(&self, path: &Path) -> bool {
        if self.found.is_empty() {
            return false;
        }
        let canonical = path.canonicalize();
        let real = canonical.as_deref().unwrap_or(path);
        let mut artifacts = self.found.keys();
        artifacts.any(|artifact| real.starts_with(artifact) || artifact.starts_with(real))
    }

    /// Every path that may stand for `path` in an overlay, starting with itself.
    fn places(&self, path: &Path) -> Vec<PathBuf> {
        let real = path.canonicalize();
        let mut places = self.overlay.places(real.as_deref().unwrap_or(path));
        if let Some(own) = places.first_mut() {
            *own = path.to_owned();
        }
        places
    }

    /// The artifact directory and the install prefix around a file, if any.
    fn around_file(&self, file: &Path) -> Option<(PathBuf, PathBuf)> {
        let real = file.canonicalize().ok()?;
        real.ancestors().find_map(|artifact| {
            let within = real.strip_prefix(artifact).ok()?;
            let mut prefixes = self.found.get(artifact)?.prefixes.iter();
            let prefix = prefixes.find(|prefix| within.starts_with(prefix))?;
            Some((artifact.to_owned(), artifact.join(prefix)))
        })
    }
}

/// The artifacts of a component, the generic one first.
fn of(component: &str, artifacts: &[(PathBuf, String, Role)]) -> Vec<(PathBuf, Role)> {
    let own = artifacts
        .iter()
        .filter(|(_, name, role)| name == component && *role != Role::Unsplit)
        .map(|(path, _, role)| (path.clone(), role.clone()));
    let mut own = Vec::from_iter(own);
    own.sort_by_key(|(_, role)| *role != Role::Generic);
    own
}

/// The prefixes that an artifact lists; none if the list is damaged or cannot be read. Reading an artifact that is to be
/// verified reports that; what is verified in one without a list is checked like any other prefix.
fn listed(artifact: &Path) -> Vec<String> {
    manifest_txt::read(artifact).unwrap_or_default()
}

fn resolved(path: &Path, action: &'static str) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|e| Error::io(path, action, e))
}
