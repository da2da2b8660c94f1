//! Where a split binary's archives are: its marker's search paths, followed as the runtime
//! follows them, and the manifests beside the archives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::{self, SearchPath};
use serde::Serialize;

use super::Overlay;
use crate::Error;

/// The archives that a split binary's marker leads to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Kpacks {
    /// By target, then in the order of the search paths.
    pub files: Vec<Kpack>,
    /// The manifests beside them that list archives of this binary's module.
    #[serde(serialize_with = "crate::lossy::list")]
    pub manifests: Vec<PathBuf>,
}

/// An archive that a split binary's marker leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kpack {
    /// Target ID.
    pub target: String,
    /// Where it is, or should be.
    #[serde(serialize_with = "crate::lossy::path")]
    pub path: PathBuf,
    /// Size in bytes; `None` where a manifest lists it and it is not there.
    pub size: Option<u64>,
    /// Whether the manifest lists it; `None` where there is no manifest.
    pub listed: Option<bool>,
}

impl Kpacks {
    /// The targets that a manifest promises or whose archives are there, each once.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.files
            .iter()
            .map(|kpack| kpack.target.as_str())
            .filter(move |target| {
                let new = last != Some(*target);
                last = Some(*target);
                new
            })
    }
}

/// Finds the archives of the split binary at `binary`. Symbolic links to the binary are followed
/// first, as its search paths are relative to where it is.
///
/// A marker in the early plain-text form names directories, not files: nothing is found by it.
///
/// # Errors
/// [`Error::Io`] where a directory is there and cannot be read.
pub fn find_kpacks(binary: &Path, marker: &Marker) -> Result<Kpacks, Error> {
    find_kpacks_in(&Overlay::default(), binary, marker)
}

/// As [`find_kpacks`], with directories that are laid over each other.
pub(crate) fn find_kpacks_in(
    overlay: &Overlay,
    binary: &Path,
    marker: &Marker,
) -> Result<Kpacks, Error> {
    let real = fs::canonicalize(binary).map_err(|e| Error::io(binary, "find", e))?;
    let directory = real.parent().unwrap_or(Path::new("/"));
    let mut found: BTreeMap<TargetId, Vec<Kpack>> = BTreeMap::new();
    let mut manifests = Vec::new();
    for search_path in &marker.kpack_search_paths {
        let Some(pattern) = Pattern::new(overlay, directory, search_path) else {
            continue;
        };
        let listed = pattern.manifest_targets()?;
        for (target, path, size) in pattern.archives()? {
            let name = target.to_string();
            let listed = listed.as_ref().map(|known| known.listed.contains(&target));
            found.entry(target).or_default().push(Kpack {
                target: name,
                path,
                size: Some(size),
                listed,
            });
        }
        let Some(known) = listed else {
            continue;
        };
        for target in known.promised {
            let path = pattern.path_of(pattern.first(), &target);
            let places = found.entry(target.clone()).or_default();
            let here = |kpack: &Kpack| {
                pattern
                    .directories
                    .iter()
                    .any(|d| kpack.path.starts_with(d))
            };
            if !places.iter().any(here) {
                let target = target.to_string();
                places.push(Kpack {
                    target,
                    path,
                    size: None,
                    listed: Some(true),
                });
            }
        }
        for manifest in known.manifests {
            if !manifests.contains(&manifest) {
                manifests.push(manifest);
            }
        }
    }
    Ok(Kpacks {
        files: found.into_values().flatten().collect(),
        manifests,
    })
}

/// The path without `.` and `..`, of a directory that is not there.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            component => plain.push(component),
        }
    }
    plain
}

/// A search path with the target's place in it.
struct Pattern<'a> {
    /// Up to the first component with the target in it; several where directories are laid over each
    /// other.
    directories: Vec<PathBuf>,
    path: names::Pattern<'a>,
}

impl<'a> Pattern<'a> {
    fn new(overlay: &Overlay, directory: &Path, search_path: &'a str) -> Option<Self> {
        let path = SearchPath::new(search_path).split()?;
        let directory = directory.join(path.directory);
        // Without the `..` of the search path.
        let directory = fs::canonicalize(&directory).unwrap_or_else(|_| without_dots(&directory));
        Some(Self {
            directories: overlay.places(&directory),
            path,
        })
    }

    fn first(&self) -> &Path {
        self.directories
            .first()
            .map_or(Path::new(""), PathBuf::as_path)
    }

    fn path_of(&self, directory: &Path, target: &TargetId) -> PathBuf {
        directory.join(self.path.tail.expand(&target.to_string()))
    }

    /// Every archive that is there.
    fn archives(&self) -> Result<Vec<(TargetId, PathBuf, u64)>, Error> {
        let mut found = Vec::new();
        for directory in &self.directories {
            self.archives_in(directory, &mut found)?;
        }
        Ok(found)
    }

    fn archives_in(
        &self,
        directory: &Path,
        found: &mut Vec<(TargetId, PathBuf, u64)>,
    ) -> Result<(), Error> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::io(directory, "list", e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| Error::io(directory, "list", e))?;
            let Some(target) = self.path.target_of(&entry.file_name()) else {
                continue;
            };
            let path = self.path_of(directory, &target);
            if let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
                && super::is_for(&path, &target)
            {
                found.push((target, path, metadata.len()));
            }
        }
        Ok(())
    }

    /// What the manifests of the module say: `<module>_<component>.kpm` beside
    /// `<module>_<component>_<target>.kpack`, and its parts. Where there are parts, they say what is
    /// here, as the whole one also lists what is in packages that are not. A manifest that cannot be
    /// read lists nothing here; verifying it says why.
    fn manifest_targets(&self) -> Result<Option<ManifestTargets>, Error> {
        let Some(group) = self.path.group() else {
            return Ok(None);
        };
        let mut known = ManifestTargets::default();
        let mut wholes = Vec::new();
        for directory in self
            .directories
            .iter()
            .filter(|directory| directory.is_dir())
        {
            for (path, part) in super::manifest_parts(directory, &group)? {
                known.promised.extend(targets(&part));
                known.manifests.push(path);
            }
            let whole = directory.join(group.manifest());
            if !whole.is_file() {
                continue;
            }
            match super::read_manifest(&whole) {
                Ok(manifest) => known.listed.extend(targets(&manifest)),
                Err(Error::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
            wholes.push(whole);
        }
        if known.manifests.is_empty() {
            known.promised.clone_from(&known.listed);
        }
        known.manifests.splice(0..0, wholes);
        known.listed.extend(known.promised.iter().cloned());
        Ok((!known.manifests.is_empty()).then_some(known))
    }
}

/// What a module's manifests say.
#[derive(Default)]
struct ManifestTargets {
    manifests: Vec<PathBuf>,
    /// Targets that have a kpack somewhere.
    listed: BTreeSet<TargetId>,
    /// Targets whose kpack has to be here.
    promised: BTreeSet<TargetId>,
}

fn targets(manifest: &kpack_format::manifest::Manifest) -> impl Iterator<Item = TargetId> {
    manifest.kpack_files.keys().filter_map(|t| t.parse().ok())
}
