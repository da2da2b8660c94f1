//! Environments of Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::try_run;

/// Makes an environment in `directory`, and installs packages there, given as arguments of pip. Returns its Python.
///
/// # Errors
/// The package index does not answer, or has no such version.
pub fn environment(directory: &Path, packages: &[&str]) -> Result<PathBuf> {
    // Debian's own Python installs pip nowhere.
    try_run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(directory))?;
    let python = directory.join("bin/python");
    let mut pip = Command::new("pip3");
    try_run(pip.arg("--python").arg(&python).args(["install", "--quiet"]).args(packages))?;
    Ok(python)
}
