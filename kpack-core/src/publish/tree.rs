//! What is below an open directory: listed, and removed. Whoever made a tree decides how deep it is, so nothing here
//! calls itself for what is deeper, and one directory is open at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::directory::Directory;
use crate::Error;
use crate::platform::Kind;

/// What is in a directory, by relative path.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DirectoryListing {
    /// All entries but directories, and whether each is a symbolic link.
    pub files: BTreeMap<PathBuf, bool>,
    /// The directories.
    pub directories: BTreeSet<PathBuf>,
}

impl Directory {
    /// Its entries, by relative path: directories, and all else. Links are not followed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn walk(&self) -> Result<DirectoryListing, Error> {
        let mut files = BTreeMap::new();
        let directories = self.walk_with(&mut |at, name, kind| {
            files.insert(at.join(name), kind == Kind::Symlink);
        })?;
        Ok(DirectoryListing { files, directories })
    }

    /// The directories below it, by relative path. Links are not followed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn directories(&self) -> Result<BTreeSet<PathBuf>, Error> {
        self.walk_with(&mut |_, _, _| {})
    }

    /// Returns the directories, and calls `each` with the directory, name and kind of all else.
    fn walk_with(
        &self,
        each: &mut dyn FnMut(&Path, &OsStr, Kind),
    ) -> Result<BTreeSet<PathBuf>, Error> {
        let mut directories = BTreeSet::new();
        let mut left = vec![PathBuf::new()];
        while let Some(at) = left.pop() {
            let here = self.below(&at)?;
            for (name, kind) in here.entries()? {
                let kind = match kind {
                    None => here.kind(&name)?,
                    known => known,
                };
                match kind {
                    Some(Kind::Directory) => {
                        left.push(at.join(&name));
                        directories.insert(at.join(&name));
                    }
                    Some(kind) => each(&at, &name, kind),
                    None => {}
                }
            }
        }
        Ok(directories)
    }

    /// Removes an entry of it that may be missing, with all that is in it, even in directories that may not be written to.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Changed`] if somebody moves a directory in it meanwhile.
    pub fn remove_tree(&self, name: &OsStr) -> Result<(), Error> {
        let mut here = self.again()?;
        // For each directory above, the innermost last: which it is, and the name of the one in it.
        let mut above: Vec<((u64, u64), OsString)> = Vec::new();
        // What is still to be removed from each of them, and from this one.
        let mut left = vec![vec![name.to_owned()]];
        loop {
            let is_own = !above.is_empty();
            if let Some(name) = left.last_mut().and_then(Vec::pop) {
                if let Some(opened) = here.insist(is_own, &|here| here.open_or_remove(&name))? {
                    above.push((here.id()?, name));
                    left.push(opened.names()?);
                    here = opened;
                }
                continue;
            }
            left.pop();
            let Some((id, name)) = above.pop() else {
                return Ok(());
            };
            // Windows keeps a directory that is open.
            here = here.insist(true, &|here| here.parent(id))?;
            here.insist(!above.is_empty(), &|here| here.remove_emptied(&name))?;
        }
    }

    /// Opens a directory that is to be removed, even if its mode forbids that, and removes anything else.
    fn open_or_remove(&self, name: &OsStr) -> Result<Option<Self>, Error> {
        if self.kind(name)? != Some(Kind::Directory) {
            return self.remove(name).map(|()| None);
        }
        let opened = self.open_up(name);
        match opened.map_err(|e| Error::io(&self.path().join(name), "remove", e))? {
            // A link, or a file, is there by now.
            None => self.remove(name).map(|()| None),
            opened => Ok(opened),
        }
    }

    /// Does `act`. If it is not permitted and the directory `is_own`, permits it, and tries again.
    fn insist<T>(&self, is_own: bool, act: &dyn Fn(&Self) -> Result<T, Error>) -> Result<T, Error> {
        match act(self) {
            Err(Error::Io { source, .. })
                if is_own && source.kind() == io::ErrorKind::PermissionDenied =>
            {
                let set = self.set_mode(0o700);
                set.map_err(|e| Error::io(self.path(), "remove", e))?;
                act(self)
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes this many directories, each in the one before, and a file in the last.
    fn make_deep(root: &Directory, levels: usize) {
        let mut here = root.again().unwrap();
        for _ in 0..levels {
            here = here.provide_below("d".as_ref()).unwrap();
        }
        here.create("file".as_ref()).unwrap();
    }

    #[test]
    fn trees_of_any_depth_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = Directory::open(directory.path()).unwrap();
        // The paths are longer than the system accepts, and there are more directories than a process may open.
        make_deep(&root, 5000);
        root.remove_tree("d".as_ref()).unwrap();
        assert_eq!(root.names().unwrap(), Vec::<OsString>::new());
    }

    #[test]
    fn trees_are_listed_without_a_call_for_each_level() {
        let directory = tempfile::tempdir().unwrap();
        let root = Directory::open(directory.path()).unwrap();
        make_deep(&root, 1000);
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        let walked = thread.spawn(move || (root.walk().unwrap(), root));
        let (content, root) = walked.unwrap().join().unwrap();
        assert_eq!((content.directories.len(), content.files.len()), (1000, 1));
        root.remove_tree("d".as_ref()).unwrap();
    }

    #[test]
    fn nothing_is_removed_where_a_directory_was_moved_to() {
        let directory = tempfile::tempdir().unwrap();
        let root = Directory::open(directory.path()).unwrap();
        make_deep(&root, 2);
        let inner = root.below("d/d".as_ref()).unwrap();
        let id = root.below("d".as_ref()).unwrap().id().unwrap();
        std::fs::rename(directory.path().join("d/d"), directory.path().join("moved")).unwrap();
        assert!(matches!(inner.parent(id), Err(Error::Changed { .. })));
        assert!(inner.parent(root.id().unwrap()).is_ok());
    }

    #[test]
    fn directories_that_may_not_be_written_to_are_removed() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), "").unwrap();
        for mode in [0o000, 0o500] {
            for path in [&deep, &directory.path().join("a")] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            Directory::open(directory.path()).unwrap().remove_tree("a".as_ref()).unwrap();
            assert!(!directory.path().join("a").exists());
            std::fs::create_dir_all(&deep).unwrap();
        }
    }
}
