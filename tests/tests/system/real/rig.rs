//! Real HIP runtimes over a stub of the HSA runtime, so they need no GPU.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};

use anyhow::{Context, Result, anyhow, bail, ensure};
use kpack_format::RocmVersion;
use kpack_tests::corpus;
use kpack_tests::process::output;
use kpack_tests::require::{self, is_root};
use kpack_tests::runtime;

use super::gpus;
use crate::hip::runtime::CodeObject;
use crate::support::{prefix, work};

/// Some user who is not root.
const NOBODY: &str = "65534";

/// A HIP runtime, the stub, and a program that loads libraries.
#[derive(Debug)]
pub(crate) struct Rig {
    /// What people call the runtime, and its version.
    pub(crate) name: String,
    pub(crate) version: RocmVersion,
    /// Whether it reads markers.
    pub(crate) reads_markers: bool,
    /// Whether it has kpack's loader in its own place.
    has_our_loader: bool,
    directory: PathBuf,
    /// The dynamic linker and the libraries of another distribution.
    root: Option<PathBuf>,
    /// What it does with the unsplit library of `tests/real` in each situation.
    pub(super) unsplit: OnceLock<Vec<Outcome>>,
}

/// One execution of the program.
#[derive(Debug, Default)]
pub(crate) struct Execution<'a> {
    /// The ISA of each GPU.
    pub(crate) gpus: &'a [&'a str],
    /// What the program does: the arguments of `tests/real/load.c`.
    pub(crate) steps: &'a [&'a str],
    /// A program that finds the runtime by its own run path, instead of the rig's.
    pub(crate) program: Option<&'a Path>,
    /// For `LD_PRELOAD`.
    pub(crate) preload: Option<&'a Path>,
    /// More variables.
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// The runtime loads a code object when its kernel is used first, not all as it starts.
    pub(crate) deferred: bool,
    /// The program is set-user-ID, and its user is not root.
    pub(crate) privileged: bool,
}

/// What the real runtime did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The code objects that it loaded, by the number of the GPU.
    pub(crate) loaded: BTreeMap<usize, Vec<CodeObject>>,
    pub(crate) end: End,
}

/// What a program printed that opens the runtime itself, and the code objects that its GPU got.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) loaded: Vec<CodeObject>,
}

/// How a program ended.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) enum End {
    Normal,
    /// A function of the runtime gave this error.
    Error(i32),
    /// A signal ended it.
    Signal(i32),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal => f.write_str("yes"),
            Self::Error(98) => f.write_str("invalid function"),
            Self::Error(100) => f.write_str("no device"),
            Self::Error(200) => f.write_str("invalid image"),
            Self::Error(209) => f.write_str("no binary"),
            Self::Error(218) => f.write_str("invalid kernel file"),
            Self::Error(303) => f.write_str("init failed"),
            Self::Error(error) => write!(f, "error {error}"),
            Self::Signal(6) => f.write_str("abort"),
            Self::Signal(11) => f.write_str("SIGSEGV"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A runtime of ROCm that reads markers, twice: with ROCm's loader, and with kpack's.
pub(crate) fn rocm() -> Option<&'static [Rig; 2]> {
    static RIGS: LazyLock<Result<[Rig; 2]>> = LazyLock::new(|| {
        let rig =
            |kpack| Rig::rocm(kpack, &work(if kpack { "rig-rocm-kpack" } else { "rig-rocm" }));
        Ok([rig(false)?, rig(true)?])
    });
    if !require::file(HSA) {
        return None;
    }
    require::fetched(RIGS.as_ref().map_err(|error| anyhow!("{error:#}")))
}

/// The runtime of this machine's distribution, Debian 12.
pub(super) fn debian_12() -> Option<&'static Rig> {
    static RIG: LazyLock<Rig> = LazyLock::new(|| {
        let built = any_runtime().and_then(|runtime| {
            Rig::build(" (Debian 12)", &work("rig"), &runtime, "libhsa-runtime64.so.1", None)
        });
        built.unwrap_or_else(|error| panic!("{error:#}"))
    });
    Some(&*RIG)
}

/// The runtime of another of Debian's suites, with its C library.
pub(super) fn suite(rig: &'static OnceLock<Result<Rig>>, suite: &str) -> Option<&'static Rig> {
    let rig = rig.get_or_init(|| {
        let root = corpus::suite(suite)?;
        let name = match suite {
            "trixie" => " (Debian 13)".to_owned(),
            suite => format!(" (Debian {suite})"),
        };
        let runtime = runtime_in(&libraries(&root))?;
        let directory = work(&format!("rig-{suite}"));
        Rig::build(&name, &directory, &runtime, "libhsa-runtime64.so.1", Some(root))
    });
    require::fetched(rig.as_ref().map_err(|error| anyhow!("{error:#}")))
}

/// Headers of the HSA runtime.
pub(super) const HSA: &str = "/usr/include/hsa/hsa.h";

impl Rig {
    /// ROCm's runtime in an empty directory, with kpack's loader if that is wanted.
    ///
    /// # Errors
    /// It cannot be fetched.
    pub(super) fn rocm(kpack: bool, directory: &Path) -> Result<Self> {
        let loader = kpack.then(|| prefix().join("lib/librocm_kpack.so.0"));
        let (runtime, hsa) = runtime::rocm(directory, loader.as_deref())?;
        let name = if kpack { ", kpack's loader" } else { "" };
        let rig = Self::build(name, directory, &runtime, &hsa, None)?;
        Ok(Self { has_our_loader: kpack, ..rig })
    }

    fn build(
        name: &str,
        directory: &Path,
        runtime: &Path,
        hsa: &str,
        root: Option<PathBuf>,
    ) -> Result<Self> {
        let file = runtime.canonicalize()?;
        let full = file.to_string_lossy();
        // libamdhip64.so.5.2.21153, libamdhip64-00ca863d.so.7.14.60850-0000000
        let (_, number) = full.split_once(".so.").context("a runtime has a version")?;
        let number = number.split('-').next().unwrap_or(number);
        let parts: Vec<u16> =
            number.split('.').take(2).map(str::parse).collect::<Result<_, _>>()?;
        let name = format!("ROCm {number}{name}");
        let imports = runtime::build(directory, &file, hsa)?;
        Ok(Self {
            name,
            version: RocmVersion(parts[0], parts[1]),
            reads_markers: imports.contains("kpack_load_code_object"),
            has_our_loader: false,
            directory: directory.to_owned(),
            root,
            unsplit: OnceLock::new(),
        })
    }

    /// The libraries of its distribution.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.root.as_deref().map_or_else(system_libraries, libraries)
    }

    /// An empty directory of this name for a test with this runtime.
    pub(super) fn work(&self, name: &str) -> PathBuf {
        let own = self.directory.file_name().unwrap_or_default();
        work(&format!("{}-{name}", own.display()))
    }

    /// Where the program finds libraries.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Why the shim cannot be checked here.
    pub(crate) fn has_gpus() -> Option<&'static str> {
        Path::new("/sys/class/kfd").exists().then_some(
            "the shim takes code for the GPUs of this machine, not for those of the stub",
        )
    }

    /// Why a set-user-ID program cannot be run here.
    pub(crate) fn not_privileged(&self) -> Option<&'static str> {
        let probe = Execution { steps: &["secure"], privileged: true, ..Execution::default() };
        // Such a program obeys no LD_LIBRARY_PATH.
        if self.root.is_some() || self.reads_markers {
            return Some("it would get this machine's HIP runtime");
        }
        if is_root() {
            self.run(Path::new(""), &probe)
                .is_err()
                .then_some("set-user-ID programs get no privileges here")
        } else {
            Some("only root can run a set-user-ID program as another user")
        }
    }

    /// A number of a run, and the file for its report.
    fn report(&self) -> (usize, PathBuf) {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        (number, self.directory.join(format!("report-{number}.txt")))
    }

    /// Runs the program with a library.
    ///
    /// # Errors
    /// The program cannot be run, or fails for another reason than an error of the runtime.
    pub(crate) fn run(&self, library: &Path, execution: &Execution<'_>) -> Result<Outcome> {
        let (number, report) = self.report();
        // The path is relative, since others may not enter all parents of the directory.
        let privileged = format!("./load-privileged-{number}");
        fs::write(&report, "")?;
        let mut command;
        if execution.privileged {
            let program = self.directory.join(&privileged);
            fs::copy(self.directory.join("load"), &program)?;
            fs::set_permissions(&program, Permissions::from_mode(0o4755))?;
            command = Command::new("setpriv");
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", &privileged]);
        } else if let Some(program) = execution.program {
            command = Command::new(program);
            command.env_remove("LD_LIBRARY_PATH");
        } else {
            let libraries = self.root.as_deref().map(libraries);
            command = match &libraries {
                Some(libraries) => {
                    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
                    command.arg("./load");
                    command
                }
                None => Command::new("./load"),
            };
            let path = [self.directory.clone()].into_iter().chain(libraries);
            command.env("LD_LIBRARY_PATH", std::env::join_paths(path)?);
        }
        // The runtime also looks for libraries in the current directory.
        let current = execution.program.map_or(&*self.directory, |_| Path::new("/"));
        command.current_dir(current).arg(library).args(execution.steps);
        let deferred = if execution.deferred { "1" } else { "0" };
        command.env("HIP_ENABLE_DEFERRED_LOADING", deferred);
        command.env("LD_PRELOAD", execution.preload.unwrap_or(Path::new("")));
        command.env("STUB_HSA_GPUS", execution.gpus.join(",")).env("STUB_HSA_REPORT", &report);
        let output = output(command.envs(execution.environment.iter().copied()));
        // No set-user-ID program stays behind.
        let _ = fs::remove_file(self.directory.join(&privileged));
        let stderr = String::from_utf8_lossy(&output.stderr);
        let error = || {
            let (_, number) = stderr.trim_end().rsplit_once(" gives ")?;
            number.parse().ok()
        };
        let end = match (output.status.code(), output.status.signal()) {
            (Some(0), _) => End::Normal,
            (_, Some(signal)) => End::Signal(signal),
            _ => End::Error(error().with_context(|| {
                format!(
                    "loading {} ({execution:?}) failed ({}):\n{stderr}",
                    library.display(),
                    output.status
                )
            })?),
        };
        let loaded = loaded(&fs::read_to_string(&report)?)?;
        fs::remove_file(&report)?;
        Ok(Outcome { loaded, end })
    }

    /// Runs a program that opens the runtime itself. How it ends is not checked, because the stub cannot be shut down.
    ///
    /// # Errors
    /// It cannot be run.
    pub(super) fn run_alone(&self, program: &Path, arguments: &[&str], gpu: &str) -> Result<Alone> {
        let (_, report) = self.report();
        fs::write(&report, "")?;
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", &self.directory);
        let output = output(command.env("STUB_HSA_GPUS", gpu).env("STUB_HSA_REPORT", &report));
        let mut loaded = loaded(&fs::read_to_string(&report)?)?;
        fs::remove_file(&report)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Alone {
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            loaded: loaded.remove(&0).unwrap_or_default(),
        })
    }

    /// All code objects that the runtime takes from a library for some GPUs.
    ///
    /// # Errors
    /// The program fails for another reason than an error of the runtime.
    pub(crate) fn all_for(&self, library: &Path, gpus: &[&str]) -> Result<Outcome> {
        let execution = Execution { gpus, steps: &["open", "init"], ..Execution::default() };
        self.run(library, &execution)
    }

    /// All code objects that the runtime takes from a library for a GPU.
    ///
    /// # Errors
    /// There is none, or the program fails.
    pub(crate) fn all(&self, library: &Path, gpu: &str) -> Result<Vec<CodeObject>> {
        let mut outcome = self.all_for(library, &[&gpus::isa(gpu)])?;
        let loaded = outcome.loaded.remove(&0).unwrap_or_default();
        ensure!(
            !loaded.is_empty(),
            "{} loaded nothing for {gpu} from {}: {}",
            self.name,
            library.display(),
            outcome.end
        );
        Ok(loaded)
    }
}

/// A GPU without code in any library here.
const NO_CODE: &str = "gfx1036";

/// That HIP runtimes load from a split library what they load from the unsplit one: for each of the GPUs, for two
/// that are alike, for two that differ, and for one without code. Returns how many code objects that were.
///
/// With kernels in a second archive for a GPU, of which ROCm's loader knows nothing, `all_by_rocm` is false.
///
/// # Errors
/// The first difference.
pub(crate) fn same_code(
    rigs: &[Rig],
    fat: &Path,
    split: &Path,
    gpus: &[&str],
    all_by_rocm: bool,
) -> Result<usize> {
    let processor = |gpu: &str| gpu.split(':').next().unwrap_or_default().to_owned();
    // Nobody has a generic GPU.
    let targets = gpus.iter().filter(|gpu| !gpu.contains("generic"));
    let isas: Vec<String> = targets.map(|target| gpus::isa(target)).collect();
    let gpus: Vec<&str> = isas.iter().map(String::as_str).collect();
    let first = *gpus.first().context("no GPU")?;
    let mut sets = vec![vec![NO_CODE]];
    sets.extend(gpus.iter().flat_map(|gpu| [vec![*gpu], vec![*gpu; 2]]));
    let other = gpus.iter().find(|gpu| processor(gpu) != processor(first));
    sets.extend(other.map(|other| vec![first, *other]));
    let mut count = 0;
    for rig in rigs {
        for gpus in &sets {
            let (expected, found) = (rig.all_for(fat, gpus)?, rig.all_for(split, gpus)?);
            // The runtime asks once, for all GPUs: the second of two that differ gets nothing.
            let may_lack = gpus.iter().any(|gpu| *gpu != gpus[0]);
            let gives_up = !all_by_rocm && !rig.has_our_loader;
            let same =
                if may_lack || gives_up { found.is_part_of(&expected) } else { found == expected };
            ensure!(
                same && (gpus[0] != NO_CODE || found.count() == 0),
                "{} takes {found:?} from {} for {gpus:?}, and {expected:?} from the unsplit library",
                rig.name,
                split.display()
            );
            count += found.count();
        }
    }
    ensure!(count > 0, "no runtime took code from {}", split.display());
    Ok(count)
}

/// The HIP runtime that is installed here.
pub(super) fn any_runtime() -> Result<PathBuf> {
    runtime_in(&system_libraries())
}

fn system_libraries() -> PathBuf {
    format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into()
}

/// The file of the HIP runtime in a directory.
fn runtime_in(libraries: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(libraries)?.flatten().map(|entry| entry.path());
    let is_runtime = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libamdhip64.so.")
    };
    files.find(is_runtime).with_context(|| format!("{} has no HIP runtime", libraries.display()))
}

/// The libraries of a root of Debian.
fn libraries(root: &Path) -> PathBuf {
    root.join("usr/lib/x86_64-linux-gnu")
}

impl Outcome {
    /// Whether a code object with these bytes was loaded.
    pub(crate) fn has(&self, bytes: &[u8]) -> bool {
        let code_object = CodeObject::of(bytes);
        self.loaded.values().flatten().any(|loaded| *loaded == code_object)
    }

    /// Whether all that was loaded is among what was loaded there.
    fn is_part_of(&self, other: &Self) -> bool {
        let theirs = |gpu| other.loaded.get(gpu).map_or(&[][..], Vec::as_slice);
        let mut loaded = self.loaded.iter();
        loaded.all(|(gpu, own)| own.iter().all(|one| theirs(gpu).contains(one)))
    }

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
            ["code object", gpu, size, digest] => {
                loaded.entry(gpu.parse()?).or_default().push(CodeObject::reported(size, digest)?)
            }
            ["symbol", _] => {}
            _ => bail!("the stub HSA runtime reported an unknown line: {line}"),
        }
    }
    for code_objects in loaded.values_mut() {
        code_objects.sort();
    }
    Ok(loaded)
}
