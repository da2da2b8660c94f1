//! What a run that was killed leaves behind: output under the hidden name that it was made under.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// What is to be said of one.
pub(crate) const TEXT: &str = "leftover of an interrupted run; run the command again to replace it";

/// Whether output is made under such a name, or what is replaced put aside under it: `.NAME.tmp`,
/// `.NAME.old`.
pub(crate) fn is_leftover(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let inside = name.strip_prefix('.').unwrap_or_default();
    let ending = inside.strip_suffix(".tmp").or(inside.strip_suffix(".old"));
    ending.is_some_and(|name| !name.is_empty())
}

/// The directories in `directory`, by name.
pub(crate) fn directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::io(directory, "list", error);
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        found.push(entry.map_err(failed)?.path());
    }
    found.retain(|path| path.is_dir());
    found.sort();
    Ok(found)
}

/// The leftovers among these directories.
pub(crate) fn leftovers(directories: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let directories = directories.iter();
    directories.filter(|path| is_leftover(path.file_name().unwrap_or_default()))
}
