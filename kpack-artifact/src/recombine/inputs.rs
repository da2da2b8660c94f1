//! What is read of the files in shards.

use std::fmt;
use std::path::Path;

use kpack_core::Error;
use kpack_format::Sha256;
use kpack_split::input::Archives;

use crate::classify::Parsed;
use crate::copies::Copies;
use crate::mark;
use crate::tree::Tree;

/// The archives and digests of inputs, and the copies that were made while they were read.
#[derive(Default)]
pub(super) struct Inputs {
    pub(super) archives: Archives,
    pub(super) copies: Copies,
}

impl fmt::Debug for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs").finish_non_exhaustive()
    }
}

impl Inputs {
    /// Reads an artifact directory of a shard.
    pub(super) fn tree(&self, shard: &str, root: &Path) -> Result<Tree, Error> {
        let parsed = Parsed { binaries: None, archives: Some(&self.archives.parsed) };
        Tree::read_once(shard, root, &mark::databases(root)?, parsed)
    }

    /// The SHA-256 of a file that is only compared.
    pub(super) fn digest(&self, path: &Path) -> Result<Sha256, Error> {
        self.archives.digest_by(path, |path| self.copies.digest(path, false))
    }

    /// The SHA-256 of a file that the output has too, if all is well.
    pub(super) fn digest_of_output(&self, path: &Path) -> Result<Sha256, Error> {
        self.archives.digest_by(path, |path| self.copies.digest(path, true))
    }
}
