//! Where to look: turns a marker, a binary and the environment into a list of archives, in order.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};

use kpack_format::names::{KernelName, SearchPath, archive_end, is_archive};

use crate::ffi::process;
use crate::regular_file::FileId;
use crate::{Cache, Environment, Request, TargetId};

/// Every target whose code objects can run, best first: for each ISA in order, from the most to the
/// least specific.
pub(crate) fn targets(isas: &[TargetId]) -> Vec<String> {
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
pub(crate) fn kernels(request: &Request<'_>) -> Vec<String> {
    let index = request.co_index;
    match &request.marker.kernel_name {
        Some(name) if !name.is_empty() => vec![KernelName::new(name, index).to_string()],
        _ => {
            let path = request.binary.to_string_lossy();
            let starts = path.match_indices('/').map(|(slash, _)| slash + 1);
            starts
                .map(|start| KernelName::new(&path[start..], index).to_string())
                .collect()
        }
    }
}

/// Search paths, made absolute if possible, with `@GFXARCH@` still in them. `directories` are the
/// binary's.
pub(crate) fn patterns(
    environment: &Environment,
    request: &Request<'_>,
    directories: &[PathBuf],
) -> Vec<PathBuf> {
    if !environment.path.is_empty() {
        return environment.path.clone();
    }
    let mut patterns = environment.path_prefix.clone();
    patterns.extend(of_marker(request, directories));
    patterns
}

/// The marker's own search paths.
pub(crate) fn of_marker(request: &Request<'_>, directories: &[PathBuf]) -> Vec<PathBuf> {
    let paths = request.marker.kpack_search_paths.iter();
    paths
        .flat_map(|path| directories.iter().map(move |d| d.join(path)))
        .collect()
}

/// The directories of the binary: the real one and, if the given path or that of the dynamic linker leads
/// through a symbolic link, also that of the link.
pub(crate) fn directories(binary: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
    let mut directories = Vec::new();
    if let Ok(real) = fs::canonicalize(binary) {
        directories.push(parent(&real));
    }
    for path in iter::once(binary.to_owned()).chain(links(binary)) {
        let directory = parent(&path);
        let same = directories.contains(&directory)
            || fs::canonicalize(&directory).is_ok_and(|real| directories.contains(&real));
        if !same {
            directories.push(directory);
        }
    }
    directories
}

/// Paths of the dynamic linker that lead to the binary. The system knows only the real path of a file. But
/// some package managers link files of a store into environments, and the archives may be in another part
/// of the store.
fn links(binary: &Path) -> impl Iterator<Item = PathBuf> {
    let id = FileId::at(binary).ok();
    let objects = id.map_or_else(Vec::new, |_| process::loaded_objects());
    let paths = objects
        .into_iter()
        .filter_map(|path| path::absolute(path).ok());
    paths.filter(move |path| FileId::at(path).ok() == id)
}

/// The archives that search paths lead to: for each path in order, each target in order.
pub(crate) fn archives(patterns: &[PathBuf], targets: &[String]) -> Vec<PathBuf> {
    let mut archives = Vec::new();
    let mut seen = HashSet::new();
    let mut add = |archive: PathBuf| {
        if seen.insert(archive.clone().into_os_string()) {
            archives.push(archive);
        }
    };
    for pattern in patterns {
        let path = SearchPath::new(pattern);
        if path.names_target() {
            targets.iter().for_each(|target| add(path.expand(target)));
        } else if pattern.is_dir() {
            in_directory(pattern, targets)
                .into_iter()
                .for_each(&mut add);
        } else {
            add(pattern.clone());
        }
    }
    archives
}

/// Every target that archives in the search paths are for.
pub(crate) fn present(cache: &Cache, patterns: &[PathBuf]) -> BTreeSet<TargetId> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name())
    };
    let mut targets = BTreeSet::new();
    let mut add_those_of = |archive: &Path| {
        if let Ok(archive) = cache.archive(archive) {
            let listed = archive.targets().iter();
            targets.extend(listed.filter_map(|target| target.parse().ok()));
        }
    };
    let mut named = BTreeSet::new();
    for path in patterns {
        if let Some(pattern) = SearchPath::new(path).split() {
            named.extend(names(pattern.directory).filter_map(|name| pattern.target_of(&name)));
        } else if path.is_dir() {
            let paths = names(path).map(|name| path.join(name));
            let archives = paths.filter(|path| is_archive(path));
            archives.for_each(|archive| add_those_of(&archive));
        } else {
            add_those_of(path);
        }
    }
    targets.append(&mut named);
    targets
}

/// The archives in a directory, by their names; the early form of the marker names directories.
fn in_directory(directory: &Path, targets: &[String]) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    let mut archives = Vec::new();
    for target in targets {
        let end = archive_end(target);
        let of_target = names
            .iter()
            .filter(|name| name.as_bytes().ends_with(end.as_bytes()));
        archives.extend(of_target.map(|name| directory.join(name)));
    }
    archives
}
