//! Opens each archive once.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::fs;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::finding::Id;
use parking_lot::{Mutex, RwLock};

use crate::error::Error;
use crate::lookup::BinaryOrigin;
use crate::platform::{self, FileId};
use crate::stderr::{escaped, say};
use crate::{Archive, Environment};

/// Keeps archives open, for any number of threads. A path leads to the archive that it led to first,
/// until a binary needs the file that has replaced it since.
#[derive(Debug)]
pub struct Cache {
    environment: Environment,
    archives: RwLock<HashMap<FileId, Arc<Archive>>>,
    /// By absolute or canonical path, the archive that it led to first.
    by_path: RwLock<HashMap<PathBuf, Arc<Archive>>>,
    /// Where binaries are, by their paths.
    origins: RwLock<HashMap<PathBuf, Arc<BinaryOrigin>>>,
    /// Failures that were explained already: binary and targets.
    explained: Mutex<HashSet<(PathBuf, Vec<String>)>>,
}

impl Cache {
    /// With the settings of this process's environment, read now.
    pub fn from_environment() -> Self {
        Self::new(Environment::of_process())
    }

    /// With these settings.
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            archives: RwLock::default(),
            by_path: RwLock::default(),
            origins: RwLock::default(),
            explained: Mutex::default(),
        }
    }

    /// The settings.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The archive at `path`, opened if it is not open yet.
    ///
    /// # Errors
    /// As [`Archive::open`]. After a failure, the next call tries again.
    pub fn archive(&self, path: &Path) -> Result<Arc<Archive>, Error> {
        if let Some(archive) = get(&self.by_path, path) {
            return Ok(archive);
        }
        // Most of the candidate paths lead nowhere, and this is the fastest way to see that.
        let io = |error| Error::io(path, error);
        let id = FileId::at(path).map_err(io)?;
        let canonical = fs::canonicalize(path).map_err(io)?;
        let archive = match get(&self.by_path, &canonical) {
            Some(archive) => archive,
            None => {
                let archive = self.opened(id, &canonical)?;
                insert(&self.by_path, canonical, archive)
            }
        };
        if path.is_absolute() {
            insert(&self.by_path, path.to_owned(), Arc::clone(&archive));
        }
        Ok(archive)
    }

    /// The archive that `path` leads to now, if the file was replaced since `archive` was opened, for
    /// example by an upgrade.
    pub(crate) fn replacement(&self, path: &Path, archive: &Archive) -> Option<Arc<Archive>> {
        let id = FileId::at(path).ok()?;
        if id == archive.id() {
            return None;
        }
        let canonical = fs::canonicalize(path).ok()?;
        self.opened(id, &canonical).ok()
    }

    /// The archive in the file `id`, which is at `canonical` if it is not open.
    fn opened(&self, id: FileId, canonical: &Path) -> Result<Arc<Archive>, Error> {
        if let Some(archive) = get(&self.archives, &id) {
            return Ok(archive);
        }
        // No lock is held while the file is read; if two threads open it, the first one wins.
        let archive = Arc::new(Archive::open(canonical)?);
        Ok(insert(&self.archives, archive.id(), archive))
    }

    /// Where a binary is, as it was at its first lookup.
    pub(crate) fn origin(&self, binary: &Path) -> Arc<BinaryOrigin> {
        get(&self.origins, binary).unwrap_or_else(|| {
            let origin = Arc::new(BinaryOrigin::of(binary, platform::loaded_objects()));
            if binary.is_absolute() {
                insert(&self.origins, binary.to_owned(), origin)
            } else {
                origin
            }
        })
    }

    /// Says on standard error what is wrong with a binary, with `ROCM_KPACK_DEBUG`.
    pub fn complain(&self, binary: &Path, id: Id, error: &dyn Display) {
        if self.environment.debug {
            say(&format!("{}: {error} [{id}]", escaped(binary)));
        }
    }

    /// Says on standard error what is wrong with a binary or an archive, once.
    pub fn warn(&self, path: &Path, id: Id, error: &dyn Display) {
        if self.is_news(path, &[error.to_string()]) {
            say(&format!("{}: {error} [{id}]", escaped(path)));
        }
    }

    /// Whether this is the first failed lookup of this binary for these targets.
    pub(crate) fn is_news(&self, binary: &Path, targets: &[String]) -> bool {
        let mut explained = self.explained.lock();
        explained.insert((binary.to_owned(), targets.to_vec()))
    }
}

fn get<K, Q, T>(map: &RwLock<HashMap<K, T>>, key: &Q) -> Option<T>
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
    T: Clone,
{
    map.read().get(key).cloned()
}

/// Inserts a value unless there is one, and returns the one that is there then.
fn insert<K: Eq + Hash, T: Clone>(map: &RwLock<HashMap<K, T>>, key: K, value: T) -> T {
    let mut map = map.write();
    map.entry(key).or_insert(value).clone()
}
