//! Finds leftovers of interrupted runs: output still under its hidden name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::input;

/// The message for a leftover.
pub const TEXT: &str = "leftover of an interrupted run; run the command again to replace it";

/// Whether kpack uses this name for unfinished output (`.NAME.tmp`) or for something it is
/// replacing (`.NAME.old`).
pub fn is_leftover(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let inside = name.strip_prefix('.').unwrap_or_default();
    let ending = inside.strip_suffix(".tmp").or(inside.strip_suffix(".old"));
    ending.is_some_and(|name| !name.is_empty())
}

/// The directories in `directory`, sorted.
pub fn directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = input::list(directory)?;
    found.retain(|path| path.is_dir());
    Ok(found)
}

/// The leftovers among these directories.
pub fn leftovers(directories: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let directories = directories.iter();
    directories.filter(|path| is_leftover(path.file_name().unwrap_or_default()))
}
