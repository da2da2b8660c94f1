//! Artifact directories: which belong together, and whether each has what belongs into it and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::tensile::Library;
use walkdir::WalkDir;

use super::archive::counted;
use super::{Outcome, Report, Subject};
use crate::Error;
use crate::artifact::classify::{Class, Classification, Entry, Node, classify};
use crate::artifact::databases::Selection;
use crate::artifact::manifest_txt;
use crate::artifact::names::{self, Kind};
use crate::inspect::{Overlay, open_archive, split_name};
use crate::object_file::is_object;

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
            if !is_artifact(&path) {
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
    pub(super) fn verify(&self, report: &mut Report) -> Result<(), Error> {
        let asked_for = || self.found.iter().filter(|artifact| artifact.asked_for);
        for artifact in asked_for() {
            artifact.verify(self, report)?;
        }
        for set in &self.sets {
            let verified = |root: &PathBuf| asked_for().any(|artifact| artifact.real == *root);
            if set.roots.iter().any(verified) {
                set.verify(report)?;
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
    let has_part = |part: &str| {
        let end = format!(".{part}.kpm");
        manifests.iter().any(|name| name.ends_with(&end))
    };
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

/// The names of the manifests in an artifact directory.
fn manifest_names(artifact: &Path) -> Vec<String> {
    let files = WalkDir::new(artifact).into_iter().flatten();
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".kpm")).collect()
}

impl Artifact {
    fn verify(&self, all: &Artifacts, report: &mut Report) -> Result<(), Error> {
        let faults = report.count(Outcome::Fault);
        let path = &self.path;
        let prefixes = match &self.prefixes {
            Ok(prefixes) => prefixes,
            Err(reason) => {
                report.fault(Subject::Artifact, path, reason);
                return Ok(());
            }
        };
        if self.role != Role::Unsplit {
            self.nothing_outside(prefixes, report);
        }
        let mut seen = Seen::default();
        for prefix in prefixes {
            let directory = path.join(prefix);
            if !directory.is_dir() {
                let text = format!("lists the prefix `{prefix}`, which is not there");
                report.note(Subject::Artifact, &path.join(manifest_txt::FILE_NAME), text);
                continue;
            }
            let content = match classify(&directory, &Selection::Auto) {
                Ok(content) => content,
                Err(Error::Refused { path, reason }) => {
                    report.fault(Subject::Artifact, &path, reason);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for entry in &content.entries {
                seen.add(entry);
                self.belongs(&directory, entry, report);
            }
            findings(&directory, prefix, &content, all, self, report)?;
        }
        if seen.targets.is_empty() && matches!(self.role, Role::Target(_) | Role::Group) {
            report.fault(Subject::Artifact, path, "is empty: it has no device code");
        }
        if report.count(Outcome::Fault) == faults {
            let targets: Vec<String> = seen.targets.iter().map(TargetId::to_string).collect();
            let what = match (&self.role, targets.is_empty()) {
                (Role::Unsplit, _) => "an artifact that is not split",
                (Role::Generic, true) => "nothing architecture-specific",
                (Role::Generic, false) => "a generic artifact",
                _ => "device code only",
            };
            let targets = match (&self.role, targets.is_empty()) {
                (Role::Target(_) | Role::Group, false) => format!(" for {}", targets.join(", ")),
                _ => String::new(),
            };
            let text = format!("{}, {what}{targets}", counted(seen.files, "file"));
            report.ok(Subject::Artifact, path, text);
        }
        Ok(())
    }

    /// What no prefix has belongs to nobody, and is not installed.
    fn nothing_outside(&self, prefixes: &[String], report: &mut Report) {
        let walk = WalkDir::new(&self.path).min_depth(1).sort_by_file_name();
        let mut walk = walk.into_iter();
        while let Some(entry) = walk.next() {
            let Ok(entry) = entry else { continue };
            let within = entry
                .path()
                .strip_prefix(&self.path)
                .unwrap_or(Path::new(""));
            if prefixes.iter().any(|prefix| within.starts_with(prefix)) {
                if entry.file_type().is_dir() {
                    walk.skip_current_dir();
                }
            } else if !entry.file_type().is_dir() && within != Path::new(manifest_txt::FILE_NAME) {
                let text = format!("is in no prefix that {} lists", manifest_txt::FILE_NAME);
                report.fault(Subject::Artifact, entry.path(), text);
            }
        }
    }

    /// Whether an entry belongs into this artifact.
    fn belongs(&self, directory: &Path, entry: &Entry, report: &mut Report) {
        let path = directory.join(&entry.path);
        let is_directory = matches!(entry.node, Node::Directory { .. });
        let is_manifest = entry.path.extension().is_some_and(|e| e == "kpm");
        match (&self.role, &entry.class) {
            (Role::Generic, Class::Target { target, database }) => {
                let text = format!(
                    "is of {target} ({database}); a generic artifact holds nothing of one target"
                );
                report.fault(Subject::Artifact, &path, text);
            }
            (Role::Generic, Class::Fat) => {
                report.fault(
                    Subject::Artifact,
                    &path,
                    "is a fat binary in a generic artifact",
                );
            }
            (Role::Generic, Class::Unknown { reason, .. }) => {
                report.note(
                    Subject::Artifact,
                    &path,
                    format!("in no known place: {reason}"),
                );
            }
            (Role::Target(own), Class::Target { target, .. }) if own != target => {
                let text = format!("is of {target}, in the artifact of {own}");
                report.fault(Subject::Artifact, &path, text);
            }
            (Role::Target(_) | Role::Group, Class::Host | Class::Fat | Class::Split)
                if !is_directory && !is_manifest =>
            {
                report.fault(
                    Subject::Artifact,
                    &path,
                    "is for the host, in an artifact of targets",
                );
            }
            (Role::Target(_) | Role::Group, Class::Host)
                if entry.node == (Node::Directory { empty: true }) =>
            {
                report.note(Subject::Artifact, &path, "is an empty directory");
            }
            _ => {}
        }
    }
}

/// What an artifact has.
#[derive(Default)]
struct Seen {
    files: usize,
    targets: BTreeSet<TargetId>,
}

impl Seen {
    fn add(&mut self, entry: &Entry) {
        self.files += usize::from(!matches!(entry.node, Node::Directory { .. }));
        if let Class::Target { target, .. } = &entry.class {
            self.targets.insert(target.clone());
        }
    }
}

/// Files whose names lie, and halves of pairs.
fn findings(
    directory: &Path,
    prefix: &str,
    content: &Classification,
    all: &Artifacts,
    artifact: &Artifact,
    report: &mut Report,
) -> Result<(), Error> {
    for finding in &content.disagreements {
        report.fault(
            Subject::Artifact,
            &directory.join(&finding.path),
            &finding.text,
        );
    }
    for finding in &content.unpaired {
        let within = Path::new(prefix).join(&finding.path);
        // The library file may be one for all targets, in the generic artifact.
        let places = all.overlay.places(&artifact.real.join(&within));
        if !places.iter().skip(1).any(|place| named_beside(place)) {
            report.fault(
                Subject::Artifact,
                &directory.join(&finding.path),
                &finding.text,
            );
        }
    }
    Ok(())
}

/// Whether some library file in the directory of `code_object`, which need not be there, names it.
fn named_beside(code_object: &Path) -> bool {
    let Some(directory) = code_object.parent() else {
        return false;
    };
    let (name, stem) = (code_object.file_name(), code_object.file_stem());
    let named = [name, stem].map(|name| name.unwrap_or_default().to_string_lossy().into_owned());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let libraries = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "dat"));
    libraries.into_iter().any(|library| {
        let bytes = fs::read(library.path()).unwrap_or_default();
        Library::read(&bytes)
            .is_ok_and(|library| named.iter().any(|name| library.code_objects.contains(name)))
    })
}

impl Set {
    /// Whether each file is in one artifact only, and each kernel of some binary.
    fn verify(&self, report: &mut Report) -> Result<(), Error> {
        let mut owners: BTreeMap<PathBuf, &Path> = BTreeMap::new();
        let mut archives: BTreeSet<PathBuf> = BTreeSet::new();
        for root in &self.roots {
            for entry in WalkDir::new(root).min_depth(1).sort_by_file_name() {
                let Ok(entry) = entry else { continue };
                if entry.file_type().is_dir() {
                    continue;
                }
                let within = entry
                    .path()
                    .strip_prefix(root)
                    .unwrap_or(entry.path())
                    .to_owned();
                if within == Path::new(manifest_txt::FILE_NAME) {
                    continue;
                }
                if within
                    .extension()
                    .is_some_and(|extension| extension == "kpack")
                {
                    archives.insert(entry.path().to_owned());
                }
                if let Some(other) = owners.insert(within.clone(), root) {
                    let text =
                        format!("is in {} as well; expected it in one only", other.display());
                    report.fault(Subject::Artifact, entry.path(), text);
                }
            }
        }
        if !self.has_generic {
            let text = format!(
                "has no {}_{} beside it, so nothing loads its device code",
                self.component,
                names::GENERIC
            );
            if let Some(root) = self.roots.first() {
                report.note(Subject::Artifact, root, text);
            }
            return Ok(());
        }
        for archive in archives {
            self.kernels_have_binaries(&archive, &owners, report)?;
        }
        Ok(())
    }

    fn kernels_have_binaries(
        &self,
        path: &Path,
        files: &BTreeMap<PathBuf, &Path>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let archive = match open_archive(path) {
            Ok(archive) => archive,
            // That is a fault already.
            Err(Error::Refused { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let root = self.roots.iter().find(|root| path.starts_with(root));
        let Some(within) = root.and_then(|root| path.strip_prefix(root).ok()) else {
            return Ok(());
        };
        // The archive is somewhere in the prefix that its kernels are named in.
        let kernels = archive.toc().kernels.keys();
        let binaries: BTreeSet<&str> = kernels.map(|kernel| split_name(kernel).0).collect();
        for binary in binaries.into_iter().filter(|binary| !is_object(binary)) {
            let there = within
                .ancestors()
                .skip(1)
                .any(|prefix| files.contains_key(&prefix.join(binary)));
            if !there {
                let text = format!("has kernels of `{binary}`, which no artifact has");
                report.fault(Subject::Artifact, path, text);
            }
        }
        Ok(())
    }
}
