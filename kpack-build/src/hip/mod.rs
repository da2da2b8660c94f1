//! HIP kernels of a Rust crate, compiled and split by its build script.
//!
//! A build script runs before its crate is linked, so it can never split the linked program; but it
//! can split the objects that it compiles ([`object_file`](crate::object_file)), and hand the linker
//! a library of host code. The device code is in archives in `OUT_DIR`, and the program finds it
//! there as long as it is run by Cargo; staging makes a release of it that can be moved.

mod build;
mod compile;
mod compiler;
mod device_code;
mod environment;
mod flags;
mod library;
mod make_rule;
mod shell_words;
mod targets;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::Error;
use build::{Build, Kind};
use environment::Environment;

pub use flags::workspaces;
pub use library::INCLUDE_DIRECTORIES;
pub use library::Library;

/// Compiles HIP sources into a library without device code, and archives with it.
///
/// `build.rs`:
///
/// ```no_run
/// kpack_build::Hip::new()
///     .file("src/vector.hip")
///     .include("include")
///     .offload_archs(["gfx1100", "gfx942"])
///     .compile("vector");
/// ```
///
/// | variable | what for |
/// | --- | --- |
/// | `HIPCXX` | the compiler; with a launcher in front, as `ccache clang++` |
/// | `ROCM_PATH` | the ROCm installation: its compiler, headers, and library `amdhip64` |
/// | `HIPFLAGS` | further flags, separated by spaces; quotes as in a shell |
/// | `KPACK_OFFLOAD_ARCH` | GPU targets where the script names none, separated by `;`, `,` or spaces |
#[derive(Debug, Clone, Default)]
pub struct Hip {
    files: Vec<PathBuf>,
    includes: Vec<PathBuf>,
    defines: Vec<(String, Option<String>)>,
    flags: Vec<OsString>,
    offload_archs: Vec<String>,
    standard: Option<String>,
    module: Option<String>,
    compiler: Option<PathBuf>,
    out_dir: Option<PathBuf>,
    silent: bool,
    without_runtime: bool,
    without_standard_library: bool,
    /// Instead of the process's own.
    environment: Option<BTreeMap<String, OsString>>,
}

impl Hip {
    /// A build with nothing to compile yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source.
    pub fn file(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.files.push(path.as_ref().to_owned());
        self
    }

    /// Adds sources.
    pub fn files(&mut self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> &mut Self {
        for path in paths {
            self.file(path);
        }
        self
    }

    /// Adds a directory to look for headers in.
    pub fn include(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.includes.push(directory.as_ref().to_owned());
        self
    }

    /// Adds directories to look for headers in.
    pub fn includes(&mut self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> &mut Self {
        for path in paths {
            self.include(path);
        }
        self
    }

    /// Defines a macro, with or without a value.
    pub fn define<'a>(
        &mut self,
        name: impl Into<String>,
        value: impl Into<Option<&'a str>>,
    ) -> &mut Self {
        let value = value.into().map(str::to_owned);
        self.defines.push((name.into(), value));
        self
    }

    /// Adds a flag for the compiler. What matters to the link (`--sysroot=…`, `-fuse-ld=…`,
    /// `-Wl,…`, `-L…`) is given to that of a shared library, too.
    pub fn flag(&mut self, flag: impl AsRef<OsStr>) -> &mut Self {
        self.flags.push(flag.as_ref().to_owned());
        self
    }

    /// Adds flags for the compiler.
    pub fn flags(&mut self, flags: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        for flag in flags {
            self.flag(flag);
        }
        self
    }

    /// The C++ standard, such as `c++17`; otherwise the compiler's own.
    pub fn std(&mut self, standard: impl Into<String>) -> &mut Self {
        self.standard = Some(standard.into());
        self
    }

    /// Adds a GPU target, such as `gfx1100` or `gfx90a:xnack+`, or a list of them with semicolons, as
    /// CMake has it. Where none is added, `KPACK_OFFLOAD_ARCH` names them.
    pub fn offload_arch(&mut self, target: impl Into<String>) -> &mut Self {
        self.offload_archs.push(target.into());
        self
    }

    /// Adds GPU targets.
    pub fn offload_archs(
        &mut self,
        targets: impl IntoIterator<Item = impl Into<String>>,
    ) -> &mut Self {
        for target in targets {
            self.offload_arch(target);
        }
        self
    }

    /// The module that the archives are named after; by default the package. No other package that is
    /// linked into the same program may have it.
    pub fn module(&mut self, name: impl Into<String>) -> &mut Self {
        self.module = Some(name.into());
        self
    }

    /// The compiler, which otherwise is looked for: `HIPCXX`; that of ROCm in `ROCM_PATH`, on the
    /// `PATH` or in `/opt/rocm`; another one on the `PATH`. The first that supports all GPU targets
    /// of the build is taken.
    pub fn compiler(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.compiler = Some(path.as_ref().to_owned());
        self
    }

    /// Where to build, instead of `OUT_DIR`.
    pub fn out_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.out_dir = Some(directory.as_ref().to_owned());
        self
    }

    /// Whether Cargo is told what was built; it is by default. [`Library::directives`] has what
    /// would be said.
    pub fn cargo_metadata(&mut self, tell: bool) -> &mut Self {
        self.silent = !tell;
        self
    }

    /// Whether the program is linked with the HIP runtime, `amdhip64`; it is by default.
    pub fn link_runtime(&mut self, link: bool) -> &mut Self {
        self.without_runtime = !link;
        self
    }

    /// Whether the program is linked with the C++ standard library, `stdc++`; it is by default.
    pub fn link_standard_library(&mut self, link: bool) -> &mut Self {
        self.without_standard_library = !link;
        self
    }

    /// Variables to be read instead of the process's environment: for tests, and for building outside
    /// of a build script.
    pub fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, impl Into<OsString>)>,
    ) -> &mut Self {
        let variables = variables.into_iter();
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        self.environment = Some(variables.collect());
        self
    }

    /// Makes the static library `lib<name>.a`.
    ///
    /// # Panics
    /// As [`try_compile`](Self::try_compile) fails.
    #[track_caller]
    pub fn compile(&self, name: &str) -> Library {
        match self.try_compile(name) {
            Ok(library) => library,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Makes the static library `lib<name>.a`, and the archives with its device code.
    ///
    /// # Errors
    /// [`Error::Compiler`] where there is no compiler, or the sources do not compile;
    /// [`Error::Usage`] for what makes no sense; [`Error::Refused`] for objects that cannot be split
    /// before the link; [`Error::Io`].
    pub fn try_compile(&self, name: &str) -> Result<Library, Error> {
        self.build(name, Kind::Static)
    }

    /// Makes the shared library `lib<name>.so`.
    ///
    /// # Panics
    /// As [`try_shared`](Self::try_shared) fails.
    #[track_caller]
    pub fn shared(&self, name: &str) -> Library {
        match self.try_shared(name) {
            Ok(library) => library,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Makes the shared library `lib<name>.so` and the archives with its device code. A program that
    /// Cargo runs finds it; one that was staged does with the run path `$ORIGIN/../lib`, which only
    /// its own package can give it.
    ///
    /// # Errors
    /// As [`try_compile`](Self::try_compile).
    pub fn try_shared(&self, name: &str) -> Result<Library, Error> {
        self.build(name, Kind::Shared)
    }

    fn build(&self, name: &str, kind: Kind) -> Result<Library, Error> {
        let environment = match &self.environment {
            Some(variables) => Environment::of(variables.clone()),
            None => Environment::of_process(),
        };
        let library = Build::new(self, name, &environment)?.run(kind)?;
        if !self.silent {
            library.emit();
        }
        Ok(library)
    }
}
