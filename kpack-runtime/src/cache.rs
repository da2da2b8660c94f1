//! Archives, opened once.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::archive::Memory;
use crate::regular_file::FileId;
use crate::{Archive, Environment, Error, Request, candidates, lookup};

/// Keeps archives open, for any number of threads. A path leads to the archive that it led to first,
/// until a binary turns out to have been made for the one that is there now.
#[derive(Debug)]
pub struct Cache {
    environment: Environment,
    archives: RwLock<HashMap<FileId, Arc<Archive>>>,
    /// The first of them that absolute or canonical paths led to.
    by_path: RwLock<HashMap<PathBuf, Arc<Archive>>>,
    /// Directories of binaries, by their paths.
    directories: RwLock<HashMap<PathBuf, Arc<[PathBuf]>>>,
    /// What was explained already: binary and targets.
    explained: Mutex<HashSet<(PathBuf, Vec<String>)>>,
}

impl Cache {
    /// With what the environment of this process asks for, now.
    pub fn from_environment() -> Self {
        Self::new(Environment::of_process())
    }

    /// With what `environment` asks for.
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            archives: RwLock::default(),
            by_path: RwLock::default(),
            directories: RwLock::default(),
            explained: Mutex::default(),
        }
    }

    /// What the environment asked for.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The archive at `path`, opened where it is not open yet.
    ///
    /// # Errors
    /// As [`Archive::open`]. What failed is tried again the next time.
    pub fn archive(&self, path: &Path) -> Result<Arc<Archive>, Error> {
        if let Some(archive) = get(&self.by_path, path) {
            return Ok(archive);
        }
        // Most of the paths that are tried lead nowhere, which this tells fastest.
        let io = |error| Error::io(path, error);
        let metadata = fs::metadata(path).map_err(io)?;
        let canonical = fs::canonicalize(path).map_err(io)?;
        let archive = match get(&self.by_path, &canonical) {
            Some(archive) => archive,
            None => {
                let archive = self.opened(FileId::of(&metadata), &canonical)?;
                insert(&self.by_path, canonical, archive)
            }
        };
        if path.is_absolute() {
            insert(&self.by_path, path.to_owned(), Arc::clone(&archive));
        }
        Ok(archive)
    }

    /// The archive that `path` leads to now, if that is not `archive`: since that was opened, the file
    /// was replaced, as an upgrade does.
    pub(crate) fn replacement(&self, path: &Path, archive: &Archive) -> Option<Arc<Archive>> {
        let id = FileId::of(&fs::metadata(path).ok()?);
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
        // Nobody waits for the file to be read; of two threads that open it, one is first.
        let archive = Arc::new(Archive::open(canonical)?);
        Ok(insert(&self.archives, archive.id(), archive))
    }

    /// The directories that a binary's search paths are relative to, as they were when it was first
    /// asked for.
    pub(crate) fn directories(&self, binary: &Path) -> Arc<[PathBuf]> {
        get(&self.directories, binary).unwrap_or_else(|| {
            let directories = candidates::directories(binary).into();
            match binary.is_absolute() {
                true => insert(&self.directories, binary.to_owned(), directories),
                false => directories,
            }
        })
    }

    /// Whether it is the first time that this binary has nothing for these targets.
    pub(crate) fn is_news(&self, binary: &Path, targets: &[String]) -> bool {
        let mut explained = self.explained.lock();
        explained.insert((binary.to_owned(), targets.to_vec()))
    }

    /// The code object that `request` asks for, decompressed.
    ///
    /// # Errors
    /// [`Error::Disabled`], [`Error::NoIsa`], [`Error::NoCodeObject`], and what [`Archive::load`]
    /// says of the archive that has it.
    pub fn load_code_object(&self, request: &Request<'_>) -> Result<Vec<u8>, Error> {
        self.load_into(request)
    }

    pub(crate) fn load_into<M: Memory>(&self, request: &Request<'_>) -> Result<M, Error> {
        if self.environment.disable {
            return Err(Error::Disabled);
        }
        lookup::load(self, request)
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

/// Inserts where nothing is yet; returns what is there then.
fn insert<K: Eq + Hash, T: Clone>(map: &RwLock<HashMap<K, T>>, key: K, value: T) -> T {
    let mut map = map.write();
    map.entry(key).or_insert(value).clone()
}
