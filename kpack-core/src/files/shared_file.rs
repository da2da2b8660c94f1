//! A file that several readers share.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Deref;
use std::sync::Arc;

use crate::platform::FileExt;

/// Reads a file at its own position: readers of one open file do not disturb each other. The system's position of an
/// open file, which clones of it share, is for files that one reader has.
#[derive(Debug, Clone)]
pub struct SharedFile<F = Arc<File>> {
    file: F,
    position: u64,
}

impl<F: Deref<Target = File>> SharedFile<F> {
    /// Reads `file` from its start.
    pub fn of(file: F) -> Self {
        Self { file, position: 0 }
    }
}

impl SharedFile {
    /// Reads `file` from its start.
    pub fn new(file: File) -> Self {
        Self::of(Arc::new(file))
    }

    /// Another reader of the same open file, at its start.
    pub fn again(&self) -> Self {
        Self::of(Arc::clone(&self.file))
    }
}

impl<F: Deref<Target = File>> Read for SharedFile<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // The system refuses these offsets, as if reading had failed.
        if self.position > i64::MAX as u64 {
            return Ok(0);
        }
        let read = self.file.read_at(bytes, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl<F: Deref<Target = File>> Seek for SharedFile<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(&self.file, self.position, to)?;
        Ok(self.position)
    }
}

/// The position that `to` stands for, of who is at `position` in `file`.
pub fn sought(file: &File, position: u64, to: SeekFrom) -> io::Result<u64> {
    let position = match to {
        SeekFrom::Start(position) => Some(position),
        SeekFrom::Current(offset) => position.checked_add_signed(offset),
        SeekFrom::End(offset) => file.metadata()?.len().checked_add_signed(offset),
    };
    position.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
