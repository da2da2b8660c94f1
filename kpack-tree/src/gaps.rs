//! Finds what the databases of Tensile's libraries lack: code objects without their library file, library
//! files without their code objects, files that only other targets have, and links to nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::unstable::target_names;

use crate::data_file::uncompressed;
use crate::databases;
use crate::entry::{Class, Entry, Node};
use crate::place::{ForAll, Merge};
use crate::tensile;
use crate::tree::Tree;
use kpack_core::files::with_slashes;
use kpack_core::words::{list, list_some};

/// Maximum number of missing files that a message names.
const MOST_NAMES: usize = 3;

/// Something that a database lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The path in its tree of the file that it is about, or of the directory.
    path: PathBuf,
    /// The same in the file system.
    pub from: PathBuf,
    kind: GapKind,
    /// What is missing: names of files.
    missing: BTreeSet<String>,
    /// The targets that suffer.
    pub targets: BTreeSet<TargetId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GapKind {
    /// A library file names others.
    Named,
    /// A code object has no library file.
    NoLibrary,
    /// A file that others have, by their targets.
    OfOthers(BTreeSet<TargetId>),
    /// A file for all targets has nothing for some.
    Entries,
    /// A symbolic link leads to a file that is missing, or that another target's artifact has.
    Link(Option<TargetId>),
}

impl Gap {
    /// What is missing, for people.
    pub fn text(&self) -> String {
        let missing = || list_some(self.missing.iter(), MOST_NAMES);
        match &self.kind {
            GapKind::Named if self.missing.len() > 1 => {
                let count = self.missing.len();
                format!("names {count} files that are missing from its directory: {}", missing())
            }
            GapKind::Named => format!("names {}, which is missing from its directory", missing()),
            GapKind::NoLibrary => format!(
                "belongs to no library file: {} is missing, and no .dat names it",
                missing()
            ),
            GapKind::OfOthers(others) => {
                format!("{} is missing, but exists for {}", missing(), list(others))
            }
            GapKind::Entries => format!(
                "lists no kernels for {}, but its directory contains files for that target",
                list(&self.targets)
            ),
            GapKind::Link(None) => format!("a link to {}, which does not exist", missing()),
            GapKind::Link(Some(other)) => format!(
                "links to {} in the artifact of {other}; the link dangles wherever that is not installed",
                missing()
            ),
        }
    }

    /// Whether `other`, of the unsplit tree, is at least this.
    pub fn is_in(&self, other: &Self) -> bool {
        self.path == other.path
            && std::mem::discriminant(&self.kind) == std::mem::discriminant(&other.kind)
            && self.missing.is_subset(&other.missing)
            && self.targets.is_subset(&other.targets)
    }
}

/// What the databases in an installation, or in artifacts that are installed together, lack.
pub fn gaps<'a>(files: impl Iterator<Item = &'a Entry>) -> Vec<Gap> {
    let mut gaps = gaps_once_split(files);
    let leads_there =
        |gap: &Gap| matches!(gap.kind, GapKind::Link(_)) && gap.from.metadata().is_ok();
    gaps.retain(|gap| !leads_there(gap));
    gaps
}

/// As [`gaps`], with links that lead to files which the split puts into another artifact.
pub fn gaps_once_split<'a>(files: impl Iterator<Item = &'a Entry>) -> Vec<Gap> {
    let mut directories: BTreeMap<&Path, DatabaseDirectory<'_>> = BTreeMap::new();
    let mut others = Vec::new();
    for file in files.filter(|file| !file.is_directory()) {
        let Some((database, _)) = databases::recognise(&with_slashes(&file.path)) else {
            continue;
        };
        match (file.path.parent(), file.path.file_name().and_then(OsStr::to_str)) {
            (Some(parent), Some(name)) if database.is_tensile => {
                let directory = directories.entry(parent).or_default();
                directory.targets.extend(file.processor());
                directory.files.push((name, file));
            }
            _ => others.push(file),
        }
    }
    // Sorting keeps one file per path, but two artifacts may have the same link.
    let of_tensile = directories.values().flat_map(DatabaseDirectory::files);
    let links = links(of_tensile.chain(others.iter().copied()));
    directories.values_mut().for_each(DatabaseDirectory::sort);
    let mut found = Vec::new();
    for (path, directory) in &directories {
        directory.libraries(&mut found);
        directory.code_objects(&mut found);
        directory.of_others(path, &mut found);
        directory.for_all(&mut found);
    }
    found.extend(links);
    found.sort_by(|a, b| a.from.cmp(&b.from));
    found
}

impl Tree {
    /// What the databases lack: the path of a file in the file system, and what is wrong with it.
    pub fn lacking(&self) -> Vec<(PathBuf, String)> {
        gaps(self.entries.iter()).iter().map(|gap| (gap.from.clone(), gap.text())).collect()
    }
}

impl Entry {
    /// The code objects that it names, if it is a library file.
    fn code_objects(&self) -> impl Iterator<Item = &str> {
        let library = self.library.as_deref();
        let own = library
            .filter(|library| library.names_own)
            .and(self.path.file_stem())
            .and_then(OsStr::to_str);
        let names = library.into_iter().flat_map(|library| &library.code_objects);
        names.map(String::as_str).chain(own)
    }

    /// The processor whose artifact it goes to.
    fn processor(&self) -> Option<TargetId> {
        match &*self.class {
            Class::Target { target, .. } => Some(target.plain()),
            _ => None,
        }
    }

    fn gap(&self, kind: GapKind, missing: BTreeSet<String>, targets: BTreeSet<TargetId>) -> Gap {
        let (path, from) = (self.path.to_path_buf(), self.path.full().to_path_buf());
        Gap { path, from, kind, missing, targets }
    }
}

/// A directory of a database.
#[derive(Default)]
struct DatabaseDirectory<'a> {
    /// Once sorted, by name and each once. A map would take more memory.
    files: Vec<(&'a str, &'a Entry)>,
    /// The processors that it has files for.
    targets: BTreeSet<TargetId>,
}

impl DatabaseDirectory<'_> {
    /// Sorts the files. Of those with one name, the last stays.
    fn sort(&mut self) {
        self.files.sort_by_key(|(name, _)| *name);
        self.files.dedup_by(|next, last| {
            let is_same = next.0 == last.0;
            if is_same {
                *last = *next;
            }
            is_same
        });
    }

    fn files(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.files.iter().map(|(_, file)| *file)
    }

    /// The first file whose name is `name` or comes after it.
    fn at_or_after(&self, name: &str) -> Option<&(&str, &Entry)> {
        self.files.get(self.files.partition_point(|(found, _)| *found < name))
    }

    fn get(&self, name: &str) -> Option<&Entry> {
        self.at_or_after(name).filter(|(found, _)| *found == name).map(|(_, file)| *file)
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Whether there is a library file of this name, compressed or not.
    fn has_library(&self, stem: &str) -> bool {
        let name = format!("{stem}.dat");
        self.at_or_after(&name).is_some_and(|(found, _)| uncompressed(found) == name)
    }

    fn libraries(&self, found: &mut Vec<Gap>) {
        for file in self.files() {
            let Some(library) = &file.library else {
                continue;
            };
            let own = file.processor();
            let mut missing: BTreeMap<Option<TargetId>, BTreeSet<String>> = BTreeMap::new();
            for name in file.code_objects() {
                let named = target_names::only_in_file_name(name).map(|target| target.plain());
                let target = own.clone().or(named);
                // That of another target may be in a package that is not installed.
                let is_installed = target.as_ref().is_none_or(|t| self.targets.contains(t));
                let stem = without_extension(name);
                let mut names =
                    [name.to_owned(), format!("{stem}.co"), format!("{stem}.hsaco")].into_iter();
                if is_installed && !names.any(|name| self.has(&name)) {
                    missing.entry(target).or_default().insert(name.to_owned());
                }
            }
            // A library for all targets has a code object for each that it names.
            let stem = file.path.file_stem().unwrap_or_default().display();
            let is_merged =
                library.has_assembly && own.is_none() && file.code_objects().next().is_none();
            for target in library.targets.iter().filter(|_| is_merged).map(TargetId::plain) {
                let name = format!("{stem}_{target}.co");
                if self.targets.contains(&target) && !self.has(&name) {
                    missing.entry(Some(target)).or_default().insert(name);
                }
            }
            for stem in &library.placeholders {
                self.placeholder(stem, own.as_ref(), missing.entry(own.clone()).or_default());
            }
            for (target, missing) in missing.into_iter().filter(|(_, missing)| !missing.is_empty())
            {
                let targets = target.or(own.clone()).into_iter().collect();
                found.push(file.gap(GapKind::Named, missing, targets));
            }
        }
    }

    /// Adds the files of a library that is loaded when it is needed, and that are missing for `target`.
    fn placeholder(&self, stem: &str, target: Option<&TargetId>, missing: &mut BTreeSet<String>) {
        if !self.has_library(stem) {
            missing.insert(format!("{stem}.dat"));
        }
        let Some(file) = self.get(&format!("{stem}.dat")) else {
            return;
        };
        let Some(library) =
            file.library.as_deref().filter(|_| file.code_objects().next().is_none())
        else {
            return;
        };
        if library.has_assembly && !self.has(&format!("{stem}.co")) {
            missing.insert(format!("{stem}.co"));
        }
        let Some(target) = target.filter(|_| library.has_source) else {
            return;
        };
        // A library for GPUs without their own has kernels for each of them.
        let stem =
            if tensile::is_fallback(stem) { format!("{stem}_{target}") } else { stem.to_owned() };
        if self.has(&format!("{stem}.hsaco")) {
            return;
        }
        for variant in self.built_for(target) {
            let end = variant.to_string().replacen(target.processor(), "", 1);
            let names = [end.replace(':', "-"), end];
            let is_there = |end: &String| self.has(&format!("{stem}{end}.hsaco"));
            if !names.iter().any(is_there) {
                missing.insert(format!("{stem}{}.hsaco", names[0]));
            }
        }
    }

    /// The variants of a processor that source kernels are built for, or the processor alone.
    fn built_for(&self, processor: &TargetId) -> BTreeSet<TargetId> {
        let mut variants: BTreeSet<TargetId> = self
            .files
            .iter()
            .filter(|(name, _)| name.ends_with(".hsaco"))
            .filter_map(|(_, file)| match &*file.class {
                Class::Target { target, .. } if target.plain() == *processor => Some(target),
                _ => None,
            })
            .cloned()
            .collect();
        variants.remove(processor);
        if variants.is_empty() {
            variants.insert(processor.clone());
        }
        variants
    }

    /// Code objects that no library file names.
    fn code_objects(&self, found: &mut Vec<Gap>) {
        let libraries = self.files().filter_map(|file| file.library.as_deref());
        let placeholders = libraries.flat_map(|library| &library.placeholders);
        let named: BTreeSet<&str> = self
            .files()
            .flat_map(|file| file.code_objects().map(without_extension))
            .chain(placeholders.map(String::as_str))
            .collect();
        // Compressed library files are not read, and one names the code objects of others.
        let names_others = tensile::EXT_OP_LIBRARY;
        let mut names = self.files.iter().map(|(name, _)| *name);
        let may_be_named =
            names.any(|name| name != names_others && uncompressed(name) == names_others);
        for (name, file) in &self.files {
            let (Some(stem), Some(target)) = (name.strip_suffix(".co"), file.processor()) else {
                continue;
            };
            if named.contains(stem)
                || may_be_named
                || self.has_library(stem)
                || self.is_merged(stem)
            {
                continue;
            }
            let library = BTreeSet::from([format!("{stem}.dat")]);
            found.push(file.gap(GapKind::NoLibrary, library, BTreeSet::from([target])));
        }
    }

    /// Whether a code object is a target's part of a library for all: `TensileLibrary_gfx90a.co` of
    /// `TensileLibrary.dat`.
    fn is_merged(&self, stem: &str) -> bool {
        let library = stem.rfind("_gfx").map(|at| &stem[..at]);
        library.is_some_and(|library| self.has_library(library))
    }

    /// Files that each target should have if one has: those that are loaded by name.
    fn of_others(&self, path: &Path, found: &mut Vec<Gap>) {
        let mut having: BTreeMap<(&str, &str), BTreeSet<TargetId>> = BTreeMap::new();
        let mut example: Option<&Entry> = None;
        for (name, file) in &self.files {
            if let Class::Target { target, .. } = &*file.class
                && let Some(loaded) = tensile::loaded_by_target(name)
            {
                having.entry(loaded).or_default().insert(target.clone());
                example = Some(file);
            }
        }
        let Some(directory) = example.and_then(|file| file.path.full().parent()) else {
            return;
        };
        for ((before, extension), having) in having {
            let is_source = extension == "hsaco";
            let mut expected: BTreeSet<TargetId> = BTreeSet::new();
            let has = |processor: &&TargetId| {
                let mut having = having.iter();
                having.any(|own| own == *processor || !is_source && own.plain() == **processor)
            };
            for processor in self.targets.iter().filter(|processor| !has(processor)) {
                if is_source {
                    expected.append(&mut self.built_for(processor));
                } else {
                    expected.insert(processor.clone());
                }
            }
            for target in expected.difference(&having) {
                let name = target.to_string().replace(':', "-");
                found.push(Gap {
                    path: path.to_owned(),
                    from: directory.to_owned(),
                    kind: GapKind::OfOthers(having.clone()),
                    missing: BTreeSet::from([format!("{before}{name}.{extension}")]),
                    targets: BTreeSet::from([target.plain()]),
                });
            }
        }
    }

    /// Files for all targets that have nothing for one that other files are for.
    fn for_all(&self, found: &mut Vec<Gap>) {
        for file in self.files() {
            let merge = databases::for_all(&file.path);
            let (Some(ForAll::Merge(Merge::Bundle | Merge::ByTarget)), Some(library)) =
                (merge, &file.library)
            else {
                continue;
            };
            let has =
                |target: &&TargetId| library.targets.iter().any(|own| own.agrees_with(target));
            let lacking: BTreeSet<TargetId> =
                self.targets.iter().filter(|target| !has(target)).cloned().collect();
            if !library.targets.is_empty() && !lacking.is_empty() {
                found.push(file.gap(GapKind::Entries, BTreeSet::new(), lacking));
            }
        }
    }
}

/// The gap of a link that leads to no file that is always installed with it.
fn dangling(link: &Entry, owners: &BTreeMap<&Path, Option<TargetId>>) -> Option<Gap> {
    let target = link.processor();
    let to = fs::read_link(link.path.full()).ok()?;
    let resolved = normal(&link.path.parent()?.join(&to));
    let kind = match owners.get(&*resolved) {
        Some(owner) if owner.is_none() || *owner == target => return None,
        Some(owner) => GapKind::Link(owner.clone()),
        None if link.path.full().metadata().is_ok() => return None,
        None => GapKind::Link(None),
    };
    Some(link.gap(kind, BTreeSet::from([with_slashes(&to)]), target.into_iter().collect()))
}

/// What the symbolic links among files of databases lack.
fn links<'f>(files: impl Iterator<Item = &'f Entry> + Clone) -> Vec<Gap> {
    let files = || files.clone();
    if !files().any(|file| file.node == Node::Symlink) {
        return Vec::new();
    }
    let owners = files().map(|file| (&*file.path, file.processor())).collect();
    let links = files().filter(|file| file.node == Node::Symlink);
    links.filter_map(|link| dangling(link, &owners)).collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// The name of a code object without its extension.
fn without_extension(name: &str) -> &str {
    let stem = name.strip_suffix(".co").or_else(|| name.strip_suffix(".hsaco"));
    stem.unwrap_or(name)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::entry_path::EntryPath;

    #[test]
    fn a_link_in_two_artifacts_dangles_in_both() {
        let root = tempfile::tempdir().unwrap();
        let path = Path::new("lib/rocblas/library/TensileLibrary_gfx942.co");
        let links = ["one", "two"].map(|artifact| {
            let path = EntryPath::new(&root.path().join(artifact), path);
            Entry::new(path, Node::Symlink)
        });
        for link in &links {
            fs::create_dir_all(link.full().parent().unwrap()).unwrap();
            std::os::unix::fs::symlink("missing", link.full()).unwrap();
        }
        let gaps = gaps(links.iter());
        let dangling = gaps.iter().filter(|gap| gap.kind == GapKind::Link(None));
        let dangling = Vec::from_iter(dangling.map(|gap| &*gap.from));
        assert_eq!(dangling, links.each_ref().map(Entry::full));
    }
}
