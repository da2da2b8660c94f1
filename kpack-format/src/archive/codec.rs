//! Compression of single code objects.

use super::{ArchiveError, Scheme};
use crate::Sha256;

/// Compresses code objects, one after the other. One for each thread.
pub struct Encoder {
    scheme: Scheme,
    level: i32,
}

/// A code object as it will be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// What goes into the archive.
    pub bytes: Vec<u8>,
    /// Size of the code object in bytes.
    pub original_size: u64,
    /// SHA-256 of the code object.
    pub checksum: Sha256,
}

impl Encoder {
    /// For the given scheme, and Zstandard level where it applies (3 is zstd's own default).
    pub fn new(scheme: Scheme, level: i32) -> Result<Self, ArchiveError> {
        Ok(Self { scheme, level })
    }

    /// Compresses one code object whose SHA-256 is `checksum`. The same bytes give the same result.
    pub fn encode(
        &mut self,
        code_object: &[u8],
        checksum: Sha256,
    ) -> Result<Encoded, ArchiveError> {
        let _ = (self.scheme, self.level, code_object, checksum);
        todo!()
    }
}
