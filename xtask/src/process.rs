//! Runs other programs, and reports each step.

use std::env;
use std::error::Error;
use std::fmt;
use std::fs;
use std::io::Write as _;

use anyhow::Result;
pub(crate) use kpack_tools::process::NOT_RUN;
use kpack_tools::process::{repository, try_run};
use xshell::{Cmd, Shell};

thread_local! {
    static SHELL: &'static Shell = {
        let shell = Shell::new().expect("a current directory");
        shell.change_dir(repository());
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

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not run: {}", self.0)
    }
}

impl Error for NotRun {}

/// Adds a line to the file that the variable `KPACK_NOT_RUN` names: `.ci/run` ends with what did not run, and why.
pub(crate) fn note_not_run(what: &str, why: &str) -> Result<()> {
    if let Some(path) = env::var_os("KPACK_NOT_RUN") {
        let task = env::args().nth(1).unwrap_or_default();
        let line = format!("{task}: {what}: {}\n", why.lines().next().unwrap_or_default());
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// Prints the next step.
pub(crate) fn step(what: &str) {
    println!("\n== {what}");
}

/// Runs a command silently and returns what it printed on stdout.
///
/// # Errors
/// The command cannot be run, or fails; the error has the command and everything that it printed.
pub(crate) fn output(command: Cmd<'_>) -> Result<String> {
    try_run(&mut command.into())
}
