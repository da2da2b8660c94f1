//! How archives are stored.

use std::fs::File;
use std::num::NonZeroUsize;

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Scheme};
use kpack_format::names::Group;

use crate::parallel::processors;

/// How archives are stored, and by how many threads.
#[derive(Debug, Clone, Copy)]
pub struct Storage {
    /// How code objects are stored.
    pub scheme: Scheme,
    /// The Zstandard level, if the scheme uses one.
    pub level: i32,
    /// Number of compressing threads.
    pub jobs: NonZeroUsize,
}

impl Default for Storage {
    /// Zstandard at level 3 (uncompressed without feature `compression` of `kpack-format`), one thread
    /// per processor.
    fn default() -> Self {
        Self {
            scheme: Scheme::default(),
            level: 3,
            jobs: processors(),
        }
    }
}

impl Storage {
    /// An empty archive of a group for a target, written to `spool`.
    pub fn writer(&self, spool: File, group: &Group, target: &TargetId) -> ArchiveWriter<File> {
        ArchiveWriter::new(spool, group, target, self.scheme).level(self.level)
    }
}
