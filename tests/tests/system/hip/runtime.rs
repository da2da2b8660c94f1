//! Builds the stub HIP runtime with the C compiler, runs programs with it, and reads its reports.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use kpack_tests::fixture::stub_hip;
use kpack_tests::process::output;
use kpack_tests::sha256;

use crate::support::{prefix, root, run};

/// The stub's `libamdhip64.so`, for linking and loading.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// The prefix with `lib/libamdhip64.so`.
    pub(crate) prefix: PathBuf,
}

/// One execution of a program of a prefix.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// Path in the prefix.
    pub(crate) executable: PathBuf,
    /// Paths in the prefix of the libraries that it loads.
    pub(crate) libraries: Vec<PathBuf>,
}

/// What a program printed, and what the runtime reported.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) events: Vec<Event>,
}

/// One line of the report.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// The binary, as a path in the prefix.
    pub(super) binary: PathBuf,
    /// Address of the wrapper, relative to where the binary is loaded.
    pub(super) wrapper: u64,
    pub(crate) kind: Kind,
}

/// What the runtime reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A fat wrapper; the bundle that it points to was copied to this file.
    Fat { bundle: PathBuf },
    /// A split wrapper, and the marker that it points to.
    Split { co_index: u32, kernel_name: String, search_paths: Vec<String> },
    /// The code object that was loaded for the simulated GPU.
    Loaded(CodeObject),
    /// The number of the loader's error.
    Missing(i32),
    /// A kernel is registered.
    Function(String),
    /// A kernel is launched.
    Launch(String),
}

/// Stands for the bytes of a code object, so that those of a large library need no memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CodeObject {
    size: usize,
    sha256: String,
}

impl CodeObject {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { size: bytes.len(), sha256: sha256(bytes) }
    }

    /// The code object that a program reported by size and digest.
    ///
    /// # Errors
    /// The size is not a number.
    pub(crate) fn reported(size: &str, sha256: &str) -> Result<Self> {
        Ok(Self { size: size.parse()?, sha256: sha256.to_owned() })
    }
}

impl fmt::Debug for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, sha256 } = self;
        write!(f, "a code object of {size} bytes, SHA-256 {sha256:.8}…")
    }
}

impl Runtime {
    /// Builds it in `prefix`, with kpack's loader.
    pub(crate) fn build(prefix: &Path) -> Result<Self> {
        let library = prefix.join("lib");
        fs::create_dir_all(&library)?;
        let loader = add_loader(&library)?;
        stub_hip(&library.join("libamdhip64.so.6"), &loader)?;
        let link = library.join("libamdhip64.so");
        if !link.exists() {
            std::os::unix::fs::symlink("libamdhip64.so.6", link)?;
        }
        Ok(Self { prefix: prefix.to_owned() })
    }

    /// Runs `program` of `prefix` for a GPU with these ISAs. Bundles of fat wrappers are copied into
    /// `scratch`.
    ///
    /// # Errors
    /// The program fails (the error has what it printed), or its report cannot be read.
    pub(crate) fn run(
        &self,
        prefix: &Path,
        program: &Program,
        agent: &str,
        scratch: &Path,
    ) -> Result<Observation> {
        let prefix = prefix.canonicalize().with_context(|| prefix.display().to_string())?;
        fs::create_dir_all(scratch)?;
        let report = scratch.join("report.txt");
        let _ = fs::remove_file(&report);
        let executable = prefix.join(&program.executable);
        let libraries: Vec<PathBuf> = program.libraries.iter().map(|l| prefix.join(l)).collect();
        let mut command = Command::new(&executable);
        command.args(&libraries).env("LD_LIBRARY_PATH", self.prefix.join("lib"));
        command.env("ROCM_KPACK_DEBUG", "1").env("LD_BIND_NOW", "1");
        command.env("STUB_HIP_REPORT", &report).env("STUB_HIP_DUMP", scratch);
        // The stub may leak; only the program matters.
        command.env("STUB_HIP_AGENT", agent).env("ASAN_OPTIONS", "detect_leaks=0");
        let output = output(&mut command);
        let [stdout, stderr] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        ensure!(
            output.status.success(),
            "{} failed ({})\n{stdout}{stderr}",
            executable.display(),
            output.status
        );
        let text = fs::read_to_string(&report).with_context(|| {
            format!("{} registered nothing with the runtime", executable.display())
        })?;
        let events =
            text.lines().map(|line| parse(line, &prefix, &libraries)).collect::<Result<_>>()?;
        Ok(Observation { stdout, stderr, events })
    }
}

/// Puts kpack's loader beside a stub runtime in `directory`, as in a ROCm installation. Returns the flags for the C
/// compiler.
pub(super) fn add_loader(directory: &Path) -> Result<Vec<String>> {
    let (kpack, name) = (prefix(), "librocm_kpack.so.0");
    fs::copy(kpack.join("lib").join(name), directory.join(name))?;
    Ok(vec![
        format!("-I{}/include", kpack.display()),
        format!("-L{}", directory.display()),
        format!("-l:{name}"),
        "-Wl,-rpath,$ORIGIN".to_owned(),
    ])
}

/// The source file of the stub.
pub(super) fn source() -> PathBuf {
    root().join("tests/stub-hip/amdhip64.c")
}

fn parse(line: &str, prefix: &Path, libraries: &[PathBuf]) -> Result<Event> {
    let unknown = || anyhow!("the stub HIP runtime reported an unknown line: {line}");
    let fields: Vec<&str> = line.split('\t').collect();
    let [event, binary, wrapper, rest @ ..] = fields.as_slice() else {
        return Err(unknown());
    };
    let kind = match (*event, rest) {
        ("fat", [bundle]) => Kind::Fat { bundle: bundle.into() },
        ("split", [co_index, kernel_name, search_paths @ ..]) => Kind::Split {
            co_index: co_index.parse()?,
            kernel_name: (*kernel_name).to_owned(),
            search_paths: search_paths.iter().map(|&path| path.to_owned()).collect(),
        },
        ("loaded", [size, sha256]) => Kind::Loaded(CodeObject::reported(size, sha256)?),
        ("missing", [error]) => Kind::Missing(error.parse()?),
        ("function", [name]) => Kind::Function((*name).to_owned()),
        ("launch", [name]) => Kind::Launch((*name).to_owned()),
        _ => return Err(unknown()),
    };
    let mut binary = Path::new(binary);
    // A library in the prefix may be a link to a file elsewhere.
    let is_it = |library: &&PathBuf| library.canonicalize().is_ok_and(|file| file == binary);
    if !binary.starts_with(prefix)
        && let Some(library) = libraries.iter().find(is_it)
    {
        binary = library;
    }
    ensure!(
        binary.starts_with(prefix),
        "the program loaded {}, which is not in {}",
        binary.display(),
        prefix.display()
    );
    Ok(Event {
        binary: binary.strip_prefix(prefix)?.to_owned(),
        wrapper: u64::from_str_radix(wrapper, 16)?,
        kind,
    })
}

/// Builds a program that loads the libraries that it is given.
pub(crate) fn build_load(output: &Path) -> Result<()> {
    let source = root().join("tests/e2e/load.c");
    run!("cc -O2 -o {output} {source} -ldl").map(drop)
}
