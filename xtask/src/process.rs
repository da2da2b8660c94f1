//! Runs other programs, and reports each step.

use std::env;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use xshell::{Cmd, Shell};

use crate::repository;

thread_local! {
    static SHELL: &'static Shell = {
        let shell = Shell::new().expect("a current directory");
        shell.change_dir(repository::root());
        Box::leak(Box::new(shell))
    };
}

/// The shell of this run. Its current directory is the repository's root, unless a task changes it.
pub(crate) fn shell() -> &'static Shell {
    SHELL.with(|shell| *shell)
}

/// Runs a command, written as for `xshell::cmd`, silently and returns what it printed on stdout; see
/// [`output`].
macro_rules! run {
    ($command:literal) => {
        $crate::process::output(xshell::cmd!($crate::process::shell(), $command))
    };
}
pub(crate) use run;

/// A task cannot run here: something is missing that it does not install. It ends with [`NOT_RUN`].
#[derive(Debug)]
pub(crate) struct NotRun(pub(crate) String);

/// The exit code of a task that cannot run here, as test programs under Automake and Meson use it.
pub(crate) const NOT_RUN: u8 = 77;

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not run: {}", self.0)
    }
}

impl Error for NotRun {}

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

/// Where the first of some programs, `a|b`, is: at its path, in `PATH`, or among the programs that Debian installs for
/// LLVM 19 without a version in the name.
pub(crate) fn find_program(names: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = || env::split_paths(&path).chain(["/usr/lib/llvm-19/bin".into()]);
    names.split('|').find_map(|name| {
        let mut programs = directories().map(|directory| directory.join(name));
        programs.find(|program| program.is_file())
    })
}
