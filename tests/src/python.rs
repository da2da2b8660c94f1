//! Python environments and wheels.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::try_run;
pub use kpack_tools::python::environment;

/// Unpacks a wheel into `directory`.
///
/// # Errors
/// It cannot be read, or the directory not written.
pub fn unpack(wheel: &Path, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    try_run(Command::new("python3").args(["-m", "zipfile", "-e"]).args([wheel, directory]))?;
    Ok(())
}

/// The programs of `tests/wheels/requirements.txt`, in an environment of their own.
#[derive(Debug)]
pub struct Tools {
    directory: PathBuf,
}

impl Tools {
    /// Installs them in `directory`.
    ///
    /// # Errors
    /// The package index does not answer, or has no such version.
    pub fn install(directory: PathBuf) -> Result<Self> {
        let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/wheels/requirements.txt");
        environment(&directory, &["--requirement", requirements])?;
        Ok(Self { directory })
    }

    /// A command. It uses no index, and nothing that another run has cached.
    pub fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs().join(name));
        command.args(arguments);
        command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_ROOT_USER_ACTION", "ignore");
        command.env("UV_CACHE_DIR", self.directory.join("uv-cache"));
        command.env("UV_PYTHON_DOWNLOADS", "never");
        command
    }

    /// Their directory.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }
}
