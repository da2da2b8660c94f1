//! Maps a file into memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A file that is mapped for reading.
#[derive(Debug)]
pub(crate) struct Mapping(Mmap);

impl Mapping {
    /// Maps `file` as it is now.
    ///
    /// # Safety
    /// Nobody may change or truncate the file while the mapping lives.
    pub(crate) unsafe fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the caller leaves the file unchanged.
        unsafe { Mmap::map(file) }.map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
