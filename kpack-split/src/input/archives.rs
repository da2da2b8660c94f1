//! Opens archives, and keeps some of them open for the next binary.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kpack_format::TargetId;
use kpack_format::archive::Archive;

use super::open_archive;
use crate::Error;
use crate::parallel::lock;

/// An open archive, which several binaries may share.
pub(crate) type OpenArchive = Arc<Mutex<Archive<BufReader<File>>>>;

/// Maximum number of unused archives that stay open: the system limits open files, and trees have
/// thousands of archives.
const MOST_UNUSED: usize = 40;

/// The archives opened last.
#[derive(Default)]
pub(crate) struct Archives(Mutex<BTreeMap<PathBuf, OpenArchive>>);

impl Archives {
    /// The archive at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<OpenArchive, Error> {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some(known) = lock(&self.0).get(&real) {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(Mutex::new(open_archive(path)?));
        let mut known = lock(&self.0);
        if known.len() >= MOST_UNUSED {
            known.retain(|_, archive| Arc::strong_count(archive) > 1);
        }
        Ok(Arc::clone(known.entry(real).or_insert(opened)))
    }

    /// Whether an archive named like one for `target` is one. If a module's name is a prefix of
    /// another's, the other's archives look like archives for odd targets. An unreadable archive
    /// counts.
    pub(crate) fn is_for(&self, path: &Path, target: &TargetId) -> bool {
        self.open(path).map_or(true, |archive| {
            lock(&archive).toc().gfx_arch_family == target.to_string()
        })
    }
}
