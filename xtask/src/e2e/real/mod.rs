//! `cargo xtask real`: builds a library with a distribution's own ROCm, with and without kpack, and loads its device
//! code with real HIP runtimes.
//!
//! The project is `tests/real`: hipcc compiles the device functions of rocRAND, and rocm-cmake installs
//! them. No GPU is needed: the real `libamdhip64` runs over a stub of the HSA runtime, which reports
//! each code object that it is given.
//!
//! The runtimes are those of Debian 12 (5.2), of Debian 13 (5.7), and of ROCm 7.14, which reads markers, with
//! ROCm's loader and with kpack's. `--suite` takes one of Debian's other suites instead. Each must load the
//! code objects of the unsplit library from joined libraries, from those with the shim, and, if it reads
//! markers, from split ones, in all kinds of processes.

pub(super) mod gpus;
pub(super) mod rig;
mod situations;
mod small;
mod windows;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::table::Table;
use crate::build::Profile;
use crate::process::NotRun;
use crate::{dist, process, repository};
use rig::{Execution, Rig};
use situations::{Code, Variant};

/// Options of `cargo xtask real`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Load the library with the HIP runtime of this suite of Debian, and do nothing else.
    #[arg(long, value_name = "NAME", value_parser = ["trixie", "sid", "experimental"])]
    suite: Option<String>,
    /// Compare ROCm's loader for Windows with kpack's, under wine, and do nothing else.
    #[arg(long, conflicts_with = "suite")]
    windows: bool,
}

/// Required files, and the Debian package of each.
const NEEDED: [(&str, &str); 5] = [
    ("/usr/include/hip/hip_runtime.h", "libamdhip64-dev"),
    ("/usr/include/hsa/hsa.h", "libhsa-runtime-dev"),
    ("/usr/bin/hipcc", "hipcc"),
    ("/usr/include/rocrand/rocrand_kernel.h", "librocrand-dev"),
    ("/usr/share/rocm/cmake/ROCMConfig.cmake", "rocm-cmake"),
];

/// A target of the project, and the ISA of a GPU that its code runs on.
const TARGETS: [(&str, &str); 2] =
    [("gfx1030", "gfx1030"), ("gfx90a:xnack+", "gfx90a:sramecc+:xnack+")];
/// The same, for rocRAND as Debian built it.
const ROCRAND: [(&str, &str); 7] = [
    ("gfx803", "gfx803"),
    ("gfx900:xnack-", "gfx900:xnack-"),
    ("gfx906:xnack-", "gfx906:sramecc+:xnack-"),
    ("gfx908:xnack-", "gfx908:sramecc+:xnack-"),
    ("gfx90a:xnack-", "gfx90a:sramecc+:xnack-"),
    ("gfx90a:xnack+", "gfx90a:sramecc+:xnack+"),
    ("gfx1030", "gfx1030"),
];
/// The library that the project builds, as a path in a prefix.
const LIBRARY: &str = "lib/librandom.so.1.2.3";

/// Runs everything and prints a table of the checks.
///
/// # Errors
/// A check failed, or a file of Debian's ROCm is missing.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.windows {
        return only_windows();
    }
    let missing = NEEDED.iter().find(|(file, _)| !Path::new(file).exists());
    if let Some((file, package)) = missing {
        let what = format!(
            "{file} is missing (Debian package {package}; try `cargo xtask bootstrap real`)"
        );
        return Err(NotRun(what).into());
    }
    let work = repository::empty_directory("real")?;
    let kpack = work.join("kpack");
    dist::fill(&kpack, Path::new("lib"), &dist::Built::new(Profile::Release)?)?;
    let mut table = Table::default();
    let real = Real { kpack: &kpack, work: &work, rig: Rig::debian_12(&work.join("rig"))? };
    real.build()?;
    let mut rigs = Vec::new();
    let mut add = |rig: Result<Vec<Rig>>| match rig {
        Ok(rig) => rigs.extend(rig),
        Err(error) => table.add("another HIP runtime", Err(error)),
    };
    let suite = options.suite.as_deref().unwrap_or("trixie");
    add(Rig::suite(suite, &work.join(suite)).map(|rig| vec![rig]));
    if options.suite.is_none() {
        add(Rig::both(&kpack, &work).map(Vec::from));
    }
    let own = options.suite.is_none().then_some(&real.rig);
    process::step("Loading each form of the library with each real runtime");
    let document = fs::read_to_string(repository::root().join("docs/older-rocm.md"))?;
    let variants = real.variants();
    for rig in own.into_iter().chain(&rigs) {
        situations::check(rig, &variants, &document, &mut table);
    }
    let helper = kpack.join("bin/kpack");
    for rig in own.into_iter().chain(&rigs) {
        let generic = small::check_generic(&helper, &work.join("generic"), rig);
        table.add(format!("{}, generic code", rig.name), generic);
        let what = format!("{}, SPIR-V", rig.name);
        match Rig::has_gpus() {
            None => {
                let spirv = small::check_spirv(&kpack, &work.join("spirv"), rig, &document);
                table.add(what, spirv);
            }
            Some(why) => table.not_checked(what, why),
        }
    }
    if options.suite.is_some() {
        return table.finish();
    }
    let (debian_13, rocm) = rigs.split_at(rigs.partition_point(|rig| !rig.reads_markers));
    if !rocm.is_empty() {
        let work = work.join("loaders");
        let loaders = small::check_loaders(&helper, &work, rocm, real.rig.not_privileged());
        table.add("ROCm's loader and kpack's", loaders);
    }
    let compared = windows::check(&helper, &work.join("windows"));
    table.add("the loaders for Windows", compared);
    table.add("tests/real, built by hipcc", real.installed());
    table.add("rocRAND as Debian 12 built it", real.rocrand());
    for rig in debian_13 {
        table.add("rocBLAS as Debian 13 built it", real.rocblas(rig));
    }
    let what = "rocRAND with the shim, preloaded";
    match Rig::has_gpus() {
        None => table.add(what, real.rocrand_shim()),
        Some(why) => table.not_checked(what, why),
    }
    table.finish()
}

fn only_windows() -> Result<()> {
    let work = repository::empty_directory("real-windows")?;
    process::run!("cargo build --locked -p kpack-cli")?;
    let helper = repository::target_directory().join("debug/kpack");
    let mut table = Table::default();
    let compared = windows::check(&helper, &work);
    table.add("the loaders for Windows", compared);
    table.finish()
}

struct Real<'a> {
    /// The prefix with the helper and the CMake package.
    kpack: &'a Path,
    work: &'a Path,
    rig: Rig,
}

impl Real<'_> {
    /// Builds the project once, and installs it without kpack and then with it.
    fn build(&self) -> Result<()> {
        process::step("Building tests/real with hipcc, and installing it without and with kpack");
        let source = repository::root().join("tests/real");
        let (build, kpack) = (self.work.join("build"), self.kpack);
        let forms = [
            ("fat", "OFF", "OFF"),
            ("linked", "ON", "ON"),
            ("shared", "ON", "shared"),
            ("split", "ON", "OFF"),
        ];
        for (prefix, with, shim) in forms {
            let prefix = self.work.join(prefix);
            process::run!(
                "cmake -S {source} -B {build} -G Ninja -Wno-dev -DCMAKE_CXX_COMPILER=hipcc -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH={kpack} -DCMAKE_INSTALL_PREFIX=/opt/rocm -DUSE_KPACK={with} -DUSE_SHIM={shim}"
            )?;
            process::run!("cmake --build {build}")?;
            process::run!("cmake --install {build} --prefix {prefix}")?;
        }
        Ok(())
    }

    fn installed(&self) -> Result<String> {
        let (fat, split) = (self.work.join("fat"), self.work.join("split"));
        let (binary, original) = (split.join(LIBRARY), fat.join(LIBRARY));
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} verify {binary} --against {original}")?;
        Ok("verified against the original".to_owned())
    }

    /// The forms of the library.
    fn variants(&self) -> [Variant; 7] {
        let forms = ["fat", "split", "linked", "shared"].map(|name| self.work.join(name));
        let [fat, split, linked, shared] = forms;
        let [(first, _), (second, _)] = TARGETS;
        let one = self.joined(&split, "joined-one", &[first]);
        let two = self.joined(&split, "joined-two", &[first, second]);
        let variant = |name, prefix: Result<PathBuf>, code| Variant {
            name,
            library: prefix.map(|prefix| prefix.join(LIBRARY)),
            code,
        };
        [
            variant("unsplit", Ok(fat), Code::Unsplit),
            variant("split", Ok(split.clone()), Code::Split),
            variant("joined for one target", one, Code::ForOne),
            variant("joined for two targets", two, Code::Joined),
            variant("shim, preloaded", Ok(split), Code::Preloaded(self.shim())),
            variant("shim, linked", Ok(linked), Code::Linked),
            variant("shim, linked as a shared library", Ok(shared), Code::Linked),
        ]
    }

    /// The shim for `LD_PRELOAD`.
    fn shim(&self) -> PathBuf {
        self.kpack.join("lib/libkpack_hip.so")
    }

    /// A copy of a prefix that is joined, and has no archives.
    fn joined(&self, split: &Path, name: &str, targets: &[&str]) -> Result<PathBuf> {
        let prefix = self.work.join(name);
        process::copy_tree(split, &prefix)?;
        let helper = self.kpack.join("bin/kpack");
        let targets = targets.iter().flat_map(|target| ["--arch", target]);
        process::run!("{helper} join --quiet --prefix {prefix} {targets...}")?;
        fs::remove_dir_all(prefix.join("lib/.kpack"))?;
        Ok(prefix)
    }

    /// Splits the library of Debian's own package.
    fn rocrand(&self) -> Result<String> {
        process::step("Splitting rocRAND as Debian built it");
        let (installed, file) = installed_rocrand()?;
        let split = self.work.join("rocrand");
        self.split_copy(&installed, &split, &file)?;
        let mut count = 0;
        let all = self.joined(&split, "rocrand-joined", &ROCRAND.map(|(target, _)| target))?;
        for (target, gpu) in ROCRAND {
            let one = self.joined(&split, "rocrand-joined-one", &[target])?;
            let expected = self.rig.all(&installed, gpu)?;
            count += expected.len();
            for prefix in [&one, &all] {
                let joined = prefix.join(&file);
                let found = self.rig.all(&joined, gpu)?;
                ensure!(
                    found == expected,
                    "for {gpu} the real runtime loads {found:?} from {}, and {expected:?} from the unsplit library",
                    joined.display()
                );
            }
        }
        Ok(format!("{count} code objects, the same from the unsplit and the joined library"))
    }

    /// Splits a library of another distribution, and loads it there joined and with the shim.
    fn rocblas(&self, rig: &Rig) -> Result<String> {
        process::step("Splitting rocBLAS as Debian 13 built it");
        const GPU: &str = "gfx1030";
        let (installed, file) =
            (rig.libraries().join("librocblas.so.0.1"), "lib/librocblas.so.0.1");
        let split = self.work.join("rocblas");
        self.split_copy(&installed, &split, file)?;
        let expected = rig.all(&installed, GPU)?;
        let joined = self.joined(&split, "rocblas-joined", &[GPU])?;
        let found = rig.all(&joined.join(file), GPU)?;
        ensure!(found == expected, "joined: {found:?}, and unsplit {expected:?}");
        let shim = self.shim();
        let with_shim = Execution {
            gpus: &[GPU],
            steps: &["open", "init"],
            preload: Some(&shim),
            environment: &[("HSA_OVERRIDE_GFX_VERSION", "10.3.0")],
            ..Execution::default()
        };
        let found = rig.run(&split.join(file), &with_shim)?;
        ensure!(
            found.loaded.get(&0) == Some(&expected),
            "with the shim: {found:?}, and unsplit {expected:?}"
        );
        // Each has hundreds of megabytes.
        fs::remove_dir_all(split)?;
        fs::remove_dir_all(joined)?;
        Ok(format!("{} code objects, the same unsplit, joined and with the shim", expected.len()))
    }

    /// Copies a library into a prefix, and splits it there.
    fn split_copy(&self, installed: &Path, prefix: &Path, file: &str) -> Result<()> {
        fs::create_dir_all(prefix.join("lib"))?;
        fs::copy(installed, prefix.join(file)).with_context(|| installed.display().to_string())?;
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} install --quiet --prefix {prefix} --module installed {file}")?;
        Ok(())
    }

    /// Loads the split rocRAND with the shim, for all of its GPUs in one process.
    fn rocrand_shim(&self) -> Result<String> {
        let (installed, file) = installed_rocrand()?;
        let shim = self.shim();
        let gpus = ROCRAND.map(|(_, gpu)| gpu);
        let run = |library: &Path, preload| {
            let execution = Execution {
                gpus: &gpus,
                steps: &["open", "init"],
                preload,
                ..Execution::default()
            };
            self.rig.run(library, &execution)
        };
        let expected = run(&installed, None)?;
        let found = run(&self.work.join("rocrand").join(file), Some(&shim))?;
        ensure!(
            found == expected && found.loaded.len() == gpus.len(),
            "the real runtime loads {found:?}, and {expected:?} from the unsplit library"
        );
        Ok(format!("{} code objects in one process", found.count()))
    }
}

/// rocRAND as Debian installs it, and its path in a prefix.
fn installed_rocrand() -> Result<(PathBuf, String)> {
    let directory = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let installed = directory.join("librocrand.so.1").canonicalize()?;
    let name = installed.file_name().context("a library has a name")?;
    let file = format!("lib/{}", name.display());
    Ok((installed, file))
}
