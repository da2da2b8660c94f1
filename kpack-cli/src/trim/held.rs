//! The given directories, held open from the start. Nothing below them is opened, written or removed by its path, which
//! may lead elsewhere by then: somebody may have put a link in the place of a directory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::Error;
use kpack_core::publish::{Directory, Identity, StagedFile, TreeLock, replace};
use kpack_doctor::internal::Root;
use kpack_split::input::until_unchanged;

use super::tree::Given;

/// Open directories, and the locks on all that is in them.
#[derive(Debug)]
pub(super) struct Held {
    directories: Vec<Arc<Directory>>,
    /// The directory that was found last: files come in the order of their paths.
    last: RefCell<Option<Arc<Directory>>>,
    _lock: Option<TreeLock>,
}

/// A name in an open directory.
#[derive(Debug, Clone)]
pub(super) struct Spot<'p> {
    /// The path by which messages name it.
    pub(super) path: &'p Path,
    pub(super) directory: Arc<Directory>,
    pub(super) name: &'p OsStr,
}

impl Held {
    /// Opens the directories of what is given, and finds out what is given again if another run has replaced one of them
    /// meanwhile. If the run `changes` files, it waits for other runs that change the same trees: what they leave is what
    /// this one reads.
    pub(super) fn open(
        root: &Root,
        paths: &[PathBuf],
        changes: bool,
        waits: &dyn Fn(&Path),
    ) -> Result<(Vec<Given>, Self), Error> {
        until_unchanged(|| {
            let given = Given::find(root, paths)?;
            let directories = directories(root, &given)?;
            if !changes {
                return Ok((given, Self::new(directories, None)));
            }
            let lock = TreeLock::wait(directories.iter().map(|directory| &**directory), waits)?;
            let now = Given::find(root, paths)?;
            let is_still = |(one, other): (&Arc<Directory>, &Arc<Directory>)| one.is(other);
            if now == given && directories.iter().zip(&self::directories(root, &now)?).all(is_still)
            {
                return Ok((given, Self::new(directories, Some(lock))));
            }
            Err(Error::changed(given[0].directory()))
        })
    }

    fn new(directories: Vec<Arc<Directory>>, lock: Option<TreeLock>) -> Self {
        Self { directories, last: RefCell::new(None), _lock: lock }
    }

    /// The directories of what is given.
    pub(super) fn directories(&self) -> &[Arc<Directory>] {
        &self.directories
    }

    /// Finds the directory of `path`, which is below a given one.
    ///
    /// # Errors
    /// [`Error::Refused`] if a directory above it is none any more, such as a link; [`Error::Io`].
    pub(super) fn find<'p>(&self, path: &'p Path) -> Result<Spot<'p>, Error> {
        let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
        Ok(Spot { path, directory: self.directory(parent)?, name })
    }

    /// Whether something is at `path`, which is below a given directory.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn is_there(&self, path: &Path) -> Result<bool, Error> {
        let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
        if let Some(last) = self.last_at(parent) {
            return last.has(name);
        }
        let Some((directory, inside)) = nearest(&self.directories, parent) else {
            return Ok(false);
        };
        let found = directory.find_below(inside)?.map(Arc::new);
        let is_there = found.as_ref().map_or(Ok(false), |directory| directory.has(name));
        if let Some(found) = found {
            *self.last.borrow_mut() = Some(found);
        }
        is_there
    }

    /// The directory that was found last, if it is the one at `path`.
    fn last_at(&self, path: &Path) -> Option<Arc<Directory>> {
        self.last.borrow().as_ref().filter(|last| last.path() == path).cloned()
    }

    /// Opens the directory at `path`, which is a given one or below one.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(super) fn directory(&self, path: &Path) -> Result<Arc<Directory>, Error> {
        if let Some(last) = self.last_at(path) {
            return Ok(last);
        }
        let Some((directory, inside)) = nearest(&self.directories, path) else {
            return Err(Error::changed(path));
        };
        let found = Arc::new(directory.below(inside)?);
        *self.last.borrow_mut() = Some(Arc::clone(&found));
        Ok(found)
    }
}

/// The nearest of these directories that `path` is in or that is there itself, so that as few as possible are opened, and
/// the path in it.
pub(super) fn nearest<'d, 'p>(
    directories: &'d [Arc<Directory>],
    path: &'p Path,
) -> Option<(&'d Arc<Directory>, &'p Path)> {
    let inside = directories.iter().filter_map(|directory| {
        path.strip_prefix(directory.path()).ok().map(|inside| (directory, inside))
    });
    inside.min_by_key(|(_, inside)| inside.components().count())
}

/// Each once, since many files may be given that are in one directory.
fn directories(root: &Root, given: &[Given]) -> Result<Vec<Arc<Directory>>, Error> {
    let paths = BTreeSet::from_iter(given.iter().map(Given::directory));
    paths.into_iter().map(|path| root.open(path).map(Arc::new)).collect()
}

impl Spot<'_> {
    /// Opens the regular file there.
    ///
    /// # Errors
    /// [`Error::Changed`] if there is none any more; [`Error::Io`].
    pub(super) fn open(&self) -> Result<File, Error> {
        kpack_core::interrupt::check(self.path, "open")?;
        self.directory.open_file(self.name)?.ok_or_else(|| Error::changed(self.path))
    }

    /// What is there: a file, or a symbolic link.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn identity(&self) -> Result<Identity, Error> {
        self.directory.identity(self.name)?.ok_or_else(|| Error::changed(self.path))
    }

    /// Replaces the file there, which is `old`, with one that has its owner, mode and attributes, and these `bytes`.
    ///
    /// # Errors
    /// [`Error::Changed`] if it is another one by now; [`Error::Io`].
    pub(super) fn rewrite(&self, old: &File, bytes: &[u8]) -> Result<(), Error> {
        let directory = Arc::clone(&self.directory);
        let (staged, ()) = StagedFile::write_in(directory, self.name, |staged| {
            staged.replaces(old)?;
            let (written, _) = staged.fill(old, |mut file| {
                file.write_all(bytes).map_err(|e| Error::io(self.path, "write", e))
            })?;
            Ok(written)
        })?;
        replace(staged)
    }
}
