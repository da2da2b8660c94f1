//! Finds leftovers of interrupted runs: output still under its hidden name.

use std::path::{Path, PathBuf};

use kpack_core::publish::is_leftover;
use walkdir::DirEntry;

use crate::Error;
use crate::input;

/// The message for a leftover.
pub const TEXT: &str = "leftover of an interrupted run; run the command again to replace it";

/// Whether this entry of a directory is a leftover. What the walk starts at is none, whatever it is called: the
/// caller asked for it.
pub fn is_leftover_entry(entry: &DirEntry) -> bool {
    entry.depth() > 0 && is_leftover(entry.file_name())
}

/// The directories in `directory`, sorted.
pub fn directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = input::list(directory)?;
    found.retain(|path| path.is_dir());
    Ok(found)
}
