//! Paths without symbolic links.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::directory_of;

/// Resolves symbolic links: each path once, and each directory once, however many files in it are asked about.
#[derive(Debug, Default)]
pub struct RealPaths {
    known: HashMap<PathBuf, Option<PathBuf>>,
    /// The real paths of directories; `None` where there is none.
    directories: HashMap<PathBuf, Option<PathBuf>>,
}

impl RealPaths {
    /// The path of a file, with its directory resolved. The file need not exist; `None` if the directory does not.
    pub fn in_directory(&mut self, path: &Path) -> Option<PathBuf> {
        let name = path.file_name()?;
        let directory = directory_of(path);
        if !self.directories.contains_key(directory) {
            self.directories.insert(directory.to_owned(), directory.canonicalize().ok());
        }
        Some(self.directories[directory].as_ref()?.join(name))
    }

    /// The resolved path of a file, which need not exist; `None` if its directory does not.
    pub fn of(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(known) = self.known.get(path) {
            return known.clone();
        }
        let place = self.in_directory(path);
        let is_missing = place.as_ref().is_some_and(|place| fs::symlink_metadata(place).is_err());
        let found = if is_missing { None } else { path.canonicalize().ok() }.or(place);
        self.known.insert(path.to_owned(), found.clone());
        found
    }
}
