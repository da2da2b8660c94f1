//! Resolves paths of binaries and archives in a prefix, and the relative paths between them.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::path::{Component, Path, PathBuf};

use kpack_core::platform::id_of;
use kpack_format::marker::Marker;
use kpack_format::names::Group;
use walkdir::WalkDir;

use super::{FileKind, LinkedBinary, identify, open, placed, walk_error};
use crate::leftover::is_leftover_entry;
use crate::publish::{Directory, stem_of};
use crate::{Error, ids};
use kpack_core::platform::canonicalize;

/// An install prefix, with symbolic links resolved.
pub struct Prefix {
    path: PathBuf,
    root: Directory,
}

/// A binary in the prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocatedBinary {
    /// Its path, with symbolic links resolved.
    pub path: PathBuf,
    /// Its path in the prefix, with `/`: the kernel name.
    pub name: String,
}

impl Prefix {
    /// The prefix at `path`, with symbolic links resolved.
    ///
    /// # Errors
    /// [`Error::Io`] if there is none.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let path = canonicalize(path).map_err(|e| Error::io(path, "find install prefix", e))?;
        let root = Directory::open(&path)?;
        Ok(Self { path, root })
    }

    /// The opened prefix.
    pub fn root(&self) -> &Directory {
        &self.root
    }

    /// Resolves the binary `file`. Its path is relative to the prefix, or to the working directory
    /// if the prefix has no such file.
    pub fn binary(&self, file: &Path) -> Result<LocatedBinary, Error> {
        let joined = self.path.join(file);
        if !joined.exists()
            && let Ok(path) = canonicalize(file)
            && let Ok(name) = self.name(&path, &path)
        {
            return Ok(LocatedBinary { path, name });
        }
        if leads_out(file) {
            return Err(Error::rejected(
                ids::OUTSIDE_PREFIX,
                &joined,
                "expected a path within the install prefix; choose a prefix that contains it",
            ));
        }
        let path = canonicalize(&joined).map_err(|e| Error::io(&joined, "open", e))?;
        let name = self.name(&path, &joined)?;
        Ok(LocatedBinary { path, name })
    }

    /// The linked files in the prefix, in order of path, each opened when it is asked for. Symbolic
    /// links are not followed.
    pub fn linked_files(&self) -> impl Iterator<Item = Result<(PathBuf, File), Error>> {
        let walk =
            super::walk(&self.path).into_iter().filter_entry(|entry| !is_leftover_entry(entry));
        walk.filter_map(|entry| match entry {
            Ok(entry) if !entry.file_type().is_file() => None,
            Ok(entry) => open_linked(entry.into_path()).transpose(),
            Err(error) => Some(Err(walk_error(&self.path, error))),
        })
    }

    /// As [`binaries`](Self::binaries), with those that symbolic links to files lead to, and an error for each that is
    /// damaged.
    pub fn reachable_binaries(
        &self,
    ) -> Result<impl Iterator<Item = Result<LinkedBinary, Error>>, Error> {
        let (mut files, mut links) = (Vec::new(), Vec::new());
        let walk = WalkDir::new(&self.path).into_iter();
        for entry in walk.filter_entry(|entry| !is_leftover_entry(entry)) {
            let entry = entry.map_err(|error| walk_error(&self.path, error))?;
            if entry.file_type().is_file() {
                files.push(entry.into_path());
            } else if entry.path_is_symlink() {
                links.push(entry.into_path());
            }
        }
        add_linked(&mut files, links);
        let opened = files.into_iter().filter_map(|file| open_linked(file).transpose());
        let read =
            opened.map(|found| found.and_then(|(path, file)| LinkedBinary::read(&path, file)));
        let is_of_others = |error: &Error| matches!(error, Error::Refused { id, .. } if *id != ids::DAMAGED_BINARY);
        Ok(read.filter(move |read| !read.as_ref().is_err_and(is_of_others)))
    }

    /// As [`linked_files`](Self::linked_files), each read, without those that kpack does not read: most files
    /// have nothing to do with device code.
    pub fn binaries(&self) -> impl Iterator<Item = Result<LinkedBinary, Error>> {
        self.linked_files().filter_map(read_linked)
    }

    /// The link at `file`, a path as [`binary`](Self::binary) takes it; `None` if it is no symbolic link, or
    /// leads to a file beside it, which it is another name of.
    pub fn link(&self, file: &Path) -> Result<Option<LocatedBinary>, Error> {
        let joined = self.path.join(file);
        let path = if joined.exists() { joined } else { file.to_owned() };
        let Some(path) = placed(&path).filter(|path| path.is_symlink() && !leads_out(file)) else {
            return Ok(None);
        };
        let name = self.name(&path, &path)?;
        Ok(Some(LocatedBinary { path, name }))
    }

    /// Removes hidden files of interrupted runs that were to replace these binaries; without any, those
    /// next to any file in the prefix.
    pub fn remove_leftovers(&self, files: &[PathBuf]) -> Result<(), Error> {
        if files.is_empty() {
            for entry in WalkDir::new(&self.path) {
                let entry = entry.map_err(|error| walk_error(&self.path, error))?;
                if entry.file_type().is_dir() {
                    Directory::open(entry.path())?.remove_all_leftovers()?;
                }
            }
            return Ok(());
        }
        for file in files {
            // What cannot be found is reported when it is read.
            let Ok(LocatedBinary { path, .. }) = self.absent_binary(file) else {
                continue;
            };
            let stem = stem_of(path.file_name().unwrap_or_default());
            match Directory::of(&path) {
                Ok(directory) => directory.remove_leftovers(&|found| found == stem)?,
                Err(_) => continue,
            }
        }
        Ok(())
    }

    /// Like `binary`, for a binary that need not exist.
    pub fn absent_binary(&self, file: &Path) -> Result<LocatedBinary, Error> {
        if self.path.join(file).exists() {
            return self.binary(file);
        }
        let path = self.path.join(file);
        let relative = path.strip_prefix(&self.path).unwrap_or(file);
        let name = plain(relative).ok_or_else(|| {
            Error::rejected(
                ids::OUTSIDE_PREFIX,
                &path,
                "expected a path within the install prefix, without `..`",
            )
        })?;
        Ok(LocatedBinary { path: self.path.join(&name), name })
    }

    /// The directory of the archives, which need not exist.
    pub fn kpack_dir(&self, relative: &Path) -> Result<KpackPath, Error> {
        let within = relative.strip_prefix(&self.path).unwrap_or(relative);
        let Some(relative) = plain(within) else {
            return Err(Error::usage(format!(
                "kpack directory `{}`: expected a path within the install prefix, without `..`",
                within.display()
            )));
        };
        let path = self.path.join(&relative);
        let existing = existing_ancestor(&path);
        let mut real = canonicalize(existing).map_err(|e| Error::io(existing, "open", e))?;
        let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
        // Joining an empty path would add a separator.
        if !rest.as_os_str().is_empty() {
            real.push(rest);
        }
        let name = self.name(&real, &path)?;
        let parent = Path::new(&name).parent().and_then(Path::to_str);
        Ok(KpackPath { path: real, manifest_prefix: parent.unwrap_or_default().to_owned(), name })
    }

    /// Converts a path without symbolic links to a path in the prefix.
    fn name(&self, path: &Path, named: &Path) -> Result<String, Error> {
        let Ok(relative) = path.strip_prefix(&self.path) else {
            let text = format!(
                "it resolves to {}, outside of the install prefix {}; choose a prefix that contains both",
                path.display(),
                self.path.display()
            );
            return Err(Error::rejected(ids::OUTSIDE_PREFIX, named, text));
        };
        plain(relative).ok_or_else(|| {
            let text = "expected a path in UTF-8, below the install prefix";
            Error::rejected(ids::UNREPRESENTABLE_PATH, named, text)
        })
    }
}

/// Adds the files that symbolic links lead to, each under the first link's path, unless they are among `files`.
/// The result is sorted.
pub fn add_linked(files: &mut Vec<PathBuf>, mut links: Vec<PathBuf>) {
    let id = |path: &PathBuf| {
        let file = path.metadata().ok().filter(Metadata::is_file)?;
        id_of(path, &file).ok()
    };
    links.retain(|link| id(link).is_some());
    if !links.is_empty() {
        let mut known: HashSet<_> = files.iter().map(id).collect();
        links.sort();
        files.extend(links.into_iter().filter(|link| known.insert(id(link))));
    }
    files.sort();
}

/// Reads a linked file; `None` if kpack does not read such a one.
fn read_linked(found: Result<(PathBuf, File), Error>) -> Option<Result<LinkedBinary, Error>> {
    match found.and_then(|(path, file)| LinkedBinary::read(&path, file)) {
        Err(Error::Refused { .. }) => None,
        linked => Some(linked),
    }
}

/// Opens a file if it is a linked one.
fn open_linked(path: PathBuf) -> Result<Option<(PathBuf, File)>, Error> {
    let file = open(&path)?;
    let kind = identify(&path, &file)?;
    Ok((kind == Some(FileKind::Linked)).then_some((path, file)))
}

/// The directory of the archives.
pub struct KpackPath {
    /// Its absolute path.
    pub path: PathBuf,
    /// Path in the prefix, with symbolic links resolved.
    pub name: String,
    /// The manifest's `prefix`: the parent directory, relative to the install prefix.
    pub manifest_prefix: String,
}

impl KpackPath {
    /// The nearest existing parent, most likely on the same file system.
    pub fn existing(&self) -> &Path {
        existing_ancestor(&self.path)
    }

    /// The marker of `binary` for archives of `group`.
    pub fn marker(&self, binary: &LocatedBinary, group: &Group) -> Marker {
        let mut directory: Vec<&str> = binary.name.split('/').collect();
        directory.pop();
        let kpacks: Vec<&str> = self.name.split('/').collect();
        let shared = directory.iter().zip(&kpacks).take_while(|(a, b)| a == b).count();
        let mut path = vec![".."; directory.len() - shared];
        path.extend(&kpacks[shared..]);
        let archive = group.archive_pattern();
        path.push(&archive);
        Marker::new(&binary.name, vec![path.join("/")])
    }
}

/// The longest name of a file, in bytes.
const MAX_NAME: usize = 255;

/// The path with `/`, if it is relative, has no `..`, and each name in it is one that files can have.
pub fn plain(path: &Path) -> Option<String> {
    let is_name = |name: &&str| name.len() <= MAX_NAME && !name.contains('\0');
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str().filter(is_name)?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Whether a relative path leaves its starting directory.
fn leads_out(path: &Path) -> bool {
    let mut depth = 0;
    path.components().any(|part| {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth -= 1,
            _ => {}
        }
        depth < 0
    })
}

fn existing_ancestor(path: &Path) -> &Path {
    path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(path)
}
