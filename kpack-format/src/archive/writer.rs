//! Writing and merging archives.

use std::io::{Read, Seek, Write};

use super::{Archive, ArchiveError, Encoded, Scheme};
use crate::{Sha256, TargetId};

/// Collects code objects for one archive. Stored bytes go to the spool as they come and only the
/// TOC is held; [`finish`](Self::finish) puts them in their canonical order, so that the same
/// entries give the same file whatever the order in which they came.
#[derive(Debug)]
pub struct ArchiveWriter<S> {
    #[allow(dead_code)]
    spool: S,
}

/// What [`ArchiveWriter::finish`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of TOC entries.
    pub kernel_count: u64,
    /// SHA-256 of the file.
    pub checksum: Sha256,
}

impl<S: Read + Write + Seek> ArchiveWriter<S> {
    /// `group_name` is module and component (`rocblas_lib`); `spool` an empty scratch file.
    pub fn new(spool: S, group_name: &str, target: &TargetId, scheme: Scheme) -> Self {
        let _ = (group_name, target, scheme);
        Self { spool }
    }

    /// Whether a code object with this checksum is stored already.
    pub fn contains(&self, checksum: &Sha256) -> bool {
        let _ = checksum;
        todo!()
    }

    /// Adds `kernel` with a code object that [`contains`](Self::contains) knows.
    pub fn add_stored(&mut self, kernel: &str, checksum: &Sha256) -> Result<(), ArchiveError> {
        let _ = (kernel, checksum);
        todo!()
    }

    /// Adds `kernel`. A code object that is stored already is not stored again. A kernel that is
    /// there already with other content is an error.
    pub fn add(&mut self, kernel: &str, code_object: &Encoded) -> Result<(), ArchiveError> {
        let _ = (kernel, code_object);
        todo!()
    }

    /// Takes over the entries of `old` whose kernel name `keep` accepts, stored bytes as they are.
    /// Where the schemes differ, code objects are stored anew with `encoder`.
    pub fn merge<R: Read + Seek>(
        &mut self,
        old: &mut Archive<R>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<(), ArchiveError> {
        let _ = (old, &keep);
        todo!()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// Writes the archive. `out` is written from its current position and not flushed to disk.
    pub fn finish<W: Write>(self, out: W) -> Result<Written, ArchiveError> {
        let _ = out;
        todo!()
    }
}
