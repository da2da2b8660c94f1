//! Opens archives, and keeps some of them open for the next check or binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kpack_format::archive::{Archive, Toc};
use kpack_format::{Sha256, TargetId};

use super::{digest, open_archive, or_refused};
use crate::Error;
use crate::parallel::lock;

/// An open archive, which several binaries may share.
pub(crate) type OpenArchive = Arc<Mutex<Archive<BufReader<File>>>>;

/// Maximum number of unused archives that stay open: the system limits open files, and trees have
/// thousands of archives.
const MOST_UNUSED: usize = 40;

/// The archives opened last, and the SHA-256 of files.
#[derive(Default)]
pub(crate) struct Archives {
    open: Mutex<BTreeMap<PathBuf, OpenArchive>>,
    digests: Mutex<BTreeMap<PathBuf, Sha256>>,
}

impl Archives {
    /// The archive at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<OpenArchive, Error> {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some(known) = lock(&self.open).get(&real) {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(Mutex::new(open_archive(path)?));
        let mut known = lock(&self.open);
        if known.len() >= MOST_UNUSED {
            known.retain(|_, archive| Arc::strong_count(archive) > 1);
        }
        Ok(Arc::clone(known.entry(real).or_insert(opened)))
    }

    /// The table of the archive at `path`.
    pub(crate) fn toc(&self, path: &Path) -> Result<Toc, Error> {
        Ok(lock(&*self.open(path)?).toc().clone())
    }

    /// Whether an archive named like one for `target` is one. If a module's name is a prefix of
    /// another's, the other's archives look like archives for odd targets. An unreadable archive
    /// counts.
    pub(crate) fn is_for(&self, path: &Path, target: &TargetId) -> Result<bool, Error> {
        let toc = or_refused(self.toc(path))?;
        Ok(toc.map_or(true, |toc| toc.gfx_arch_family == target.to_string()))
    }

    /// The targets that a lookup gets code for in the archive at `path`. It tries one with a target in its name
    /// for GPUs that run code for that target. An unreadable archive counts as `named`.
    pub(crate) fn targets(
        &self,
        path: &Path,
        named: Option<&TargetId>,
    ) -> Result<BTreeSet<TargetId>, Error> {
        let Ok(archive) = or_refused(self.open(path))? else {
            return Ok(named.cloned().into_iter().collect());
        };
        let archive = lock(&archive);
        let toc = archive.toc();
        let mut targets = BTreeSet::from([&toc.gfx_arch_family]);
        targets.extend(&toc.gfx_arches);
        toc.kernels
            .values()
            .for_each(|of| targets.extend(of.keys()));
        let targets = targets.into_iter().filter_map(|target| target.parse().ok());
        let is_tried =
            |target: &TargetId| named.is_none_or(|named| target.compatible().contains(named));
        Ok(targets.filter(is_tried).collect())
    }

    /// The SHA-256 of the file at `path`, archive or not, which is read once.
    pub(crate) fn digest(&self, path: &Path) -> Result<Sha256, Error> {
        if let Some(known) = lock(&self.digests).get(path) {
            return Ok(*known);
        }
        let read = digest(path)?;
        lock(&self.digests).insert(path.to_owned(), read);
        Ok(read)
    }
}
