//! The real HIP runtime over a stub of the HSA runtime, so it needs no GPU.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use kpack_tests::require::is_root;
use xshell::cmd;

use super::super::reference::CodeObject;
use super::super::stub_libraries;
use crate::{process, repository};

/// Required files, and the Debian package of each.
pub(super) const NEEDED: [(&str, &str); 2] = [
    ("/usr/include/hip/hip_runtime.h", "libamdhip64-dev"),
    ("/usr/include/hsa/hsa.h", "libhsa-runtime-dev"),
];
/// The real runtime, of Debian 12.
const RUNTIME: &str = "libamdhip64.so.5";
/// Some user who is not root.
const NOBODY: &str = "65534";
/// The program, set-user-ID.
const PRIVILEGED: &str = "load-privileged";

/// The stub, and a program that loads libraries.
#[derive(Debug)]
pub(crate) struct Rig {
    directory: PathBuf,
}

/// One execution of the program.
#[derive(Debug, Default)]
pub(crate) struct Execution<'a> {
    /// The ISA of each GPU.
    pub(crate) gpus: &'a [&'a str],
    /// What the program does: the arguments of `tests/real/load.c`.
    pub(crate) steps: &'a [&'a str],
    /// For `LD_PRELOAD`.
    pub(crate) preload: Option<&'a Path>,
    /// The runtime loads a code object when its kernel is used first, not all as it starts.
    pub(crate) deferred: bool,
    /// The program is set-user-ID, and its user is not root.
    pub(crate) privileged: bool,
}

/// What the real runtime did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The code objects that it loaded, by the number of the GPU.
    pub(crate) loaded: BTreeMap<usize, Vec<CodeObject>>,
    pub(crate) end: End,
}

/// How a program ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum End {
    Normal,
    /// The runtime found no code for a GPU.
    NoCodeForGpu,
    /// The runtime did not accept a wrapper.
    NotInitialized,
}

impl Rig {
    /// Builds it, if the real runtime is installed and `library` is for it.
    ///
    /// # Errors
    /// The library cannot be read, or the compiler fails.
    pub(crate) fn find(library: &Path, directory: &Path) -> Result<Option<Self>> {
        let is_installed = NEEDED.iter().all(|(file, _)| Path::new(file).exists());
        match is_installed && stub_libraries::is_needed(RUNTIME, library)? {
            true => Ok(Some(Self::build(directory)?)),
            false => Ok(None),
        }
    }

    /// Builds it.
    ///
    /// # Errors
    /// The compiler fails.
    pub(crate) fn build(directory: &Path) -> Result<Self> {
        process::step("Building a stub HSA runtime for the real HIP runtime");
        let source = repository::root().join("tests/real");
        fs::create_dir_all(directory)?;
        let (code, map) = (source.join("hsa.c"), source.join("hsa.map"));
        let library = directory.join("libhsa-runtime64.so.1");
        process::run!(
            "cc -std=gnu11 -Wall -Wextra -Werror -O2 -fPIC -shared -Wl,-soname,libhsa-runtime64.so.1 -Wl,--version-script={map} -o {library} {code}"
        )?;
        // A set-user-ID program ignores LD_LIBRARY_PATH, so the program itself needs the stub.
        let (code, program) = (source.join("load.c"), directory.join("load"));
        process::run!(
            "cc -Wall -Wextra -Werror -O2 -o {program} {code} -Wl,--no-as-needed,-rpath,{directory} {library}"
        )?;
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    /// Why the shim cannot be checked here.
    pub(crate) fn has_gpus() -> Option<&'static str> {
        Path::new("/sys/class/kfd").exists().then_some(
            "the shim takes code for the GPUs of this machine, not for those of the stub",
        )
    }

    /// Why a set-user-ID program cannot be run here.
    pub(crate) fn not_privileged(&self) -> Option<&'static str> {
        let probe = Execution {
            steps: &["secure"],
            privileged: true,
            ..Execution::default()
        };
        match is_root() {
            false => Some("only root can run a set-user-ID program as another user"),
            true => self
                .run(Path::new(""), &probe)
                .is_err()
                .then_some("set-user-ID programs get no privileges here"),
        }
    }

    /// Runs the program with a library.
    ///
    /// # Errors
    /// The program cannot be run, or fails for another reason than an error of the runtime.
    pub(crate) fn run(&self, library: &Path, execution: &Execution<'_>) -> Result<Outcome> {
        let report = self.directory.join("report.txt");
        let privileged = self.directory.join(PRIVILEGED);
        fs::write(&report, "")?;
        let _directory = process::shell().push_dir(&self.directory);
        let steps = execution.steps;
        let command = match execution.privileged {
            true => {
                fs::copy(self.directory.join("load"), &privileged)?;
                fs::set_permissions(&privileged, Permissions::from_mode(0o4755))?;
                // The path is relative, since others may not enter all parents of the directory.
                cmd!(
                    process::shell(),
                    "setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups ./{PRIVILEGED} {library} {steps...}"
                )
            }
            false => cmd!(process::shell(), "./load {library} {steps...}"),
        };
        let output = command
            .env(
                "HIP_ENABLE_DEFERRED_LOADING",
                if execution.deferred { "1" } else { "0" },
            )
            .env("LD_PRELOAD", execution.preload.unwrap_or(Path::new("")))
            .env("STUB_HSA_GPUS", execution.gpus.join(","))
            .env("STUB_HSA_REPORT", &report)
            .quiet()
            .ignore_status()
            .output();
        // No set-user-ID program stays behind.
        let _ = fs::remove_file(&privileged);
        let output = output?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let end = if output.status.success() {
            End::Normal
        } else if stderr.contains("hipErrorNoBinaryForGpu") {
            End::NoCodeForGpu
        } else if stderr.contains("Module not initialized") {
            End::NotInitialized
        } else {
            bail!(
                "loading {} ({execution:?}) failed ({}):\n{stderr}",
                library.display(),
                output.status
            );
        };
        Ok(Outcome {
            loaded: loaded(&fs::read_to_string(&report)?)?,
            end,
        })
    }

    /// All code objects that the runtime takes from a library for a GPU.
    ///
    /// # Errors
    /// There is none, or the program fails.
    pub(crate) fn all(&self, library: &Path, gpu: &str) -> Result<Vec<CodeObject>> {
        let execution = Execution {
            gpus: &[gpu],
            steps: &["open", "init"],
            ..Execution::default()
        };
        let mut outcome = self.run(library, &execution)?;
        let loaded = outcome.loaded.remove(&0).unwrap_or_default();
        ensure!(
            !loaded.is_empty(),
            "the real runtime loaded nothing for {gpu} from {}: {:?}",
            library.display(),
            outcome.end
        );
        Ok(loaded)
    }
}

impl Outcome {
    /// How many code objects were loaded, for all GPUs together.
    pub(crate) fn count(&self) -> usize {
        self.loaded.values().map(Vec::len).sum()
    }
}

/// Reads the report of the stub.
fn loaded(report: &str) -> Result<BTreeMap<usize, Vec<CodeObject>>> {
    let mut loaded: BTreeMap<usize, Vec<CodeObject>> = BTreeMap::new();
    for line in report.lines() {
        match line.split('\t').collect::<Vec<_>>().as_slice() {
            ["code object", gpu, size, digest] => loaded
                .entry(gpu.parse()?)
                .or_default()
                .push(CodeObject::reported(size, digest)?),
            ["symbol", _] => {}
            _ => bail!("the stub HSA runtime reported an unknown line: {line}"),
        }
    }
    for code_objects in loaded.values_mut() {
        code_objects.sort();
    }
    Ok(loaded)
}
