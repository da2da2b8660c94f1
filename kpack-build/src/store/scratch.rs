//! Scratch files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::directory::Directory;
use super::staged_file::StagedFile;
use crate::Error;

/// A file in `directory` that has no name and is gone when it is closed: for what is not written to
/// an archive yet. On the file system of the archives, since that has room for them.
pub fn scratch_file(directory: &Path) -> Result<File, Error> {
    let directory = Directory::open(directory)?;
    if let Ok(file) = directory.create_nameless() {
        return Ok(file);
    }
    // Not every file system has them.
    let named = StagedFile::create(Arc::new(directory), "scratch".as_ref())?;
    let file = named.file().try_clone();
    file.map_err(|e| Error::io(named.path(), "create", e))
}
