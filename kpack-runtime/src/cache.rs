//! Archives, opened once.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crate::archive::Memory;
use crate::{Archive, Environment, Error, Request, lookup};

/// Keeps archives open, for any number of threads. Archives are known by their canonical path.
#[derive(Debug)]
pub struct Cache {
    environment: Environment,
    archives: RwLock<HashMap<PathBuf, Arc<Archive>>>,
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
        let canonical = fs::canonicalize(path).map_err(|error| Error::io(path, error))?;
        let known = self.archives.read();
        if let Some(archive) = known
            .unwrap_or_else(PoisonError::into_inner)
            .get(&canonical)
        {
            return Ok(Arc::clone(archive));
        }
        // Nobody waits for the file to be read; of two threads that open it at once, one is first.
        let archive = Arc::new(Archive::open(&canonical)?);
        let known = self.archives.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(known.entry(canonical).or_insert(archive)))
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
