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
/// | `ROCM_PATH`, `HIP_PATH` | the ROCm installation: its compiler, headers, and library `amdhip64`; without them, see [`Rocm`](super::Rocm) |
/// | `HIPFLAGS` | further flags, separated by spaces; quotes as in a shell, `#` does not start a comment |
/// | `KPACK_OFFLOAD_ARCH` | GPU targets, separated by `;`, `,` or white space; they replace those that the script names |
/// | `CXXFLAGS`, `CXXSTDLIB`, `AR`, `ARFLAGS` | flags, the C++ standard library and the archiver, as for the crate `cc`; also for one target, such as `CXXFLAGS_x86_64_unknown_linux_gnu` or `TARGET_AR` |
///
/// The crate `cc` computes the flags for the host from what Cargo says of the target and the profile. Device code is compiled
/// with `-O3` and without debug information, whatever the profile and `CXXFLAGS` say. Flags of the script and `HIPFLAGS`
/// come last, and count for both. As many compilers run at once as Cargo's job server allows.
#[derive(Debug, Clone, Default)]
pub struct Hip {
    pub(super) files: Vec<PathBuf>,
    /// Device code of others, for modules.
    pub(super) device_files: Vec<DeviceFile>,
    /// The targets of sources that are not for all of them.
    pub(super) limits: BTreeMap<PathBuf, Vec<String>>,
    /// Objects that are added as they are.
    pub(super) objects: Vec<PathBuf>,
    pub(super) includes: Vec<PathBuf>,
    pub(super) defines: Vec<(String, Option<String>)>,
    pub(super) flags: Vec<Flag>,
    /// `None` if the profile decides for the host.
    pub(super) opt_level: Option<u32>,
    /// `None` if the profile decides for the host.
    pub(super) debug: Option<bool>,
    /// `None` for the compiler's own choice.
    pub(super) warnings: Option<bool>,
    pub(super) offload_archs: Vec<String>,
    pub(super) standard: Option<String>,
    pub(super) module: Option<String>,
    pub(super) compiler: Option<PathBuf>,
    pub(super) spirv: Spirv,
    pub(super) strip_debug: bool,
    pub(super) out_dir: Option<PathBuf>,
    pub(super) silent: bool,
    pub(super) skip: bool,
    pub(super) without_runtime: bool,
    /// `None` if `CXXSTDLIB` and the compiler decide.
    pub(super) cpp_link_stdlib: Option<Option<String>>,
    /// Replaces the process's environment.
    pub(super) environment: Option<BTreeMap<OsString, OsString>>,
}

/// A compiler flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Flag {
    Always(OsString),
    IfSupported(OsString),
}

/// A file with device code that others compiled, for a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceFile {
    /// The module, as the build script spells it.
    pub(super) module: String,
    pub(super) path: PathBuf,
    /// The target of a code object, as the build script spells it; `None` for a bundle.
    pub(super) target: Option<String>,
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

    /// Adds a linked code object for `target` to the module `name` of
    /// [`compile_modules`](Self::compile_modules): what rustc made for `amdgcn-amd-amdhsa`, Triton, or an assembler. A
    /// module can have several, each for another target.
    pub fn code_object(
        &mut self,
        name: impl Into<String>,
        target: impl Into<String>,
        path: impl AsRef<Path>,
    ) -> &mut Self {
        self.device_files.push(DeviceFile {
            module: name.into(),
            path: path.as_ref().to_owned(),
            target: Some(target.into()),
        });
        self
    }

    /// Adds the code objects of an offload bundle to the module `name` of
    /// [`compile_modules`](Self::compile_modules). A compressed bundle needs the crate `kpack-format` with its default
    /// feature `compression` as a build dependency.
    pub fn bundle(&mut self, name: impl Into<String>, path: impl AsRef<Path>) -> &mut Self {
        self.device_files.push(DeviceFile {
            module: name.into(),
            path: path.as_ref().to_owned(),
            target: None,
        });
        self
    }

    /// Adds a source that is compiled only for those of the build's GPU targets that `targets` includes, such as
    /// kernels with instructions that other GPUs lack. `gfx942` includes `gfx942:xnack+`. On other GPUs a launch of
    /// its kernels fails, as if there were no code for the GPU.
    pub fn file_for(
        &mut self,
        path: impl AsRef<Path>,
        targets: impl IntoIterator<Item = impl Into<String>>,
    ) -> &mut Self {
        let path = path.as_ref();
        // A second call adds targets.
        if !self.limits.contains_key(path) {
            self.file(path);
        }
        let limit = targets.into_iter().map(Into::into);
        self.limits.entry(path.to_owned()).or_default().extend(limit);
        self
    }

    /// Adds an object that another program compiled to a library. If it has device code, that is split off, too.
    pub fn object(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.objects.push(path.as_ref().to_owned());
        self
    }

    /// Adds a header directory. It comes before those of ROCm, so that a project can replace ROCm's headers.
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
    /// `-L…`) also apply to linking a [shared library](Self::shared).
    pub fn flag(&mut self, flag: impl AsRef<OsStr>) -> &mut Self {
        self.flags.push(Flag::Always(flag.as_ref().to_owned()));
        self
    }

    /// Adds a compiler flag if the compiler supports it for the host and all GPU targets of the build.
    pub fn flag_if_supported(&mut self, flag: impl AsRef<OsStr>) -> &mut Self {
        self.flags.push(Flag::IfSupported(flag.as_ref().to_owned()));
        self
    }

    /// Adds compiler flags.
    pub fn flags(&mut self, flags: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        for flag in flags {
            self.flag(flag);
        }
        self
    }

    /// Sets the optimization level of both host and device code. By default, the profile decides for host code, and
    /// device code has level 3.
    pub fn opt_level(&mut self, level: u32) -> &mut Self {
        self.opt_level = Some(level);
        self
    }

    /// Whether host and device code have debug information. By default, the profile decides for host code, and device
    /// code has none.
    pub fn debug(&mut self, debug: bool) -> &mut Self {
        self.debug = Some(debug);
        self
    }

    /// Whether the compiler warns: with `true`, `-Wall` and `-Wextra` apply to the pass for the host, so that no warning
    /// is repeated per target (to device code for modules, which have no such pass); with `false`, there are no warnings
    /// at all.
    pub fn warnings(&mut self, warnings: bool) -> &mut Self {
        self.warnings = Some(warnings);
        self
    }

    /// Sets the C++ standard, such as `c++17`; defaults to the compiler's.
    pub fn std(&mut self, standard: impl Into<String>) -> &mut Self {
        self.standard = Some(standard.into());
        self
    }

    /// Adds a GPU target, such as `gfx1100` or `gfx90a:xnack+`, or a semicolon-separated list as in
    /// CMake. The variable `KPACK_OFFLOAD_ARCH` replaces what the script names. If nothing names a target, and Cargo's
    /// `TARGET` is its `HOST`, then those of this machine's GPUs are the targets, with a warning.
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

    /// Sets the module that a library's archives are named after; defaults to the package name. Each
    /// package linked into a program needs its own module. No effect for [`compile_modules`](Self::compile_modules).
    pub fn module(&mut self, name: impl Into<String>) -> &mut Self {
        self.module = Some(name.into());
        self
    }

    /// Sets the compiler. Without it, `HIPCXX` names the compiler. If that is not set either, kpack tries the compilers
    /// of the [`Rocm`](super::Rocm) that variables or Python environments name, then `amdclang++` on the `PATH`, then
    /// those in `/opt/rocm` (unless `ROCM_PATH` or `HIP_PATH` is set), and last `hipcc` and `clang++` on the `PATH`. It
    /// takes the first that supports all GPU targets of the build and finds its lld.
    pub fn compiler(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.compiler = Some(path.as_ref().to_owned());
        self
    }

    /// What to do with kernels that have SPIR-V (`amdgcnspirv` among the targets). Defaults to [`Spirv::Keep`]: the
    /// library keeps them, with their device code for all targets. No effect for Windows, where `kpack stage --spirv`
    /// decides, and for [`compile_modules`](Self::compile_modules), because modules have no SPIR-V.
    pub fn spirv(&mut self, spirv: Spirv) -> &mut Self {
        self.spirv = spirv;
        self
    }

    /// Whether to compile nothing (default: no), so that no compiler is needed, as in
    /// `.skip(cfg!(feature = "stub"))`. Modules exist, but loading one is an error. Libraries are not made and not linked,
    /// so `cargo check` and `cargo doc` work, but programs that call them do not link. If docs.rs builds the
    /// documentation (`DOCS_RS`), nothing is compiled in either case.
    pub fn skip(&mut self, skip: bool) -> &mut Self {
        self.skip = skip;
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

    /// Whether to link the program with the HIP runtime, `amdhip64` (default: yes). No effect for
    /// [`compile_modules`](Self::compile_modules), which links nothing.
    pub fn link_runtime(&mut self, link: bool) -> &mut Self {
        self.without_runtime = !link;
        self
    }

    /// Sets the C++ standard library that the program is linked with; `None` links none. By default, the variable
    /// `CXXSTDLIB` names it, also for one target as `CXXSTDLIB_x86_64_unknown_linux_gnu`; without it, it is `c++` if the
    /// compiler uses libc++, and `stdc++` otherwise. Only for [`compile`](Self::compile): nothing is linked with modules,
    /// and the compiler links shared libraries.
    pub fn cpp_link_stdlib<'a>(&mut self, name: impl Into<Option<&'a str>>) -> &mut Self {
        self.cpp_link_stdlib = Some(name.into().map(str::to_owned));
        self
    }

    /// Whether to remove the debug sections of a library's device code (default: no). `kpack stage --strip-debug` removes
    /// them from a release alone. No effect for [`compile_modules`](Self::compile_modules), whose code has none unless
    /// [`debug`](Self::debug) asks for it.
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
