//! A file that several readers share.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use crate::platform::FileExt;

/// Reads a file at its own position: readers of one open file do not disturb each other.
#[derive(Debug)]
pub struct SharedFile {
    file: Arc<File>,
    position: u64,
}

impl SharedFile {
    /// Reads `file` from its start.
    pub fn new(file: File) -> Self {
        let file = Arc::new(file);
        Self { file, position: 0 }
    }

    /// Another reader of the same open file, at its start.
    pub fn again(&self) -> Self {
        let file = Arc::clone(&self.file);
        Self { file, position: 0 }
    }
}

impl Read for SharedFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for SharedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.file.metadata()?.len().checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
