//! Scratch files.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::directory::Directory;
use super::staged_file::StagedFile;
use crate::Error;

/// A nameless file in `directory`, gone when closed, for data not yet written to an archive. It is
/// on the archives' file system, since that has room for them.
pub fn scratch_file(directory: &Path) -> Result<File, Error> {
    Directory::open(directory)?.scratch_file()
}

impl Directory {
    /// As [`scratch_file`], in it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn scratch_file(&self) -> Result<File, Error> {
        match self.create_nameless() {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(Error::io(self.path(), "write in", error));
            }
            // Not every file system supports nameless files.
            Err(_) => {}
        }
        let named = StagedFile::create(Arc::new(self.again()?), "scratch".as_ref())?;
        let file = named.file().try_clone();
        file.map_err(|e| Error::io(named.path(), "create", e))
    }
}
