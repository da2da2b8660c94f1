//! A file in memory.

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
    /// The file must not be changed or made shorter for as long as the mapping lives.
    pub(crate) unsafe fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the caller keeps the file as it is.
        unsafe { Mmap::map(file) }.map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
