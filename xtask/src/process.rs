//! Runs other programs, and reports each step.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use xshell::Cmd;

/// Prints the next step.
pub(crate) fn step(what: &str) {
    println!("\n== {what}");
}

/// Runs a command silently and returns what it printed on stdout.
///
/// # Errors
/// The command cannot be run, or fails; the error has the command and everything that it printed.
pub(crate) fn output(command: Cmd<'_>) -> Result<String> {
    Ok(both_outputs(command)?.0)
}

/// As [`output`], with what it printed on stderr.
pub(crate) fn both_outputs(command: Cmd<'_>) -> Result<(String, String)> {
    let shown = command.to_string();
    let output = command
        .quiet()
        .ignore_status()
        .output()
        .with_context(|| format!("`{shown}` cannot be run"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("`{shown}` failed ({}):\n{stdout}{stderr}", output.status);
    }
    Ok((stdout, stderr))
}

/// Where a program is: in `PATH`, or among the programs that Debian installs for LLVM 19 without
/// a version in the name.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/lib/llvm-19/bin".into()])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}
