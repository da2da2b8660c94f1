//! Compiles sources in parallel, within the limits of Cargo's job server, and makes static libraries, for which the crate
//! `cc` runs the archiver.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};

use cc::{BuildMessage, BuildMessageKind, BuildMessageLogger};

use crate::hip::command::{self, command_line, failed, warnings};
use crate::hip::device_libraries::DeviceLibraries;
use crate::hip::make_rule::{self, dependencies};
use crate::hip::toolchain::Toolchain;
use kpack_core::Error;
use kpack_core::parallel::{self, lock};
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
    /// The files that the sources include, and the directories of ROCm's device libraries.
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
    /// The variables of the build.
    pub(super) variables: &'a BTreeMap<OsString, OsString>,
}

impl Compilation<'_> {
    /// Compiles all sources.
    ///
    /// # Errors
    /// [`Error::Compiler`] with the compiler's output.
    pub(super) fn run(&self, jobs: &[Job]) -> Result<Compiled, Error> {
        if let Some(job) = jobs.iter().find(|job| job.targets.is_empty()) {
            let bundle = empty_bundle(job);
            let bytes = offload_bundle::plain([(offload_bundle::HOST_ENTRY, &[][..])]);
            fs::write(&bundle, bytes).map_err(|e| Error::io(&bundle, "write", e))?;
        }
        let compiled = parallel::with_jobs(self.toolchain.threads, || {
            parallel::try_map(jobs, |job| self.compile(job))
        })?;
        let (rules, warnings): (Vec<Vec<u8>>, Vec<Vec<String>>) = compiled.into_iter().unzip();
        let mut included = dependencies(&String::from_utf8_lossy(&rules.concat()));
        // The headers of another ROCm may be the same.
        let targets: BTreeSet<&TargetId> = jobs.iter().flat_map(|job| &job.targets).collect();
        if !targets.is_empty() {
            let mut command = self.compiler();
            command.args(offload_archs(targets)).args(self.flags);
            included.extend(DeviceLibraries::of(&mut command).directories);
        }
        included.sort();
        included.dedup();
        Ok(Compiled { included, warnings: warnings.concat() })
    }

    /// Compiles a source. Returns the rules that list the files that it includes, and the lines of warnings.
    fn compile(&self, job: &Job) -> Result<(Vec<u8>, Vec<String>), Error> {
        let source = job.source.display();
        let rule = job.object.with_extension("d");
        let mut compiler = self.command(job);
        compiler.args(["-MD", "-MT", make_rule::TARGET, "-MF"]).arg(&rule);
        compiler.arg("-o").arg(&job.object).arg("-c").arg(&job.source);
        let token = self.toolchain.job_server.acquire();
        let output = command::run(&mut compiler, &format!("`{source}` does not compile"))?;
        drop(token);
        let mut rules = fs::read(&rule).map_err(|e| Error::io(&rule, "read", e))?;
        if !job.targets.is_empty() {
            // `-MD` covers only the host pass; each target may include other files.
            let mut compiler = self.command(job);
            compiler.args(["-M", "-MT", make_rule::TARGET, "--cuda-device-only"]);
            // Some flags are for the pass that makes host code.
            compiler.arg("-Wno-unused-command-line-argument").arg(&job.source);
            let what = format!("cannot list the files that `{source}` includes for GPU targets");
            let _token = self.toolchain.job_server.acquire();
            rules.push(b'\n');
            rules.extend(command::run(&mut compiler, &what)?.stdout);
        }
        rules.push(b'\n');
        Ok((rules, warnings(&output)))
    }

    /// The compiler in the package's directory, with the variables of the build, and the flags for a source.
    fn command(&self, job: &Job) -> Command {
        let mut command = self.compiler();
        command.args(of_targets(job)).args(self.flags);
        command
    }

    /// As `command`, without flags.
    fn compiler(&self) -> Command {
        let mut command = self.toolchain.compiler.command();
        command.env_clear().envs(self.variables).current_dir(self.package);
        command
    }
}

/// The flags for GPU targets. Without any, the wrapper of the host code has a bundle without device code, so that a
/// program links, and a HIP runtime says that there is no code for its GPU.
fn of_targets(job: &Job) -> Vec<OsString> {
    if !job.targets.is_empty() {
        return offload_archs(&job.targets);
    }
    let xclang = || OsString::from("-Xclang");
    let include = "-fcuda-include-gpubinary".into();
    vec!["--cuda-host-only".into(), xclang(), include, xclang(), empty_bundle(job).into()]
}

fn offload_archs<'a>(targets: impl IntoIterator<Item = &'a TargetId>) -> Vec<OsString> {
    targets.into_iter().map(|target| format!("--offload-arch={target}").into()).collect()
}

/// The path of the bundle without device code.
fn empty_bundle(job: &Job) -> PathBuf {
    job.object.with_file_name("no-device-code.hipfb")
}

/// Makes the static library `lib<name>.a` of objects.
///
/// # Errors
/// [`Error::Compiler`] with the archiver's output.
pub(super) fn archive(mut build: cc::Build, name: &str, objects: &[PathBuf]) -> Result<(), Error> {
    let log = Arc::new(Log::default());
    build.message_logger(Some(log.clone()));
    let Err(error) = build.try_create_archive(name, objects) else {
        return Ok(());
    };
    let what =
        format!("cannot make `lib{name}.a`; the variable AR names an archiver for the target");
    let printed = lock(&log.0);
    match &printed.failed {
        Some((status, command)) => Err(failed(&what, *status, &printed.lines.join("\n"), command)),
        None => Err(Error::Compiler(format!("{what}: {error}"))),
    }
}

/// What the archiver prints, and how it failed.
#[derive(Default)]
struct Printed {
    lines: Vec<String>,
    failed: Option<(ExitStatus, String)>,
}

#[derive(Default)]
struct Log(Mutex<Printed>);

impl BuildMessageLogger for Log {
    fn log(&self, kind: BuildMessageKind, message: BuildMessage<'_>, extra: &dyn Any) {
        let Some(command) = extra.downcast_ref::<Command>() else {
            return;
        };
        let mut printed = lock(&self.0);
        match kind {
            BuildMessageKind::StderrForwarding => printed.lines.push(message.to_string()),
            BuildMessageKind::CommandFailed { exit_status, is_detection_cmd: false, .. } => {
                printed.failed.get_or_insert_with(|| (exit_status, command_line(command)));
            }
            _ => {}
        }
    }
}
