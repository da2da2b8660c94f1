//! Finds a split binary's archives by its marker's search paths, as the runtime does, and the
//! manifests next to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::{self, SearchPath};

use super::{Archives, Overlay, manifest_parts, or_refused, read_manifest};
use crate::Error;

/// The archives that a split binary's marker refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kpacks {
    /// By target, then in the order of the search paths.
    pub files: Vec<Kpack>,
    /// The manifests next to them that list archives of this binary's module.
    pub manifests: Vec<PathBuf>,
}

/// An archive that a split binary's marker refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kpack {
    /// Target ID.
    pub target: String,
    /// Its path, or where it should be.
    pub path: PathBuf,
    /// Size in bytes; `None` if a manifest lists it but it is missing.
    pub size: Option<u64>,
    /// Whether the manifest lists it; `None` without a manifest.
    pub listed: Option<bool>,
}

impl Kpacks {
    /// The targets that a manifest promises or that have archives, each once.
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

/// Finds the archives of the split binary at `binary`, in any of the directories that `overlay`
/// adds. Resolves symbolic links to the binary first, because search paths are relative to its real
/// location.
///
/// Finds nothing for a marker in the early plain-text form, which names directories instead of
/// files.
///
/// # Errors
/// [`Error::Io`] if a directory exists but cannot be read.
pub(crate) fn find_kpacks(
    archives: &Archives,
    overlay: &Overlay,
    binary: &Path,
    marker: &Marker,
) -> Result<Kpacks, Error> {
    let real = fs::canonicalize(binary).map_err(|e| Error::io(binary, "find", e))?;
    let directory = real.parent().unwrap_or(Path::new("/"));
    let mut found: BTreeMap<TargetId, Vec<Kpack>> = BTreeMap::new();
    let mut manifests = Vec::new();
    for search_path in &marker.kpack_search_paths {
        let Some(pattern) = SearchPattern::new(overlay, directory, search_path) else {
            continue;
        };
        let listed = pattern.manifest_targets()?;
        let kpack = |target: &TargetId, path, size| Kpack {
            target: target.to_string(),
            path,
            size,
            listed: listed.as_ref().map(|known| known.listed.contains(target)),
        };
        for (target, path, size) in pattern.archives(archives)? {
            let kpack = kpack(&target, path, Some(size));
            found.entry(target).or_default().push(kpack);
        }
        for target in listed.iter().flat_map(|known| &known.promised) {
            let places = found.entry(target.clone()).or_default();
            let here = |kpack: &Kpack| {
                let mut directories = pattern.directories.iter();
                directories.any(|directory| kpack.path.starts_with(directory))
            };
            if !places.iter().any(here) {
                let path = pattern.path_of(&pattern.directories[0], target);
                places.push(kpack(target, path, None));
            }
        }
        for manifest in listed.into_iter().flat_map(|known| known.manifests) {
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

/// The path of a missing directory, without `.` and `..`.
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

/// A search path with a placeholder for the target.
struct SearchPattern<'a> {
    /// The path before the first component with the target, then those that overlay it.
    directories: Vec<PathBuf>,
    path: names::Pattern<'a>,
}

impl<'a> SearchPattern<'a> {
    fn new(overlay: &Overlay, directory: &Path, search_path: &'a str) -> Option<Self> {
        let path = SearchPath::new(search_path).split()?;
        let directory = directory.join(path.directory);
        // Resolve the `..` of the search path.
        let directory = fs::canonicalize(&directory).unwrap_or_else(|_| without_dots(&directory));
        Some(Self {
            directories: overlay.places(&directory),
            path,
        })
    }

    fn path_of(&self, directory: &Path, target: &TargetId) -> PathBuf {
        directory.join(self.path.tail.expand(&target.to_string()))
    }

    /// Every existing archive.
    fn archives(&self, archives: &Archives) -> Result<Vec<(TargetId, PathBuf, u64)>, Error> {
        let mut found = Vec::new();
        for directory in &self.directories {
            let entries = match fs::read_dir(directory) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
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
                    && archives.is_for(&path, &target)?
                {
                    found.push((target, path, metadata.len()));
                }
            }
        }
        Ok(found)
    }

    /// Reads the module's manifests: `<module>_<component>.kpm` next to
    /// `<module>_<component>_<target>.kpack`, and its fragments. If there are fragments, they say
    /// what must be here, since the whole manifest also lists packages that are not installed. An
    /// unreadable manifest lists nothing; verification reports why.
    fn manifest_targets(&self) -> Result<Option<ManifestTargets>, Error> {
        let Some(group) = self.path.group() else {
            return Ok(None);
        };
        let mut known = ManifestTargets::default();
        let mut wholes = Vec::new();
        for directory in self.directories.iter().filter(|path| path.is_dir()) {
            for (path, part) in manifest_parts(directory, &group)? {
                known.promised.extend(targets(&part));
                known.manifests.push(path);
            }
            let whole = directory.join(group.manifest());
            if !whole.is_file() {
                continue;
            }
            if let Ok(manifest) = or_refused(read_manifest(&whole))? {
                known.listed.extend(targets(&manifest));
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

/// The targets that a module's manifests list.
#[derive(Default)]
struct ManifestTargets {
    manifests: Vec<PathBuf>,
    /// Targets with a kpack in some package.
    listed: BTreeSet<TargetId>,
    /// Targets whose kpack must be here.
    promised: BTreeSet<TargetId>,
}

fn targets(manifest: &kpack_format::manifest::Manifest) -> impl Iterator<Item = TargetId> {
    manifest.kpack_files.keys().filter_map(|t| t.parse().ok())
}

/// The install prefix of a binary: its path without `kernel_name`. `None` if the binary was moved
/// or renamed.
pub(crate) fn prefix_of(binary: &Path, kernel_name: &str) -> Option<PathBuf> {
    let real = fs::canonicalize(binary).ok()?;
    let depth = Path::new(kernel_name).components().count();
    let prefix = real.ancestors().nth(depth).map(Path::to_owned);
    prefix.filter(|_| real.ends_with(kernel_name))
}
