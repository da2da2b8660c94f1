//! Finds a split binary's archives as a loader does, and what only tools ask for: the manifests next to them,
//! the archives that these promise, and directories that will be overlaid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::path::{Component, Path, PathBuf};

use kpack::internal::lookup::{BinaryOrigin, Environment, InstalledArchive, Location, Rule, Rules};
use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::{Group, SearchPath};

use super::{Archives, Overlay, manifest_parts, metadata_of, or_refused, read_manifest};
use crate::Error;

/// How to look for archives, and those that are open.
pub struct Lookup {
    /// The archives that were opened.
    pub archives: Archives,
    /// Whose rules apply.
    pub rules: Rules,
    environment: Environment,
    overlay: Overlay,
}

/// As this project's loader does in an empty environment: what the environment of one user leads to says
/// nothing about what was installed.
impl Default for Lookup {
    fn default() -> Self {
        Self::new(Rules::KPACK, Environment::default())
    }
}

/// The archives that a split binary's marker refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Kpacks {
    /// By target, then in the order of the search paths.
    pub files: Vec<Kpack>,
    /// The manifests next to them that list archives of this binary's module.
    #[cfg_attr(feature = "serde", serde(serialize_with = "kpack_core::lossy::paths"))]
    pub manifests: Vec<PathBuf>,
    /// Archives that cannot be opened, and whose path names no target.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) unreadable: Vec<PathBuf>,
    /// Where archives were looked for, with `@GFXARCH@` for the target.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub searched: Vec<PathBuf>,
    /// The directory where they should be, if neither archives nor manifests are there, and no archives near the binary:
    /// whoever copied it probably left them behind.
    #[cfg_attr(feature = "serde", serde(skip))]
    left_behind: Option<PathBuf>,
}

/// An archive that a split binary's marker refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Kpack {
    /// Target ID.
    pub target: String,
    /// Its path, or where it should be.
    #[cfg_attr(feature = "serde", serde(serialize_with = "kpack_core::lossy::path"))]
    pub path: PathBuf,
    /// Size in bytes; `None` if a manifest lists it but it is missing.
    pub size: Option<u64>,
    /// Whether the manifest lists it; `None` without a manifest.
    pub listed: Option<bool>,
    /// What led there.
    #[cfg_attr(feature = "serde", serde(rename = "found_through", serialize_with = "rule_name"))]
    pub rule: Rule,
}

#[cfg(feature = "serde")]
fn rule_name<S: serde::Serializer>(rule: &Rule, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(rule.name())
}

impl Kpacks {
    /// The targets that a manifest promises or that have archives, each once.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.files.iter().map(|kpack| kpack.target.as_str()).filter(move |target| {
            let new = last != Some(*target);
            last = Some(*target);
            new
        })
    }

    /// What to do if the binary was probably copied without its archives.
    pub fn advice_without_any(&self) -> Option<String> {
        let directory = self.left_behind.as_ref()?.display();
        Some(format!(
            "the file was probably copied without its archives: copy them from the same place to `{directory}`, or install \
             their package"
        ))
    }

    /// What led to the archives, apart from the ordinary way, for the end of a message.
    pub fn found_through<'a>(kpacks: impl IntoIterator<Item = &'a Self>) -> String {
        let files = kpacks.into_iter().flat_map(|kpacks| &kpacks.files);
        let rules: BTreeSet<Rule> =
            files.map(|kpack| kpack.rule).filter(|rule| *rule != Rule::Marker).collect();
        if rules.is_empty() {
            String::new()
        } else {
            let names = Vec::from_iter(rules.iter().map(Rule::to_string));
            format!(", found through {}", names.join(" and "))
        }
    }
}

impl Lookup {
    /// By these rules, in this environment.
    pub fn new(rules: Rules, environment: Environment) -> Self {
        Self { archives: Archives::default(), rules, environment, overlay: Overlay::default() }
    }

    /// With directories that `overlay` adds to those that search paths lead to.
    pub fn in_overlay(overlay: Overlay) -> Self {
        Self { overlay, ..Self::default() }
    }

    /// Finds the archives that `marker`, of the binary at `binary`, refers to. `binary` is the path by which the
    /// dynamic linker loads it.
    ///
    /// Finds nothing for a marker in the early plain-text form, which names no kernels.
    ///
    /// # Errors
    /// [`Error::Io`] if the binary is missing, or a directory exists but cannot be read.
    pub fn find(&self, binary: &Path, marker: &Marker) -> Result<Kpacks, Error> {
        let binary = std::path::absolute(binary).map_err(|e| Error::io(binary, "find", e))?;
        binary.metadata().map_err(|e| Error::io(&binary, "find", e))?;
        if marker.kernel_name.is_none() {
            return Ok(Kpacks::default());
        }
        let origin = BinaryOrigin::of(&binary, []);
        let locations = self.rules.locations(&self.environment, marker, &origin);
        // A search path leads to a place for each directory of the binary.
        let mut search_paths: BTreeMap<(bool, usize), Vec<Location>> = BTreeMap::new();
        for location in locations {
            let is_markers = matches!(location.rule, Rule::Marker | Rule::Link);
            let key = (is_markers, location.position);
            let known = search_paths.entry(key).or_default();
            known.extend(self.overlaid(location));
        }
        // Archives that a variable leads to need not be copied with the binary.
        let mut of_marker = search_paths.iter().filter(|((is_markers, _), _)| *is_markers);
        let of_marker = of_marker.find_map(|(_, locations)| locations.first());
        let of_marker = of_marker.map(|location| location.path.clone());
        let mut found = FoundArchives::default();
        for ((is_markers, _), locations) in search_paths {
            for location in &locations {
                if !found.searched.contains(&location.path) {
                    found.searched.push(location.path.clone());
                }
            }
            let promise = if is_markers { Promise::read(&locations)? } else { None };
            self.add(&locations, promise.as_ref(), &mut found)?;
            for manifest in promise.into_iter().flat_map(|promise| promise.manifests) {
                if !found.manifests.contains(&manifest) {
                    found.manifests.push(manifest);
                }
            }
        }
        let left_behind =
            of_marker.and_then(|searched| self.left_behind(&binary, &found, &searched));
        Ok(Kpacks {
            files: found.files.into_values().flatten().collect(),
            manifests: found.manifests,
            unreadable: found.unreadable,
            searched: found.searched,
            left_behind,
        })
    }

    /// The directory of the archives that the marker leads to, if nothing was found and they are not near the binary either. A
    /// tree that is to be laid over others has its archives in those.
    fn left_behind(
        &self,
        binary: &Path,
        found: &FoundArchives,
        searched: &Path,
    ) -> Option<PathBuf> {
        let is_any =
            !found.real.is_empty() || !found.files.is_empty() || !found.manifests.is_empty();
        if is_any || !self.overlay.is_empty() {
            return None;
        }
        let (directory, name) = (binary.parent()?, searched.file_name()?);
        let has_archives = |place: &&str| {
            let installed = self.rules.installed(&directory.join(place).join(name));
            installed.is_ok_and(|archives| !archives.is_empty())
        };
        let is_near = [".kpack", "../.kpack", "."].iter().any(has_archives);
        let pattern = SearchPath::new(searched).split().filter(|_| !is_near)?;
        Some(pattern.directory.to_owned())
    }

    /// A location, with its directory resolved, and the locations that overlay it.
    fn overlaid(&self, location: Location) -> Vec<Location> {
        let Some(pattern) = SearchPath::new(&location.path).split() else {
            return vec![location];
        };
        let directory = pattern.directory;
        let tail = location.path.strip_prefix(directory).unwrap_or(&location.path);
        let real = fs::canonicalize(directory).unwrap_or_else(|_| without_dots(directory));
        let places = self.overlay.places(&real).into_iter();
        let overlaid = places.map(|place| Location { path: place.join(tail), ..location });
        overlaid.collect()
    }

    /// Adds the archives at `locations`, and those that are promised and missing.
    fn add(
        &self,
        locations: &[Location],
        promise: Option<&Promise>,
        found: &mut FoundArchives,
    ) -> Result<(), Error> {
        let mut here = BTreeSet::new();
        for location in locations {
            let archives = self
                .rules
                .installed(&location.path)
                .map_err(|e| Error::io(&location.path, "list", e))?;
            for InstalledArchive { path, target } in archives {
                let metadata = metadata_of(&path)?.filter(Metadata::is_file);
                let Some(metadata) = metadata else {
                    continue;
                };
                let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
                let is_new = found.real.insert(real);
                let is_listed = |promise: &Promise| {
                    let mut named = target.iter();
                    named.any(|target| promise.listed.contains(target))
                };
                let targets = self.archives.targets(&path, target.as_ref())?;
                if targets.is_empty() && target.is_none() && is_new {
                    found.unreadable.push(path.clone());
                }
                for own in targets {
                    here.insert(own.clone());
                    if !is_new {
                        continue;
                    }
                    let kpack = Kpack {
                        target: own.to_string(),
                        path: path.clone(),
                        size: Some(metadata.len()),
                        listed: promise.map(is_listed),
                        rule: location.rule,
                    };
                    found.files.entry(own).or_default().push(kpack);
                }
            }
        }
        let promised = promise.into_iter().flat_map(|promise| &promise.promised);
        // What was installed as links is complete beside the links.
        let beside_link = locations.iter().find(|place| place.rule == Rule::Link);
        let Some(first) = beside_link.or(locations.first()) else {
            return Ok(());
        };
        for target in promised.filter(|target| !here.contains(target)) {
            let kpack = Kpack {
                target: target.to_string(),
                path: SearchPath::new(&first.path).expand(&target.to_string()),
                size: None,
                listed: Some(true),
                rule: first.rule,
            };
            found.files.entry(target.clone()).or_default().push(kpack);
        }
        Ok(())
    }
}

/// What was found so far.
#[derive(Default)]
struct FoundArchives {
    files: BTreeMap<TargetId, Vec<Kpack>>,
    manifests: Vec<PathBuf>,
    unreadable: Vec<PathBuf>,
    searched: Vec<PathBuf>,
    /// Resolved paths of the archives: two locations may lead to one.
    real: BTreeSet<PathBuf>,
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

/// The targets that a module's manifests list.
#[derive(Default)]
struct Promise {
    manifests: Vec<PathBuf>,
    /// Targets with a kpack in some package.
    listed: BTreeSet<TargetId>,
    /// Targets whose kpack must be here.
    promised: BTreeSet<TargetId>,
}

impl Promise {
    /// Reads the module's manifests: `<module>_<component>.kpm` next to
    /// `<module>_<component>_<target>.kpack`, and its fragments. If there are fragments, they say
    /// what must be here, since the whole manifest also lists packages that are not installed. An
    /// unreadable manifest lists nothing; verification reports why.
    fn read(locations: &[Location]) -> Result<Option<Self>, Error> {
        let mut known = Self::default();
        let mut wholes = Vec::new();
        for location in locations {
            let Some((directory, group)) = group_at(location) else {
                continue;
            };
            if !metadata_of(directory)?.is_some_and(|found| found.is_dir()) {
                continue;
            }
            for (path, part) in manifest_parts(directory, &group)? {
                known.promised.extend(targets(&part));
                known.manifests.push(path);
            }
            let whole = directory.join(group.manifest());
            if !metadata_of(&whole)?.is_some_and(|found| found.is_file()) {
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

/// The directory of a location, and the group of its archives.
fn group_at(location: &Location) -> Option<(&Path, Group)> {
    let pattern = SearchPath::new(&location.path).split()?;
    Some((pattern.directory, pattern.group()?))
}

fn targets(manifest: &kpack_format::manifest::Manifest) -> impl Iterator<Item = TargetId> {
    manifest.kpack_files.keys().filter_map(|t| t.parse().ok())
}

/// The install prefix of a binary: its path without `kernel_name`. A symbolic link may be in another one than
/// its file. `None` if the binary was moved or renamed.
pub fn prefix_of(binary: &Path, kernel_name: &str) -> Option<PathBuf> {
    let depth = Path::new(kernel_name).components().count();
    let prefix = |path: PathBuf| {
        let prefix = path.ancestors().nth(depth).map(Path::to_owned);
        prefix.filter(|_| path.ends_with(kernel_name))
    };
    let real = || prefix(fs::canonicalize(binary).ok()?);
    placed(binary).and_then(prefix).or_else(real)
}

/// Where a file is: its path with the directory resolved. A link to a file beside it stands for that file, another
/// link for itself.
pub fn placed(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let real = fs::canonicalize(&path).ok()?;
    let directory = fs::canonicalize(path.parent()?).ok()?;
    if real.parent() == Some(&directory) {
        Some(real)
    } else {
        Some(directory.join(path.file_name()?))
    }
}
