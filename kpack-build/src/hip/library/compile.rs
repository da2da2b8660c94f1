//! Compiles sources in parallel, and makes static libraries. The crate `cc` runs the compiler, so that Cargo's job
//! server limits how many run, and the archiver.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use cc::{BuildMessage, BuildMessageKind, BuildMessageLogger};

use crate::hip::command::{self, command_line, failed};
use crate::hip::make_rule::{self, dependencies};
use crate::hip::toolchain::Toolchain;
use kpack_core::Error;
use kpack_core::parallel;
use kpack_format::TargetId;
use kpack_format::offload_bundle;

/// One source to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    /// As it is passed to the compiler.
    pub(super) source: PathBuf,
    pub(super) object: PathBuf,
    /// If there are none, there is only host code, with an empty bundle.
    pub(super) targets: Vec<TargetId>,
}

/// What the compiler said of the sources.
pub(super) struct Compiled {
    /// The files that the sources include.
    pub(super) included: Vec<PathBuf>,
    /// The lines of its warnings.
    pub(super) warnings: Vec<String>,
}

/// What the compilations of all sources share.
pub(super) struct Compilation<'a> {
    pub(super) toolchain: &'a Toolchain,
    /// For every source, without its targets.
    pub(super) flags: &'a [OsString],
    /// Where the compiler runs.
    pub(super) package: &'a Path,
    /// The variables for `cc`.
    pub(super) variables: BTreeMap<OsString, OsString>,
}

impl Compilation<'_> {
    /// Compiles all sources, in the directory of `build`.
    ///
    /// # Errors
    /// [`Error::Compiler`] with the compiler's output.
    pub(super) fn run(&self, build: &cc::Build, jobs: &[Job]) -> Result<Compiled, Error> {
        // The flags are complete, so `cc` must not add its own again.
        let mut variables = self.variables.clone();
        variables.retain(|name, _| !name.to_string_lossy().contains("CXXFLAGS"));
        variables.insert("CXXFLAGS".into(), OsString::new());
        let mut warnings = Vec::new();
        let mut rules = Vec::new();
        // All sources for the same targets are compiled at once.
        let mut groups: BTreeMap<&[TargetId], Vec<&Job>> = BTreeMap::new();
        for job in jobs {
            groups.entry(&job.targets).or_default().push(job);
        }
        for (targets, jobs) in groups {
            let mut build = build.clone();
            build.set_envs_snapshot(variables.clone()).cargo_metadata(false);
            build.no_default_flags(true).inherit_rustflags(false).inherit_trim_paths(false);
            build.flags(of_targets(targets, jobs[0])?).flags(self.flags);
            build.flags(["-MD", "-MT", make_rule::TARGET]);
            build.files(jobs.iter().map(|job| &job.source));
            let what = |source: &Path| format!("`{}` does not compile", source.display());
            let (made, printed) = logged(build, what, |build| build.try_compile_intermediates())?;
            warnings.extend(printed);
            for (job, made) in jobs.iter().zip(made) {
                let of_host = made.with_extension("d");
                rules.extend(fs::read(&of_host).map_err(|e| Error::io(&of_host, "read", e))?);
                rules.push(b'\n');
                fs::rename(&made, &job.object).map_err(|e| Error::io(&job.object, "rename", e))?;
            }
        }
        // `-MD` covers only the host pass; each target may include other files.
        let of_device = parallel::with_jobs(self.toolchain.threads, || {
            parallel::try_map(jobs, |job| self.rule_of_device(job))
        })?;
        rules.extend(of_device.concat());
        let mut included = dependencies(&String::from_utf8_lossy(&rules));
        included.sort();
        included.dedup();
        Ok(Compiled { included, warnings })
    }

    /// The rule that lists the files that a source includes for its GPU targets.
    fn rule_of_device(&self, job: &Job) -> Result<Vec<u8>, Error> {
        if job.targets.is_empty() {
            return Ok(Vec::new());
        }
        let mut compiler = self.toolchain.compiler.command();
        compiler.args(["-M", "-MT", make_rule::TARGET, "--cuda-device-only"]).args(self.flags);
        compiler.args(of_targets(&job.targets, job)?);
        // Some flags are for the pass that makes host code.
        compiler.arg("-Wno-unused-command-line-argument");
        let source = job.source.display();
        let what = format!("cannot list the files that `{source}` includes for GPU targets");
        let _token = self.toolchain.job_server.acquire();
        command::run(compiler.arg(&job.source).current_dir(self.package), &what)
    }
}

/// The flags for GPU targets. Without any, the wrapper of the host code has a bundle without device code, so that a
/// program links, and a HIP runtime says that there is no code for its GPU.
fn of_targets(targets: &[TargetId], job: &Job) -> Result<Vec<OsString>, Error> {
    if !targets.is_empty() {
        let flags = targets.iter().map(|target| format!("--offload-arch={target}").into());
        return Ok(flags.collect());
    }
    let bundle = job.object.with_file_name("no-device-code.hipfb");
    let bytes = offload_bundle::plain([("host-x86_64-unknown-linux-gnu-", &[][..])]);
    fs::write(&bundle, bytes).map_err(|e| Error::io(&bundle, "write", e))?;
    let xclang = || OsString::from("-Xclang");
    let include = "-fcuda-include-gpubinary".into();
    Ok(vec!["--cuda-host-only".into(), xclang(), include, xclang(), bundle.into()])
}

/// Makes the static library `lib<name>.a` of objects.
///
/// # Errors
/// [`Error::Compiler`] with the archiver's output.
pub(super) fn archive(build: cc::Build, name: &str, objects: &[PathBuf]) -> Result<(), Error> {
    let what = |_: &Path| {
        format!("cannot make `lib{name}.a`; the variable AR names an archiver for the target")
    };
    logged(build, what, |build| build.try_create_archive(name, objects)).map(|_| ())
}

/// What the programs that `cc` runs print, and which of them failed first. The last argument of a program tells them
/// apart: the source that it compiles.
#[derive(Default)]
struct Printed {
    lines: Vec<(OsString, String)>,
    failed: Option<(OsString, ExitStatus, String)>,
}

#[derive(Default)]
struct Log(Mutex<Printed>);

impl BuildMessageLogger for Log {
    fn log(&self, kind: BuildMessageKind, message: BuildMessage<'_>, extra: &dyn Any) {
        let Some(command) = extra.downcast_ref::<Command>() else {
            return;
        };
        let last = command.get_args().last().unwrap_or(OsStr::new("")).to_owned();
        let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kind {
            BuildMessageKind::StderrForwarding => printed.lines.push((last, message.to_string())),
            BuildMessageKind::CommandFailed { exit_status, is_detection_cmd: false, .. } => {
                printed.failed.get_or_insert_with(|| (last, exit_status, command_line(command)));
            }
            _ => {}
        }
    }
}

/// Has `cc` do `work`, and returns the lines that the programs it runs print. `what` begins the error message, given the
/// last argument of the program that failed.
fn logged<T>(
    mut build: cc::Build,
    what: impl FnOnce(&Path) -> String,
    work: impl FnOnce(&cc::Build) -> Result<T, cc::Error>,
) -> Result<(T, Vec<String>), Error> {
    let log = Arc::new(Log::default());
    build.message_logger(Some(log.clone()));
    let done = work(&build);
    let printed = std::mem::take(&mut *log.0.lock().unwrap_or_else(PoisonError::into_inner));
    let lines = printed.lines.into_iter();
    match (done, printed.failed) {
        (Ok(made), _) => Ok((made, lines.map(|(_, line)| line).collect())),
        (Err(_), Some((last, status, command))) => {
            let own = lines.filter(|(of, _)| *of == last).map(|(_, line)| line);
            let text = Vec::from_iter(own).join("\n");
            Err(failed(&what(last.as_ref()), status, &text, &command))
        }
        (Err(error), None) => Err(Error::Compiler(format!("{}: {error}", what(Path::new(""))))),
    }
}
