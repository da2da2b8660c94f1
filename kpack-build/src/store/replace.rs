//! Directories that are made beside the one that they replace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// Removes a directory that may be missing, with all that is in it.
pub fn remove_directory(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if !is_missing(&error) => Err(Error::io(path, "remove", error)),
        _ => Ok(()),
    }
}

/// Renames that belong together: unless all are made, those that were are undone, the last first.
#[derive(Debug, Default)]
pub struct Renames {
    made: Vec<(PathBuf, PathBuf)>,
}

impl Renames {
    /// Gives `new` the name `path`, which is free.
    pub fn rename(&mut self, new: &Path, path: &Path) -> Result<(), Error> {
        fs::rename(new, path).map_err(|e| Error::io(path, "replace", e))?;
        self.made.push((new.to_owned(), path.to_owned()));
        Ok(())
    }

    /// Gives what is at `path`, which may be nothing, the name `aside`, which is free.
    pub fn set_aside(&mut self, path: &Path, aside: &Path) -> Result<(), Error> {
        match fs::rename(path, aside) {
            Ok(()) => self.made.push((path.to_owned(), aside.to_owned())),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(Error::io(path, "replace", error)),
        }
        Ok(())
    }

    /// All are made.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Renames {
    fn drop(&mut self) {
        for (before, now) in self.made.iter().rev() {
            let _ = fs::rename(now, before);
        }
    }
}

/// Gives the directory `new` the name `path`. What has that name is called `old`, which has to be
/// free, until then. On failure it has its name again.
pub fn replace_directory(new: &Path, path: &Path, old: &Path) -> Result<(), Error> {
    let mut renames = Renames::default();
    renames.set_aside(path, old)?;
    renames.rename(new, path)?;
    renames.keep();
    Ok(())
}

/// Gives `old` its name again where a run was killed between the two renames of
/// [`replace_directory`].
pub fn recover_directory(path: &Path, old: &Path) -> Result<(), Error> {
    match fs::rename(old, path) {
        Err(error) if !is_missing(&error) => Err(Error::io(old, "rename", error)),
        _ => Ok(()),
    }
}

/// Whether there was nothing, or a file where a directory above it would be.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
