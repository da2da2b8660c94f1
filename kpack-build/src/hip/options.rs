//! What a build script asks for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kpack_core::Spirv;

/// Compiles HIP sources into a host-only library and archives of their device code.
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
/// | variable | purpose |
/// | --- | --- |
/// | `HIPCXX` | the compiler; with a launcher in front, as `ccache clang++` |
/// | `ROCM_PATH` | the ROCm installation: its compiler, headers, and library `amdhip64` |
/// | `HIPFLAGS` | further flags, separated by spaces; quotes as in a shell, `#` starts no comment |
/// | `KPACK_OFFLOAD_ARCH` | GPU targets where the script names none, separated by `;`, `,` or spaces |
/// | `CXXFLAGS`, `AR`, `ARFLAGS` | flags and the archiver, as for the crate `cc`; also for one target, such as `CXXFLAGS_x86_64_unknown_linux_gnu` or `TARGET_AR` |
///
/// `cc` computes the flags for the host from what Cargo says of the target and the profile, and runs the compiler within
/// the limits of Cargo's job server. `HIPFLAGS` come last.
#[derive(Debug, Clone, Default)]
pub struct Hip {
    pub(super) files: Vec<PathBuf>,
    pub(super) includes: Vec<PathBuf>,
    pub(super) defines: Vec<(String, Option<String>)>,
    pub(super) flags: Vec<OsString>,
    pub(super) offload_archs: Vec<String>,
    pub(super) standard: Option<String>,
    pub(super) module: Option<String>,
    pub(super) compiler: Option<PathBuf>,
    pub(super) spirv: Spirv,
    pub(super) strip_debug: bool,
    pub(super) out_dir: Option<PathBuf>,
    pub(super) silent: bool,
    pub(super) without_runtime: bool,
    pub(super) without_standard_library: bool,
    /// Replaces the process's environment.
    pub(super) environment: Option<BTreeMap<OsString, OsString>>,
}

impl Hip {
    /// A build without sources.
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

    /// Adds a header directory.
    pub fn include(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.includes.push(directory.as_ref().to_owned());
        self
    }

    /// Adds header directories.
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

    /// Adds a compiler flag. Flags that affect the link (`--sysroot=…`, `-fuse-ld=…`, `-Wl,…`,
    /// `-L…`) also apply to linking a shared library.
    pub fn flag(&mut self, flag: impl AsRef<OsStr>) -> &mut Self {
        self.flags.push(flag.as_ref().to_owned());
        self
    }

    /// Adds compiler flags.
    pub fn flags(&mut self, flags: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        for flag in flags {
            self.flag(flag);
        }
        self
    }

    /// Sets the C++ standard, such as `c++17`; defaults to the compiler's.
    pub fn std(&mut self, standard: impl Into<String>) -> &mut Self {
        self.standard = Some(standard.into());
        self
    }

    /// Adds a GPU target, such as `gfx1100` or `gfx90a:xnack+`, or a semicolon-separated list as in
    /// CMake. Without any, `KPACK_OFFLOAD_ARCH` names the targets.
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

    /// Sets the module that the archives are named after; defaults to the package name. Each
    /// package linked into a program needs its own module.
    pub fn module(&mut self, name: impl Into<String>) -> &mut Self {
        self.module = Some(name.into());
        self
    }

    /// Sets the compiler. Without it, `HIPCXX` names the compiler. If that is not set either, kpack tries the compilers
    /// in `ROCM_PATH`, then `amdclang++` on the `PATH`, then those in `/opt/rocm` (unless `ROCM_PATH` is set), and last
    /// `hipcc` and `clang++` on the `PATH`. It takes the first that supports all GPU targets of the build and
    /// finds its lld.
    pub fn compiler(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.compiler = Some(path.as_ref().to_owned());
        self
    }

    /// What to do with kernels that have SPIR-V (`amdgcnspirv` among the targets). Defaults to [`Spirv::Keep`]: the
    /// library keeps them, with their device code for all targets. No effect for Windows, where `kpack stage --spirv`
    /// decides.
    pub fn spirv(&mut self, spirv: Spirv) -> &mut Self {
        self.spirv = spirv;
        self
    }

    /// Sets the build directory instead of `OUT_DIR`.
    pub fn out_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.out_dir = Some(directory.as_ref().to_owned());
        self
    }

    /// Whether to print directives for Cargo (default: yes). [`Library::directives`](super::Library::directives) returns
    /// them in either case, except for the variables that the crate `cc` reads.
    pub fn cargo_metadata(&mut self, tell: bool) -> &mut Self {
        self.silent = !tell;
        self
    }

    /// Whether to link the program with the HIP runtime, `amdhip64` (default: yes).
    pub fn link_runtime(&mut self, link: bool) -> &mut Self {
        self.without_runtime = !link;
        self
    }

    /// Whether to link the program with the C++ standard library, `stdc++` (default: yes).
    pub fn link_standard_library(&mut self, link: bool) -> &mut Self {
        self.without_standard_library = !link;
        self
    }

    /// Whether to remove the debug sections of device code (default: no). `kpack stage --strip-debug` removes
    /// them from a release alone.
    pub fn strip_debug(&mut self, strip: bool) -> &mut Self {
        self.strip_debug = strip;
        self
    }

    /// Replaces the process's environment variables: for tests, and for building outside of a build
    /// script. Cargo's job server is still that of the process.
    pub fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, impl Into<OsString>)>,
    ) -> &mut Self {
        self.environment = Some(
            variables.into_iter().map(|(name, value)| (name.into().into(), value.into())).collect(),
        );
        self
    }
}
