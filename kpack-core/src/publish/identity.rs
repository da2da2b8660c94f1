//! Recognises a file and its content.

use std::fs::File;
use std::path::Path;

use crate::Error;
use crate::files;
use crate::platform::Facts;

/// Tells whether a path still leads to the same file with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(Facts);

impl From<Facts> for Identity {
    fn from(facts: Facts) -> Self {
        Self(facts)
    }
}

impl Identity {
    /// The identity of an open file at `path`.
    pub fn of(path: &Path, file: &File) -> Result<Self, Error> {
        let facts = Facts::of(file).map_err(|e| Error::io(path, "read", e))?;
        Ok(Self(facts))
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
