//! Directories that are made beside the one that they replace.

use std::fs;
use std::io;
use std::path::Path;

use crate::Error;

/// Removes a directory that may be missing, with all that is in it.
pub fn remove_directory(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if !is_missing(&error) => Err(Error::io(path, "remove", error)),
        _ => Ok(()),
    }
}

/// Gives the directory `new` the name `path`. What has that name is called `old`, which has to be
/// free, until then, and removed at the end. On failure it has its name again.
pub fn replace_directory(new: &Path, path: &Path, old: &Path) -> Result<(), Error> {
    let failed = |e| Error::io(path, "replace", e);
    let replaced = match fs::rename(path, old) {
        Err(error) if !is_missing(&error) => return Err(failed(error)),
        result => result.is_ok(),
    };
    if let Err(error) = fs::rename(new, path) {
        if replaced {
            let _ = fs::rename(old, path);
        }
        return Err(failed(error));
    }
    remove_directory(old)
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
