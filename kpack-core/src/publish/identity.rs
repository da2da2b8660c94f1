//! Recognises a file and its content.

use std::fs::File;
use std::path::Path;

use crate::Error;
use crate::files;
use crate::platform::FileIdentity;

/// Tells whether a path still leads to the same file with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(FileIdentity);

impl From<FileIdentity> for Identity {
    fn from(identity: FileIdentity) -> Self {
        Self(identity)
    }
}

impl Identity {
    /// The identity of an open file at `path`.
    pub fn of(path: &Path, file: &File) -> Result<Self, Error> {
        let identity = FileIdentity::of(file).map_err(|e| Error::io(path, "read", e))?;
        Ok(Self(identity))
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was replaced or modified.
    pub fn open(&self, path: &Path) -> Result<File, Error> {
        let file = files::open(path)?;
        if Self::of(path, &file)? == *self { Ok(file) } else { Err(Error::changed(path)) }
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }
}
