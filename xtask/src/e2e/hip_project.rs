//! The real HIP project: built by clang through CMake, split by `kpack_install`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::bundle_reader;
use super::project::Project;
use super::reference::{Reference, unbundle};
use super::runtime::{Program, Runtime};
use crate::{process, repository};

/// The programs that build it.
#[derive(Debug)]
pub(super) struct HipTools {
    compiler: PathBuf,
    bundler: PathBuf,
    generator: &'static str,
}

/// Linkers to link the library with, and the program to detect each.
const LINKERS: [(&str, &str); 4] = [
    ("bfd", "ld.bfd"),
    ("gold", "ld.gold"),
    ("lld", "ld.lld-19|ld.lld"),
    ("mold", "ld.mold"),
];

impl HipTools {
    /// Finds a HIP compiler and CMake.
    ///
    /// # Errors
    /// A tool is not installed.
    pub(super) fn find() -> Result<Self> {
        let program = |names: &str| {
            process::find_program(names)
                .with_context(|| format!("{} is not installed", names.replace('|', " or ")))
        };
        // clang looks for llvm-objcopy next to itself, so resolve the link in the PATH.
        let bundler = program("clang-offload-bundler-19|clang-offload-bundler")?;
        let bundler = bundler.canonicalize().unwrap_or(bundler);
        program("ld.lld-19|ld.lld").context("clang links device code with lld")?;
        program("cmake")?;
        Ok(Self {
            compiler: program("clang++-19|clang++")?,
            bundler,
            generator: match process::find_program("ninja") {
                Some(_) => "Ninja",
                None => {
                    program("make")?;
                    "Unix Makefiles"
                }
            },
        })
    }

    /// The HIP compiler.
    pub(super) fn compiler(&self) -> &Path {
        &self.compiler
    }

    /// The CMake generator.
    pub(super) fn generator(&self) -> &str {
        self.generator
    }

    /// Builds the project again with objects that are split as they are compiled, and installs it. The
    /// build directory is the same, since debug information names it.
    ///
    /// # Errors
    /// The build or install fails; the error has its output.
    pub(super) fn build_split_at_compile(
        &self,
        runtime: &Runtime,
        kpack: &Path,
        work: &Path,
        prefix: &Path,
    ) -> Result<()> {
        self.configure(runtime, kpack, work, "ON", "compile")?;
        let build = work.join("build");
        process::run!("cmake --build {build} --parallel --clean-first")?;
        self.install(work, prefix, &[])
    }

    /// Builds and installs the project below `work`: unsplit, then split through the CMake
    /// package in the prefix `kpack`.
    ///
    /// # Errors
    /// The build fails, with its output, or an unsplit program does not run.
    pub(super) fn build(&self, runtime: &Runtime, kpack: &Path, work: &Path) -> Result<Project> {
        let linkers = linkers();
        process::step(&format!(
            "Building a HIP project with {} (linkers: {})",
            self.compiler.display(),
            linkers.join(", ")
        ));
        let (fat, build) = (work.join("fat"), work.join("build"));
        self.configure(runtime, kpack, work, "OFF", "install")?;
        process::run!("cmake --build {build} --parallel")?;
        self.install(work, &fat, &[])?;

        process::step("Running it unsplit, and extracting its device code with clang's bundler");
        let programs = programs(&linkers);
        let mut reference = Reference::default();
        for program in &programs {
            let scratch = work.join("fat-run");
            let observation = runtime.run(&fat, program, "gfx1100", &scratch)?;
            println!(
                "   {}: {}",
                program.executable.display(),
                observation.stdout.trim()
            );
            reference.add(&observation, |_, bundle| {
                let code_objects = unbundle(&self.bundler, bundle, &scratch)?;
                ensure!(
                    bundle_reader::read(bundle)? == code_objects,
                    "clang-offload-bundler and the second bundle reader disagree about {}",
                    bundle.display()
                );
                Ok(code_objects)
            })?;
        }

        process::step("Installing the same build through kpack_install");
        let split = work.join("split");
        self.configure(runtime, kpack, work, "ON", "install")?;
        process::run!("cmake --build {build} --parallel")?;
        self.install(work, &split, &[])?;
        Ok(Project {
            fat,
            split,
            programs,
            reference,
            debugged: (library(linkers[0]), "vec_add"),
        })
    }

    /// Installs the configured build, with further arguments for `cmake --install`.
    ///
    /// # Errors
    /// The install fails; the error has its output.
    pub(super) fn install(&self, work: &Path, prefix: &Path, arguments: &[&str]) -> Result<()> {
        let build = work.join("build");
        process::run!("cmake --install {build} --prefix {prefix} {arguments...}")?;
        Ok(())
    }

    fn configure(
        &self,
        runtime: &Runtime,
        kpack: &Path,
        work: &Path,
        split: &str,
        split_at: &str,
    ) -> Result<()> {
        let (source, build) = (repository::root().join("tests/e2e"), work.join("build"));
        let (compiler, generator) = (&self.compiler, self.generator);
        let prefixes = format!("{};{}", kpack.display(), runtime.prefix.display());
        let linkers = linkers().join(";");
        process::run!(
            "cmake -S {source} -B {build} -G {generator} -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER={compiler} -DCMAKE_PREFIX_PATH={prefixes} -DLINKERS={linkers} -DSPLIT={split} -DKPACK_SPLIT_AT={split_at}"
        )?;
        Ok(())
    }
}

/// Flags for clang with the header of the HIP project in place of ROCm.
pub(super) fn flags_without_rocm() -> String {
    let header = repository::root().join("tests/e2e/hip");
    format!("-nogpuinc -nogpulib -I{}", header.display())
}

/// The linkers that are installed.
fn linkers() -> Vec<&'static str> {
    let all = LINKERS.iter();
    let all = all.filter(|(_, programs)| process::find_program(programs).is_some());
    all.map(|(linker, _)| *linker).collect()
}

fn library(name: &str) -> PathBuf {
    format!("lib/libvec_{name}.so.1.2").into()
}

/// Every executable. Those without AddressSanitizer load each library without it.
fn programs(linkers: &[&str]) -> Vec<Program> {
    let libraries: Vec<PathBuf> = linkers.iter().map(|linker| library(linker)).collect();
    let program = |name: &str, libraries: &[PathBuf]| Program {
        executable: format!("bin/{name}").into(),
        libraries: libraries.to_vec(),
    };
    vec![
        program("vecapp", &libraries),
        program("vecapp_nopie", &libraries),
        program("vecapp_asan", &[library("asan")]),
    ]
}
