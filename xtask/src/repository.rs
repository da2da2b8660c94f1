//! Where things are in this repository.

use std::env;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;

pub(crate) use kpack_tools::process::{repository as root, target_directory};

/// An empty directory of this name in the target directory.
pub(crate) fn empty_directory(name: &str) -> Result<PathBuf> {
    let directory = target_directory().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    Ok(directory)
}

/// This machine as a target for rustc: with a target, flags of a build do not reach build scripts.
pub(crate) fn explicit_target() -> Result<String> {
    match ARCH {
        "x86_64" | "aarch64" => Ok(format!("{ARCH}-unknown-linux-gnu")),
        other => bail!("there is no target for {other}"),
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The files of a directory, sorted.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}

/// The files of a directory with an extension, sorted.
pub(crate) fn files_with_extension(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = files(directory)?;
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(files)
}

/// Cargo's own directory, which has the sources of dependencies.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = || Some(env::home_dir()?.join(".cargo"));
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(home).context("there is no home directory")
}

/// What cargo knows of the workspace and, without `--no-deps`, of all that it depends on.
pub(crate) fn metadata(options: &[&str]) -> Result<Value> {
    let printed = process::run!("cargo metadata --format-version 1 --locked {options...}")?;
    Ok(serde_json::from_str(&printed)?)
}
