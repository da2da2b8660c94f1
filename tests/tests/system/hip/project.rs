//! The HIP project of `tests/e2e`: built by clang through CMake, split by `kpack_install`.

use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::Result;
use kpack_tests::require::{self, find_program};

use super::check::Checker;
use super::reference::Reference;
use super::runtime::{Program, Runtime};
use crate::support::{prefix, root, run, work};

/// The HIP compiler.
pub(crate) const COMPILER: &str = "clang++-19";
/// The CMake generator.
pub(crate) const GENERATOR: &str = "Ninja";

/// Whether the project can be built.
pub(crate) fn has_tools() -> bool {
    require::tools(&[COMPILER, "ld.lld-19", "cmake", "ninja"])
}

/// The project, installed unsplit, and split by its own build.
#[derive(Debug)]
pub(crate) struct Project {
    pub(crate) fat: PathBuf,
    pub(crate) split: PathBuf,
    /// The programs to run.
    programs: Vec<Program>,
    /// Observations of the unsplit prefix.
    pub(crate) reference: Reference,
}

/// Linkers to link the library with, and the program to detect each.
const LINKERS: [(&str, &str); 4] =
    [("bfd", "ld.bfd"), ("gold", "ld.gold"), ("lld", "ld.lld-19|ld.lld"), ("mold", "ld.mold")];

/// The project, which all tests share.
pub(crate) fn project() -> &'static Project {
    static PROJECT: LazyLock<Project> =
        LazyLock::new(|| Project::build().unwrap_or_else(|error| panic!("tests/e2e: {error:#}")));
    &PROJECT
}

/// The stub HIP runtime, which all tests share.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        Runtime::build(&work("hip")).unwrap_or_else(|error| panic!("the stub runtime: {error:#}"))
    });
    &RUNTIME
}

impl Project {
    /// Builds and installs it unsplit, runs it, and installs the same build through `kpack_install`.
    fn build() -> Result<Self> {
        let work = work("project");
        let linkers = LINKERS.iter().filter(|(_, programs)| find_program(programs).is_some());
        let linkers = Vec::from_iter(linkers.map(|(linker, _)| *linker));
        let (source, build) = (root().join("tests/e2e"), work.join("build"));
        let prefixes = format!("{};{}", prefix().display(), runtime().prefix.display());
        let listed = linkers.join(";");
        let install = |name: &str, split: &str| {
            let prefix = work.join(name);
            run!(
                "cmake -S {source} -B {build} -G {GENERATOR} -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER={COMPILER} -DCMAKE_PREFIX_PATH={prefixes} -DLINKERS={listed} -DSPLIT={split}"
            )?;
            run!("cmake --build {build} --parallel")?;
            run!("cmake --install {build} --prefix {prefix}")?;
            anyhow::Ok(prefix)
        };
        let fat = install("fat", "OFF")?;
        let programs = programs(&linkers);
        let mut reference = Reference::default();
        for program in &programs {
            let scratch = work.join("fat-run");
            reference.add(&runtime().run(&fat, program, "gfx1100", &scratch)?)?;
        }
        let split = install("split", "ON")?;
        Ok(Self { fat, split, programs, reference })
    }

    /// Checks of a split prefix, which write to a directory of this name.
    pub(crate) fn checker(&self, scratch: &str) -> Checker<'_> {
        Checker {
            runtime: runtime(),
            programs: &self.programs,
            reference: &self.reference,
            scratch: work(scratch),
        }
    }
}

/// Flags for clang with the header of the HIP project in place of ROCm.
pub(crate) fn flags_without_rocm() -> String {
    let header = root().join("tests/e2e/hip");
    format!("-nogpuinc -nogpulib -I{}", header.display())
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
