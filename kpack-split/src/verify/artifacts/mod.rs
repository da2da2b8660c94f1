//! Artifact directories: which belong together, and whether each has what belongs into it and
//! nothing else.

mod content;
mod for_all;
mod installed;
mod set;

use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use walkdir::WalkDir;

use super::{Options, Report};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::names::{self, Kind};
use crate::artifact::parts::{is_part, manifest_names};
use crate::inspect::Overlay;
use crate::leftover::is_leftover;

/// The artifact directories among what is verified, and those beside them that they belong with.
#[derive(Default)]
pub(super) struct Artifacts {
    /// In order of path.
    found: Vec<Artifact>,
    overlay: Overlay,
    /// Every set of artifacts of one component.
    sets: Vec<Set>,
}

/// An artifact directory.
#[derive(Clone)]
struct Artifact {
    /// As it was found, for messages.
    path: PathBuf,
    /// Whether it is to be verified itself, and not only something in it.
    asked_for: bool,
    /// Without symbolic links.
    real: PathBuf,
    role: Role,
    prefixes: Result<Vec<String>, String>,
}

/// What an artifact directory has to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// Host files.
    Generic,
    /// Device code of one target.
    Target(TargetId),
    /// Device code of several targets.
    Group,
    /// Everything.
    Unsplit,
}

/// The artifacts of one component, which belong over each other.
pub(super) struct Set {
    pub(super) component: String,
    /// The real paths, the generic one first.
    pub(super) roots: Vec<PathBuf>,
    has_generic: bool,
}

impl Artifacts {
    /// Finds the artifact directories at and below `paths`, and those that these are in.
    pub(super) fn find(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut artifacts = Self::default();
        for path in paths {
            artifacts.around(path)?;
            let mut walk = WalkDir::new(path)
                .follow_root_links(true)
                .max_depth(DEPTH)
                .sort_by_file_name()
                .into_iter();
            while let Some(entry) = walk.next() {
                // What cannot be listed is a fault of its own.
                let Ok(entry) = entry else { continue };
                if entry.depth() > 0 && is_leftover(entry.file_name()) {
                    if entry.file_type().is_dir() {
                        walk.skip_current_dir();
                    }
                    continue;
                }
                if !is_artifact(entry.path()) {
                    continue;
                }
                artifacts.add(entry.path(), true)?;
                walk.skip_current_dir();
            }
        }
        artifacts.found.sort_by(|a, b| a.path.cmp(&b.path));
        artifacts.found.dedup_by(|a, b| {
            b.asked_for |= a.asked_for && a.real == b.real;
            a.real == b.real
        });
        Ok(artifacts)
    }

    /// The artifact directory that `path` is in, which is not itself to be verified.
    fn around(&mut self, path: &Path) -> Result<(), Error> {
        let real = path
            .canonicalize()
            .map_err(|e| Error::io(path, "read", e))?;
        match real.ancestors().skip(1).find(|above| is_artifact(above)) {
            Some(artifact) => self.add(artifact, false),
            None => Ok(()),
        }
    }

    fn add(&mut self, path: &Path, asked_for: bool) -> Result<(), Error> {
        let real = path
            .canonicalize()
            .map_err(|e| Error::io(path, "find", e))?;
        let (component, role) = role_of(&real);
        self.found.push(Artifact {
            path: path.to_owned(),
            asked_for,
            role,
            prefixes: manifest_txt::read(&real).map_err(|e| e.in_one_line()),
            real: real.clone(),
        });
        let known = self.sets.iter().any(|set| set.roots.contains(&real));
        let (Some(component), Some(parent), false) = (component, real.parent(), known) else {
            return Ok(());
        };
        let mut roots = Vec::new();
        let mut has_generic = false;
        for entry in fs::read_dir(parent).map_err(|e| Error::io(parent, "list", e))? {
            let path = entry.map_err(|e| Error::io(parent, "list", e))?.path();
            let name = path.file_name().unwrap_or_default();
            if !is_artifact(&path) || is_leftover(name) {
                continue;
            }
            match role_of(&path) {
                (Some(own), Role::Generic) if own == component => {
                    has_generic = true;
                    roots.insert(0, path);
                }
                (Some(own), _) if own == component => roots.push(path),
                _ => {}
            }
        }
        roots[usize::from(has_generic)..].sort();
        self.overlay.add(roots.clone());
        self.sets.push(Set {
            component,
            roots,
            has_generic,
        });
        Ok(())
    }

    /// Whether the artifact `root` of `own` may be one of a group that has `target`: a group of
    /// databases only, called after the processor, of which no artifact is for `target` alone.
    fn is_group_for(&self, root: &Path, own: &TargetId, target: &TargetId) -> bool {
        let set = self
            .sets
            .iter()
            .find(|set| set.roots.iter().any(|other| other == root));
        let alone = set.is_some_and(|set| {
            let name = format!("{}_{target}", set.component);
            set.roots.iter().any(|root| root.ends_with(&name))
        });
        own.runs_on(target) && !alone
    }

    /// Whether `path` is in an artifact directory, or has some in it.
    pub(super) fn covers(&self, path: &Path) -> bool {
        let real = path.canonicalize();
        let real = real.as_deref().unwrap_or(path);
        let mut artifacts = self.found.iter();
        artifacts
            .any(|artifact| real.starts_with(&artifact.real) || artifact.real.starts_with(real))
    }

    /// How the artifacts lie over each other.
    pub(super) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// The sets of artifacts that belong over each other.
    pub(super) fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// Where `path` could be, itself first.
    pub(super) fn places(&self, path: &Path) -> Vec<PathBuf> {
        let real = path.canonicalize();
        let mut places = self.overlay.places(real.as_deref().unwrap_or(path));
        if let Some(own) = places.first_mut() {
            *own = path.to_owned();
        }
        places
    }

    /// The install prefix that a file is in, if it is in one of an artifact directory.
    pub(super) fn prefix_around(&self, file: &Path) -> Option<PathBuf> {
        let real = file.canonicalize().ok()?;
        self.found.iter().find_map(|artifact| {
            let within = real.strip_prefix(&artifact.real).ok()?;
            let mut prefixes = artifact.prefixes.iter().flatten();
            let prefix = prefixes.find(|prefix| within.starts_with(prefix))?;
            Some(artifact.real.join(prefix))
        })
    }

    /// Verifies what is in each artifact directory, and what the artifacts of a component have in
    /// common.
    pub(super) fn verify(&self, options: &Options, report: &mut Report) -> Result<(), Error> {
        let asked_for = || self.found.iter().filter(|artifact| artifact.asked_for);
        for artifact in asked_for() {
            artifact.verify(self, report)?;
        }
        for set in &self.sets {
            let verified = |root: &PathBuf| asked_for().any(|artifact| artifact.real == *root);
            if set.roots.iter().any(verified) {
                set.verify(report)?;
                set.files_for_all(options, report)?;
            }
        }
        Ok(())
    }
}

/// How deep artifact directories are looked for: a directory of shards has directories of artifacts.
const DEPTH: usize = 3;

fn is_artifact(path: &Path) -> bool {
    path.join(manifest_txt::FILE_NAME).is_file()
}

/// The component and role of an artifact directory, by its name and by those beside it.
fn role_of(path: &Path) -> (Option<String>, Role) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (Some(parent), false) = (path.parent(), name.is_empty()) else {
        return (None, Role::Unsplit);
    };
    if let Some((component, Kind::Generic)) = names::parse(&name) {
        return (Some(component.to_owned()), Role::Generic);
    }
    // A group may be called after one of its targets; its own manifests say so.
    let manifests = manifest_names(path);
    let has_part = |group: &str| manifests.iter().any(|name| is_part(name, group));
    for (at, _) in name.rmatch_indices('_') {
        let (component, suffix) = (&name[..at], &name[at + 1..]);
        let generic = parent.join(format!("{component}_{}", names::GENERIC));
        if has_part(suffix) || names::target(suffix).is_none() && is_artifact(&generic) {
            return (Some(component.to_owned()), Role::Group);
        }
    }
    match names::parse(&name) {
        Some((component, Kind::Target(target))) => {
            (Some(component.to_owned()), Role::Target(target))
        }
        _ => (None, Role::Unsplit),
    }
}
