//! Runs other programs, and reports each step.

use std::env;
use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
    Ok(both_outputs(command)?.0)
}

/// As [`output`], with what it printed on stderr.
pub(crate) fn both_outputs(command: Cmd<'_>) -> Result<(String, String)> {
    let shown = command.to_string();
    let output = succeeded(&shown, Command::from(command).output())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr)))
}

/// As [`output`], of a command that needs more than a shell has.
pub(crate) fn succeed(command: &mut Command) -> Result<Output> {
    let output = command.output();
    succeeded(&format!("{command:?}"), output)
}

fn succeeded(shown: &str, output: io::Result<Output>) -> Result<Output> {
    let output = output.with_context(|| format!("`{shown}` cannot be run"))?;
    ensure!(
        output.status.success(),
        "`{shown}` failed ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}

/// Copies a tree with its links, modes and times, in place of what is there.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(to);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    run!("cp -a {from} {to}").map(drop)
}

/// A process that is stopped on drop.
pub(crate) struct Daemon(pub(crate) Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long something may take that should soon happen.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `is_so`, which soon happens.
///
/// # Errors
/// It does not, or asking fails.
pub(crate) fn wait(otherwise: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !is_so()? {
        ensure!(started.elapsed() < PATIENCE, "{otherwise}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
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
