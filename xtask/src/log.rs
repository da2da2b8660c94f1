//! The log of a run: what other programs print. The terminal shows the steps alone.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use xshell::Cmd;

use crate::repository;

/// How many lines of the log an error repeats.
const LAST_LINES: usize = 40;

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
}

/// The log of this task, `target/xtask/TASK.log`, which begins when something is written to it first.
fn log() -> Result<&'static Log> {
    static LOG: OnceLock<Log> = OnceLock::new();
    if let Some(log) = LOG.get() {
        return Ok(log);
    }
    let task = env::args().nth(1).unwrap_or_default();
    let path = repository::target_directory().join("xtask").join(format!("{task}.log"));
    let create = || {
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        File::create(&path)
    };
    let file = create().with_context(|| path.display().to_string())?;
    println!("   What other programs print is in {}", path.display());
    Ok(LOG.get_or_init(|| Log { path, file }))
}

/// Writes a line that the terminal need not show.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn note(line: &str) -> Result<()> {
    Ok(writeln!(&log()?.file, "{line}")?)
}

/// Runs a command, and writes what it prints into the log.
///
/// # Errors
/// It cannot be run, or fails; the error has the last lines of the log and its name.
pub(crate) fn run(command: Cmd<'_>) -> Result<()> {
    watch(command, |_| {})
}

/// As [`run`], and shows each line to `see`.
pub(crate) fn watch(command: Cmd<'_>, mut see: impl FnMut(&str)) -> Result<()> {
    let log = log()?;
    let shown = command.to_string();
    writeln!(&log.file, "$ {shown}")?;
    let (reader, writer) = io::pipe()?;
    let mut child = {
        let mut command = Command::from(command);
        command.stdout(writer.try_clone()?).stderr(writer);
        command.spawn().with_context(|| format!("`{shown}` cannot be run"))?
    };
    let mut lines = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(&log.file, "{line}")?;
        see(&line);
        lines.push(line);
    }
    let status = child.wait()?;
    if !status.success() {
        let last = lines.split_off(lines.len().saturating_sub(LAST_LINES));
        bail!(
            "`{shown}` failed ({status}); the last lines of {}:\n{}",
            log.path.display(),
            last.join("\n")
        );
    }
    Ok(())
}
