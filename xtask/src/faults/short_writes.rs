//! Writes that write less than they should.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::trial::{Expected, Trial};
use crate::process::succeed;

/// Builds the library that takes the place of the C library's functions.
pub(super) fn build(scratch: &Path) -> Result<PathBuf> {
    let source = scratch.join("short_writes.c");
    fs::write(&source, include_str!("short_writes.c"))?;
    let library = scratch.join("short_writes.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    succeed(command.arg(&library).arg(&source).arg("-ldl"))?;
    Ok(library)
}

/// Runs the command with it, which must make no difference.
pub(super) fn check(trial: &Trial<'_>, library: &Path) -> Result<String> {
    let mut command = trial.place.command(&[], trial.scenario.arguments);
    let output =
        trial.run(command.env("LD_PRELOAD", library), Expected::Done).context("short writes")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.strip_suffix(" short writes"));
    let count: u64 = count.context("the library was not loaded")?.parse()?;
    ensure!(count > 1, "nothing was written with the functions of the C library");
    Ok(format!("{count} writes cut short or interrupted in one run"))
}
