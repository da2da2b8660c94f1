//! What was built, and what Cargo is told about it.

use std::path::{Path, PathBuf};

/// In a library's directory, the file that names the directories for headers, outside of the package
/// and the system, that its sources were compiled with. Staging looks for them in a release; and no
/// other directory that a program is linked with has such a file.
pub const INCLUDE_DIRECTORIES: &str = "include-directories.txt";

/// A library of host code, and the archives with its device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    pub(super) path: PathBuf,
    pub(super) kpack_dir: PathBuf,
    pub(super) module: String,
    pub(super) directives: Vec<String>,
}

impl Library {
    /// The static or shared library.
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

    /// What Cargo has to be told: `cargo::` directives, one a line.
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
