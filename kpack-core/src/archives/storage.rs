//! How archives are stored.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Scheme};
use kpack_format::names::Group;

use super::spirv::Spirv;
use crate::Error;
use crate::parallel::processors;
use crate::publish::scratch_file;

/// How archives are stored, and by how many threads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Storage {
    /// How code objects are stored.
    pub scheme: Scheme,
    /// The Zstandard level, if the scheme uses one.
    pub level: i32,
    /// Number of compressing threads.
    pub jobs: NonZeroUsize,
    /// What to do with SPIR-V.
    pub spirv: Spirv,
    /// What to do with debug sections.
    pub debug: DebugInfo,
    /// Whether archives for variants of a processor get the plain code that they lack.
    pub complete_variants: bool,
}

/// What to do with the debug sections of code objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DebugInfo {
    /// Keep them.
    #[default]
    Keep,
    /// Remove them.
    Strip,
    /// Remove them, and write the complete code objects into this directory, named after their build IDs as
    /// debuggers look for them. Code objects without a build ID keep them.
    StripTo(PathBuf),
}

impl Storage {
    /// Zstandard at level 3, one thread per processor; bundles with SPIR-V and debug sections stay. Needs the feature `compression` of `kpack-format`.
    pub fn zstd() -> Self {
        Self {
            scheme: Scheme::ZstdPerKernel,
            level: 3,
            jobs: processors(),
            spirv: Spirv::default(),
            debug: DebugInfo::default(),
            complete_variants: false,
        }
    }

    /// Code objects as they are, one thread per processor.
    pub fn uncompressed() -> Self {
        Self { scheme: Scheme::None, ..Self::zstd() }
    }

    /// The archive at `key`, of a group for a target. A new one keeps its code objects in the directory
    /// `scratch`.
    pub fn archive<'a, K: Ord>(
        &self,
        archives: &'a mut BTreeMap<K, ArchiveWriter<File>>,
        key: K,
        (group, target): (&Group, &TargetId),
        scratch: &Path,
    ) -> Result<&'a mut ArchiveWriter<File>, Error> {
        Ok(match archives.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let spool = scratch_file(scratch)?;
                new.insert(ArchiveWriter::new(spool, group, target, self.scheme).level(self.level))
            }
        })
    }
}
