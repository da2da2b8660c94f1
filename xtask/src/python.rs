//! Python environments and wheels.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process;

/// Makes an environment in `directory`, and installs packages there, given as arguments of pip. Returns its Python.
///
/// # Errors
/// The package index does not answer, or has no such version.
pub(crate) fn environment(directory: &Path, packages: &[&str]) -> Result<PathBuf> {
    // Debian's own Python installs pip nowhere.
    process::run!("python3 -m venv --without-pip {directory}")?;
    let python = directory.join("bin/python");
    process::run!("pip3 --python {python} install --quiet {packages...}")?;
    Ok(python)
}

/// Unpacks a wheel into `directory`, which is there.
pub(crate) fn unpack(wheel: &Path, directory: &Path) -> Result<()> {
    process::run!("python3 -m zipfile -e {wheel} {directory}").map(drop)
}
