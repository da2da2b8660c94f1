//! Compiling sources, some at a time.

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::Error;

/// One source to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) source: PathBuf,
    pub(super) object: PathBuf,
    /// What the compiler is to write the names of headers to.
    pub(super) dependencies: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

/// Runs all jobs, and tells the files that the sources include.
///
/// # Errors
/// [`Error::Compiler`] with what the compiler said.
pub(super) fn run(
    compiler: &Path,
    jobs: &[Job],
    directory: &Path,
    threads: NonZeroUsize,
) -> Result<Vec<PathBuf>, Error> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Vec<(usize, Error)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..threads.get().min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { return };
                    let what = format!("`{}` does not compile", job.source.display());
                    if let Err(error) = run_one(compiler, &job.arguments, directory, &what) {
                        if let Ok(mut failed) = failed.lock() {
                            failed.push((index, error));
                        }
                        // The others go on with what they have begun.
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_default();
    failed.sort_by_key(|(index, _)| *index);
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(error);
    }
    let mut included = Vec::new();
    for job in jobs {
        let text = fs::read_to_string(&job.dependencies)
            .map_err(|e| Error::io(&job.dependencies, "read", e))?;
        included.extend(dependencies(&text));
    }
    included.sort();
    included.dedup();
    Ok(included)
}

/// Runs the compiler once; `what` says in an error what could not be made.
pub(super) fn run_one(
    compiler: &Path,
    arguments: &[OsString],
    directory: &Path,
    what: &str,
) -> Result<(), Error> {
    let mut command = Command::new(compiler);
    command.args(arguments).current_dir(directory);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io(compiler, "run", e))?;
    if output.status.success() {
        return Ok(());
    }
    let words: Vec<String> = arguments
        .iter()
        .map(|argument| argument.display().to_string())
        .collect();
    Err(Error::Compiler(format!(
        "{what} ({}):\n{}{}\nThe command was: {} {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).trim_end(),
        compiler.display(),
        words.join(" ")
    )))
}

/// The files that a make rule, as `-MD` writes it, names behind the colon. Spaces in names have a
/// backslash in front.
pub(super) fn dependencies(rule: &str) -> Vec<PathBuf> {
    let rule = rule.replace("\\\n", " ").replace("\\ ", "\0");
    let files = rule.split_once(": ").map_or("", |(_, files)| files);
    let names = files.split_whitespace();
    names
        .map(|name| PathBuf::from(name.replace('\0', " ")))
        .collect()
}
