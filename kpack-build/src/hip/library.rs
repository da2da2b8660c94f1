//! A built library and its directives for Cargo.

use std::path::{Path, PathBuf};

/// A host-only library and the archives of its device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    pub(super) path: PathBuf,
    pub(super) kpack_dir: PathBuf,
    pub(super) module: String,
    pub(super) directives: Vec<String>,
}

impl Library {
    /// Path of the static or shared library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the archives.
    pub fn kpack_dir(&self) -> &Path {
        &self.kpack_dir
    }

    /// The module that the archives are named after.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The `cargo::` directives, one per line.
    pub fn directives(&self) -> &[String] {
        &self.directives
    }

    /// Prints the directives, for Cargo to read.
    pub(super) fn emit(&self) {
        for directive in &self.directives {
            println!("{directive}");
        }
    }
}
