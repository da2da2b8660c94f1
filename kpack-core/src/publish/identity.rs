//! Recognises a file and its content.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::Stat;

use crate::Error;
use crate::files;

/// Tells whether a path still leads to the same file with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Identity {
    /// The identity of an open file at `path`.
    pub fn of(path: &Path, file: &File) -> Result<Self, Error> {
        let metadata = file.metadata().map_err(|e| Error::io(path, "read", e))?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    /// The identity that a directory's entry tells.
    pub(super) fn of_entry(entry: &Stat) -> Self {
        Self {
            device: entry.st_dev,
            inode: entry.st_ino,
            size: entry.st_size as u64,
            modified: (entry.st_mtime, entry.st_mtime_nsec as i64),
        }
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was replaced or modified.
    pub fn open(&self, path: &Path) -> Result<File, Error> {
        let file = files::open(path)?;
        match Self::of(path, &file)? == *self {
            true => Ok(file),
            false => Err(Error::changed(path)),
        }
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}
