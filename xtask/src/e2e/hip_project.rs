//! The real HIP project: built by clang through CMake, split by `kpack_install`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::reference::Reference;
use super::runtime::{Program, Runtime};
use crate::{log, process, repository};

/// The project, installed twice.
#[derive(Debug)]
pub(super) struct Project {
    /// The prefix with fat binaries.
    pub(super) fat: PathBuf,
    /// The prefix that the project's own build split.
    pub(super) split: PathBuf,
    /// The programs to run.
    pub(super) programs: Vec<Program>,
    /// Observations of the unsplit prefix.
    pub(super) reference: Reference,
}

/// The programs that build it.
#[derive(Debug)]
pub(super) struct HipTools {
    compiler: PathBuf,
    generator: &'static str,
}

/// Linkers to link the library with, and the program to detect each.
const LINKERS: [(&str, &str); 4] =
    [("bfd", "ld.bfd"), ("gold", "ld.gold"), ("lld", "ld.lld-19|ld.lld"), ("mold", "ld.mold")];

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
        program("ld.lld-19|ld.lld").context("clang links device code with lld")?;
        program("cmake")?;
        Ok(Self {
            compiler: program("clang++-19|clang++")?,
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
        let [fat, split] = ["fat", "split"].map(|name| work.join(name));
        self.install(runtime, kpack, work, "OFF", &fat)?;

        process::step("Running it unsplit");
        let programs = programs(&linkers);
        let mut reference = Reference::default();
        for program in &programs {
            let observation = runtime.run(&fat, program, "gfx1100", &work.join("fat-run"))?;
            let printed = observation.stdout.trim();
            log::note(&format!("   {}: {printed}", program.executable.display()))?;
            reference.add(&observation)?;
        }

        process::step("Installing the same build through kpack_install");
        self.install(runtime, kpack, work, "ON", &split)?;
        Ok(Project { fat, split, programs, reference })
    }

    /// Configures, builds and installs the project.
    fn install(
        &self,
        runtime: &Runtime,
        kpack: &Path,
        work: &Path,
        split: &str,
        prefix: &Path,
    ) -> Result<()> {
        let (source, build) = (repository::root().join("tests/e2e"), work.join("build"));
        let (compiler, generator) = (&self.compiler, self.generator);
        let prefixes = format!("{};{}", kpack.display(), runtime.prefix.display());
        let linkers = linkers().join(";");
        process::run!(
            "cmake -S {source} -B {build} -G {generator} -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER={compiler} -DCMAKE_PREFIX_PATH={prefixes} -DLINKERS={linkers} -DSPLIT={split}"
        )?;
        process::run!("cmake --build {build} --parallel")?;
        process::run!("cmake --install {build} --prefix {prefix}")?;
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
