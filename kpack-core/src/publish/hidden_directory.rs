//! Hidden directories in which one run at a time makes output.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::directory::{CreatedDirectories, Directory};
use super::hidden_name::{hidden, hidden_beside};
use crate::platform::set_mode_at;
use crate::{Error, ids};

/// The name of kpack's directory in a hidden one.
const OWN: &str = "kpack";

/// `.NAME.tmp/.kpack.tmp`: a directory of kpack's own in one of a name that users may have used for files of theirs,
/// which stay. It is locked as long as this lives; then both are removed, if they are empty.
#[derive(Debug)]
pub struct HiddenDirectory {
    path: PathBuf,
    /// Closed before it is removed.
    directory: Directory,
    _outer: Outer,
}

/// The outer directory, which is locked. It and kpack's own in it are removed at the end, if they are empty.
#[derive(Debug)]
struct Outer {
    lock: Directory,
    /// Their parents as well, as far as they were created.
    _made: CreatedDirectories,
}

impl HiddenDirectory {
    /// The path of the one beside `path`.
    pub fn beside(path: &Path) -> PathBuf {
        hidden_beside(path).join(hidden(OWN))
    }

    /// Waits for the lock on the hidden directory beside `path`, creating it if missing. What an interrupted run
    /// left in it is still there.
    ///
    /// # Errors
    /// [`Error::Refused`] if a symbolic link is in its place; [`Error::Io`].
    pub fn lock(path: &Path) -> Result<Self, Error> {
        let outer = hidden_beside(path);
        let mut made = CreatedDirectories::default();
        loop {
            // The contents will be removed, so do not follow a link.
            if outer.is_symlink() {
                let reason = "a symbolic link, but kpack writes unfinished output here; remove it";
                return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &outer, reason));
            }
            let lock = Directory::make(&outer, &mut made)?;
            lock.lock()?;
            // Another run may have removed it when it was done, while this one waited.
            if lock.is_still(Directory::open(&outer))? {
                return Ok(Self {
                    path: Self::beside(path),
                    directory: lock.make_below(hidden(OWN).as_ref(), &mut made)?,
                    _outer: Outer { lock, _made: made },
                });
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Removes the entries whose names `which` accepts.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn empty(&self, which: &dyn Fn(&OsStr) -> bool) -> Result<(), Error> {
        for name in self.directory.names()?.iter().filter(|name| which(name)) {
            remove_tree(&self.path.join(name))?;
        }
        Ok(())
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        self.lock.remove_empty(hidden(OWN).as_ref());
        self.lock.remove_itself();
    }
}

/// Removes a file or directory that may be missing, with directories in it that may not be written to.
pub fn remove_tree(path: &Path) -> Result<(), Error> {
    let removed = match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(path);
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove", error))
        }
        _ => Ok(()),
    }
}

/// Lets the owner write into a directory and those in it, as far as possible.
fn make_writable(directory: &Path) {
    let _ = set_mode_at(directory, 0o700);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}
