//! Compiles sources in parallel.

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::compiler::Compiler;
use super::make_rule::{self, dependencies};
use kpack_core::Error;
use kpack_core::parallel;

/// One source to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) source: PathBuf,
    pub(super) object: PathBuf,
    /// The flags, and the source's path as passed to the compiler.
    pub(super) arguments: Vec<OsString>,
}

/// Runs all jobs and returns the files that the sources include.
///
/// # Errors
/// [`Error::Compiler`] with the compiler's output.
pub(super) fn run(
    compiler: &Compiler,
    jobs: &[Job],
    directory: &Path,
    threads: NonZeroUsize,
) -> Result<Vec<PathBuf>, Error> {
    let done = parallel::with_jobs(threads, || {
        parallel::try_map(jobs, |job| job.run(compiler, directory))
    })?;
    let mut included = done.concat();
    included.sort();
    included.dedup();
    Ok(included)
}

impl Job {
    /// Compiles the source and returns the files that it includes.
    fn run(&self, compiler: &Compiler, directory: &Path) -> Result<Vec<PathBuf>, Error> {
        let rules = self.object.with_extension("d");
        let what = format!("`{}` does not compile", self.source.display());
        let mut arguments: Vec<OsString> =
            ["-MD", "-MT", make_rule::TARGET, "-MF"].map(OsString::from).into();
        arguments.push(rules.clone().into());
        arguments.extend(["-c".into(), "-o".into(), self.object.clone().into()]);
        arguments.extend(self.arguments.iter().cloned());
        run_one(compiler, &arguments, directory, &what)?;
        let host = fs::read(&rules).map_err(|e| Error::io(&rules, "read", e))?;

        // `-MD` covers only the host pass; each target may include other files.
        let what = format!(
            "cannot list the files that `{}` includes for GPU targets",
            self.source.display()
        );
        let mut arguments: Vec<OsString> =
            ["-M", "-MT", make_rule::TARGET, "--cuda-device-only"].map(OsString::from).into();
        arguments.extend(self.arguments.iter().cloned());
        let device = run_one(compiler, &arguments, directory, &what)?;
        let rules = [host, device].map(|rules| String::from_utf8_lossy(&rules).into_owned());
        Ok(rules.iter().flat_map(|rules| dependencies(rules)).collect())
    }
}

/// Runs the compiler once and returns its output; `what` begins the error message.
pub(super) fn run_one(
    compiler: &Compiler,
    arguments: &[OsString],
    directory: &Path,
    what: &str,
) -> Result<Vec<u8>, Error> {
    let mut command = compiler.command();
    command.args(arguments).current_dir(directory);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io(compiler.program(), "run", e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words: Vec<String> =
        arguments.iter().map(|argument| Path::new(argument).display().to_string()).collect();
    Err(Error::Compiler(format!(
        "{what} ({}):\n{}{}\nThe command was: {compiler} {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).trim_end(),
        words.join(" ")
    )))
}
