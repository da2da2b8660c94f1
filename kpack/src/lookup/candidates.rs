//! Where to look: turns a marker, a binary and the environment into a list of archives, in order.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::iter;
use std::path::{self, Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::{FileNames, KernelName, SearchPath, archive_ends, is_archive};

use super::{Environment, Rule, Rules};
use crate::platform::FileId;

/// Where archives may be: a search path from a marker or a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The path, absolute if possible. `@GFXARCH@` stands for the target; without it, the path leads to one
    /// archive or, in the early form of the marker, to a directory of archives.
    pub path: PathBuf,
    /// What led there.
    pub rule: Rule,
    /// Its position in the marker or the variable.
    pub position: usize,
}

/// An archive to try, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its path.
    pub path: PathBuf,
    /// What led there.
    pub rule: Rule,
}

/// An archive that was found by listing a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledArchive {
    /// Its path.
    pub path: PathBuf,
    /// The target in its name; `None` if the location names no target.
    pub target: Option<TargetId>,
}

/// Where a binary is: the directories that its search paths are relative to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryOrigin(Vec<(PathBuf, Rule)>);

impl BinaryOrigin {
    /// The real directory of the binary at `path`, and those of the symbolic links that lead to it: `path` and
    /// `loaded`, the paths by which the dynamic linker loaded the objects of a process. The system
    /// knows only the real path of a file. But some package managers link files of a store into
    /// environments, and the archives may be in another part of the store.
    pub fn of(binary: &Path, loaded: impl IntoIterator<Item = PathBuf>) -> Self {
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut directories: Vec<(PathBuf, Rule)> = Vec::new();
        if let Ok(real) = fs::canonicalize(binary) {
            directories.push((parent(&real), Rule::Marker));
        }
        let id = FileId::at(binary).ok();
        let loaded = loaded
            .into_iter()
            .filter(|_| id.is_some())
            .filter_map(|path| path::absolute(path).ok());
        let links = loaded.filter(|path| FileId::at(path).ok() == id);
        for path in iter::once(binary.to_owned()).chain(links) {
            let directory = parent(&path);
            let is_known = |path: &Path| directories.iter().any(|(known, _)| known == path);
            if !is_known(&directory)
                && !fs::canonicalize(&directory).is_ok_and(|real| is_known(&real))
            {
                // Without a file, the only path counts as the real one.
                let rule = if directories.is_empty() { Rule::Marker } else { Rule::Link };
                directories.push((directory, rule));
            }
        }
        Self(directories)
    }
}

/// Every target whose code objects can run, best first: for each ISA in order, from the most to the
/// least specific.
pub fn targets(isas: &[TargetId]) -> Vec<String> {
    let mut targets = Vec::new();
    for target in isas.iter().flat_map(TargetId::compatible) {
        let target = target.to_string();
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    targets
}

/// The possible names of the kernel, best first. The early form of the marker has no name: then every
/// suffix of the binary's path is possible.
pub fn kernels(marker: &Marker, binary: &Path, co_index: u32) -> Vec<String> {
    match &marker.kernel_name {
        Some(name) if !name.is_empty() => vec![KernelName::new(name, co_index).to_string()],
        _ => {
            // Names have `/` on every system.
            let path = binary.to_string_lossy();
            let path = path.replace(path::MAIN_SEPARATOR, "/");
            let starts = path.match_indices('/').map(|(slash, _)| slash + 1);
            starts.map(|start| KernelName::new(&path[start..], co_index).to_string()).collect()
        }
    }
}

impl Rules {
    /// Where to look, in order.
    pub fn locations(
        &self,
        environment: &Environment,
        marker: &Marker,
        origin: &BinaryOrigin,
    ) -> Vec<Location> {
        let listed = |paths: &[PathBuf], rule| {
            let locations = paths.iter().enumerate();
            let locations =
                locations.map(|(position, path)| Location { path: path.clone(), rule, position });
            let is_path = |path: &Path| self.expands_variables || !names_target(path);
            Vec::from_iter(locations.filter(|location| is_path(&location.path)))
        };
        if !environment.path.is_empty() {
            return listed(&environment.path, Rule::Path);
        }
        let mut locations = listed(&environment.path_prefix, Rule::PathPrefix);
        locations.extend(self.of_marker(marker, origin));
        locations
    }

    /// Where the marker's own search paths lead.
    pub(crate) fn of_marker<'a>(
        &self,
        marker: &'a Marker,
        origin: &'a BinaryOrigin,
    ) -> impl Iterator<Item = Location> + 'a {
        let beside_links = self.beside_links;
        let paths = marker.kpack_search_paths.iter().enumerate();
        paths.flat_map(move |(position, path)| {
            let directories = origin.0.iter();
            let directories =
                directories.filter(move |(_, rule)| beside_links || *rule != Rule::Link);
            directories.map(move |(directory, rule)| Location {
                path: directory.join(path),
                rule: *rule,
                position,
            })
        })
    }

    /// The archives to try: for each location in order, each target in order. One that is called as on the other system
    /// is among them if it exists.
    pub fn candidates(&self, locations: &[Location], targets: &[String]) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let mut seen = HashSet::new();
        for Location { path, rule, .. } in locations {
            let mut add = |path: PathBuf| {
                if seen.insert(path.clone().into_os_string()) {
                    candidates.push(Candidate { path, rule: *rule });
                }
            };
            let pattern = SearchPath::new(path);
            if pattern.names_target() {
                for target in targets {
                    let mut names = FileNames::read_here(target).map(|name| pattern.expand(&name));
                    names.next().into_iter().for_each(&mut add);
                    // Messages need not tell that such a file is not there.
                    names.filter(|path| self.reads_other_names && path.exists()).for_each(&mut add);
                }
            } else if path.is_dir() {
                in_directory(path, targets).into_iter().for_each(&mut add);
            } else {
                add(path.clone());
            }
        }
        candidates
    }

    /// The archives at a location for any target, sorted by name, without opening one. A path without
    /// `@GFXARCH@` leads to itself, or to all archives of a directory.
    ///
    /// # Errors
    /// Those of listing a directory that exists.
    pub fn installed(&self, path: &Path) -> io::Result<Vec<InstalledArchive>> {
        let without_target = |path| InstalledArchive { path, target: None };
        if let Some(pattern) = SearchPath::new(path).split() {
            let names = names(pattern.directory)?.into_iter();
            let archive = |name: OsString| {
                let target = pattern.target_of(&name)?;
                let written = pattern.written_in(&name)?;
                let is_usual = FileNames::HERE.of(&target.to_string()) == written;
                let tail = pattern.tail.expand(written);
                (is_usual || self.reads_other_names).then(|| InstalledArchive {
                    path: pattern.directory.join(tail),
                    target: Some(target),
                })
            };
            return Ok(names.filter_map(archive).collect());
        }
        if path.is_dir() {
            let paths = names(path)?.into_iter().map(|name| path.join(name));
            let archives = paths.filter(|path| is_archive(path));
            return Ok(archives.map(without_target).collect());
        }
        Ok(vec![without_target(path.to_owned())])
    }
}

fn names_target(path: &Path) -> bool {
    SearchPath::new(path).names_target()
}

/// The names in a directory, sorted; none if it does not exist.
fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// The archives in a directory, by their names; the early form of the marker names directories.
fn in_directory(directory: &Path, targets: &[String]) -> Vec<PathBuf> {
    let names = names(directory).unwrap_or_default();
    let mut archives = Vec::new();
    for end in targets.iter().flat_map(|target| archive_ends(target)) {
        let of_target =
            names.iter().filter(|name| name.as_encoded_bytes().ends_with(end.as_bytes()));
        archives.extend(of_target.map(|name| directory.join(name)));
    }
    archives
}
