//! Reading archives.

use std::io::{Read, Seek};

use super::{ArchiveError, Toc};

/// An archive open for reading: its TOC, and code objects on demand.
#[derive(Debug)]
pub struct Archive<R> {
    #[allow(dead_code)]
    source: R,
    toc: Toc,
}

impl<R: Read + Seek> Archive<R> {
    /// Reads header and TOC.
    pub fn open(source: R) -> Result<Self, ArchiveError> {
        let _ = source;
        todo!()
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        &self.toc
    }

    /// Offset and size of the stored (compressed) code object `ordinal`, in bytes.
    pub fn stored(&mut self, ordinal: u32) -> Result<(u64, u64), ArchiveError> {
        let _ = ordinal;
        todo!()
    }

    /// The code object of `kernel` for `target`, decompressed; its size, and its checksum where
    /// the archive tells one, are verified.
    pub fn read(&mut self, kernel: &str, target: &str) -> Result<Vec<u8>, ArchiveError> {
        let _ = (kernel, target);
        todo!()
    }
}
