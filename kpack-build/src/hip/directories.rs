//! The directories of a build.

use std::io;
use std::path::{Path, PathBuf};

use kpack_core::{Error, ids};

use super::environment::Environment;
use super::options::Hip;

/// The directory in `OUT_DIR` that holds one directory per name.
const DIRECTORY: &str = "kpack";

/// Where a build reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuildDirectories {
    /// The package's, in which the compiler runs.
    pub(super) package: PathBuf,
    /// `OUT_DIR`, or the one that takes its place.
    pub(super) out_dir: PathBuf,
    /// The directory of what is built.
    pub(super) output: PathBuf,
}

impl BuildDirectories {
    /// Those of what is built under `name`.
    pub(super) fn new(hip: &Hip, name: &str, environment: &Environment) -> Result<Self, Error> {
        Ok(Self {
            package: environment.directory("CARGO_MANIFEST_DIR")?,
            out_dir: out_dir(hip, environment)?,
            output: output(hip, name, environment)?,
        })
    }

    /// The directory with one directory per name.
    pub(super) fn above_output(&self) -> &Path {
        self.output.parent().unwrap_or(Path::new(""))
    }

    /// The error for output that cannot be written into `OUT_DIR`.
    pub(super) fn cannot_write(&self, error: &io::Error) -> Error {
        Error::rejected(
            ids::SYSTEM,
            &self.output,
            format!(
                "cannot write into this directory: {error}. A build script writes into OUT_DIR, \
                 which is in Cargo's target directory; make that writable, or choose another \
                 one (CARGO_TARGET_DIR)"
            ),
        )
    }

    /// The same error, if `error` is one of the system.
    pub(super) fn explain(&self, error: Error) -> Error {
        match error {
            Error::Io { source, .. } => self.cannot_write(&source),
            error => error,
        }
    }
}

/// The directory of what is built under `name`. The compiler runs in the package's directory, so it is absolute.
pub(super) fn output(hip: &Hip, name: &str, environment: &Environment) -> Result<PathBuf, Error> {
    let out_dir = out_dir(hip, environment)?;
    let absolute = std::path::absolute(&out_dir).map_err(|e| Error::io(&out_dir, "find", e))?;
    Ok(absolute.join(DIRECTORY).join(name))
}

/// `OUT_DIR`, or the one that takes its place.
pub(super) fn out_dir(hip: &Hip, environment: &Environment) -> Result<PathBuf, Error> {
    hip.out_dir.clone().map_or_else(|| environment.directory("OUT_DIR"), Ok)
}
