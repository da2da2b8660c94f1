//! `cargo xtask real`: builds a library with a distribution's own ROCm, with and without kpack;
//! packages, installs and removes it; and loads its device code with the real HIP runtime.
//!
//! The project is `tests/real`: hipcc compiles the device functions of rocRAND, and rocm-cmake installs
//! and packages them. No GPU is needed: the real `libamdhip64` runs over a stub of the HSA runtime, which reports
//! each code object that it is given.
//!
//! Debian's `libamdhip64` (5.2) does not read markers. It loads the unsplit library, whose code objects
//! are the reference. It must load the same ones from joined libraries, and from split ones with the shim,
//! in all kinds of processes. kpack's loader must find them for the split library; the stub HIP runtime calls it.

mod recipes;
pub(super) mod rig;
mod situations;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use kpack_tests::package_root::PackageRoot;
use kpack_tests::require::is_root;

use super::reference::CodeObject;
use super::runtime::{Kind, Program};
use super::table::Table;
use super::treatment::copy_tree;
use super::{real_libraries, stub_libraries};
use crate::{bootstrap, dist, process, repository};
use rig::{Execution, Rig};
use situations::{ALL_GPUS, Code, Variant};

/// Options of `cargo xtask real`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// First install the tools that are missing, with apt-get (as root, or through sudo).
    #[arg(long)]
    bootstrap: bool,
}

/// Required files beside those of the rig, and the Debian package of each.
const NEEDED: [(&str, &str); 4] = [
    ("/usr/bin/hipcc", "hipcc"),
    ("/usr/bin/rpmbuild", "rpm"),
    ("/usr/include/rocrand/rocrand_kernel.h", "librocrand-dev"),
    ("/usr/share/rocm/cmake/ROCMConfig.cmake", "rocm-cmake"),
];

/// A target of the project, and the ISA of a GPU that its code runs on.
const TARGETS: [(&str, &str); 2] = [
    ("gfx1030", "gfx1030"),
    ("gfx90a:xnack+", "gfx90a:sramecc+:xnack+"),
];
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
const WRAPPERS: usize = 3;

/// Runs everything and prints a table of the checks.
///
/// # Errors
/// A check failed, or a file of Debian's ROCm is missing.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.bootstrap {
        bootstrap::install_missing()?;
    }
    let missing = NEEDED
        .iter()
        .chain(&rig::NEEDED)
        .find(|(file, _)| !Path::new(file).exists());
    if let Some((file, package)) = missing {
        ensure!(
            !options.bootstrap,
            "{file} is missing (Debian package {package})"
        );
        println!(
            "Nothing was checked: {file} is missing (Debian package {package}); \
             `cargo xtask real --bootstrap` installs it."
        );
        return Ok(());
    }
    let work = repository::empty_directory("real")?;
    let kpack = work.join("kpack");
    dist::fill(&kpack, Path::new("lib"), &dist::Built::new()?)?;
    let mut table = Table::default();
    let real = Real {
        kpack: &kpack,
        work: &work,
        rig: Rig::build(&work.join("rig"))?,
    };
    real.build()?;
    table.add("tests/real, built by hipcc", real.installed());
    process::step("Loading each form of the library with the real runtime");
    let fat = work.join("fat").join(LIBRARY);
    situations::check(&real.rig, &fat, real.variants(), &mut table);
    for generator in ["DEB", "RPM"] {
        let what = format!("{generator} packages of rocm-cmake");
        let recipe = format!("{generator} packages that join");
        match is_root() {
            true => {
                table.add(what, real.packages(generator));
                table.add(recipe, real.recipe(generator, &fat));
            }
            false => {
                table.not_checked(what, "only root can install packages");
                table.not_checked(recipe, "only root can install packages");
            }
        }
    }
    table.add("rocRAND as Debian built it", real.rocrand());
    let what = "rocRAND with the shim, preloaded";
    match Rig::has_gpus() {
        None => table.add(what, real.rocrand_shim()),
        Some(why) => table.not_checked(what, why),
    }
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
        let same = self.same_code(&original, &split, LIBRARY, &TARGETS)?;
        ensure!(
            same == WRAPPERS * TARGETS.len(),
            "{same} code objects were loaded; expected {WRAPPERS} for each target"
        );
        Ok(format!(
            "{same} code objects: the loader takes from the archives what the real runtime takes from the unsplit library"
        ))
    }

    /// The forms of the library.
    fn variants(&self) -> [Variant; 6] {
        let [fat, split, linked] = ["fat", "split", "linked"].map(|name| self.work.join(name));
        let [(first, _), (second, _)] = TARGETS;
        let one = self.joined(&split, "joined-one", &[first]);
        let two = self.joined(&split, "joined-two", &[first, second]);
        let variant = |name, prefix: Result<PathBuf>, code| Variant {
            name,
            library: prefix.map(|prefix| prefix.join(LIBRARY)),
            gpus: &ALL_GPUS,
            code,
        };
        [
            variant("unsplit", Ok(fat), Code::InTheFile),
            variant("split", Ok(split.clone()), Code::Unreadable),
            Variant {
                gpus: &ALL_GPUS[..1],
                ..variant("joined for one target", one, Code::InTheFile)
            },
            variant("joined for two targets", two, Code::InTheFile),
            variant("shim, preloaded", Ok(split), Code::Preloaded(self.shim())),
            variant("shim, linked", Ok(linked), Code::Linked),
        ]
    }

    /// The shim for `LD_PRELOAD`.
    fn shim(&self) -> PathBuf {
        self.kpack.join("lib/libkpack_hip.so")
    }

    /// A copy of a prefix that is joined, and has no archives.
    fn joined(&self, split: &Path, name: &str, targets: &[&str]) -> Result<PathBuf> {
        let prefix = self.work.join(name);
        copy_tree(split, &prefix)?;
        let helper = self.kpack.join("bin/kpack");
        let targets = targets.iter().flat_map(|target| ["--arch", target]);
        process::run!("{helper} join --quiet --prefix {prefix} {targets...}")?;
        fs::remove_dir_all(prefix.join("lib/.kpack"))?;
        Ok(prefix)
    }

    /// Installs all packages in a root of their own, and removes that of one GPU.
    fn packages(&self, generator: &str) -> Result<String> {
        process::step(&format!("Making {generator} packages, and installing them"));
        let build = self.work.join("build");
        {
            let _directory = process::shell().push_dir(&build);
            process::run!("cpack -G {generator}")?;
        }
        let extension = generator.to_lowercase();
        let packages = repository::files_with_extension(&build, &extension)?;
        let root = PackageRoot::new(&self.work.join(format!("root-{extension}")))?;
        let [(removed, _), (kept, agent)] = TARGETS;
        let name = format!("random-runtime-{removed}");
        match generator {
            "DEB" => root.dpkg("-i", &packages)?,
            _ => root.rpm("-i", &packages)?,
        }
        let prefix = root.file("opt/rocm");
        let original = self.work.join("fat").join(LIBRARY);
        self.same_code(&original, &prefix, LIBRARY, &TARGETS)?;
        match generator {
            "DEB" => root.dpkg("-r", &[&name])?,
            _ => root.rpm("-e", &[&name])?,
        }
        let archive = format!("opt/rocm/lib/.kpack/random_runtime_{removed}.kpack");
        ensure!(!root.file(&archive).exists(), "{archive} is still there");
        self.same_code(&original, &prefix, LIBRARY, &[(kept, agent)])?;
        let libraries = root.libraries()?;
        ensure!(
            libraries.contains("/opt/rocm/lib/librandom.so.1"),
            "without {name} the dynamic linker finds only\n{libraries}"
        );
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} verify {prefix} --arch {kept}")?;
        Ok(format!(
            "{} installed, {name} removed: {kept} still loads",
            packages.len()
        ))
    }

    /// Splits the library of Debian's own package.
    fn rocrand(&self) -> Result<String> {
        process::step("Splitting rocRAND as Debian built it");
        let (installed, file) = installed_rocrand()?;
        let split = self.work.join("rocrand");
        fs::create_dir_all(split.join("lib"))?;
        fs::copy(&installed, split.join(&file))?;
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} install --prefix {split} --module rocrand {file}")?;
        let found = self.same_code(&installed, &split, &file, &ROCRAND)?;
        let all = self.joined(&split, "rocrand-joined", &ROCRAND.map(|(target, _)| target))?;
        for (target, gpu) in ROCRAND {
            let one = self.joined(&split, "rocrand-joined-one", &[target])?;
            let expected = self.rig.all(&installed, gpu)?;
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
        Ok(format!(
            "{found} code objects, the same from the unsplit, split and joined library"
        ))
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

    /// Compares what the real runtime takes from a fat library with what the loader takes from the
    /// archives of a split one, and returns how many code objects that were.
    fn same_code(
        &self,
        fat: &Path,
        split: &Path,
        file: &str,
        targets: &[(&str, &str)],
    ) -> Result<usize> {
        let mut count = 0;
        for (_, agent) in targets {
            let expected = self.rig.all(fat, agent)?;
            let found = self.by_loader(split, file, agent)?;
            ensure!(
                expected == found,
                "for {agent} the loader loads {found:?}, and the real runtime {expected:?}"
            );
            count += found.len();
        }
        Ok(count)
    }

    /// The code objects that the loader finds for a split library, with the stub HIP runtime.
    fn by_loader(&self, prefix: &Path, file: &str, agent: &str) -> Result<Vec<CodeObject>> {
        let stubs = self.work.join("stubs");
        let library = prefix.join(file);
        let executable = stubs.join("load");
        let runtime = stub_libraries::build(&library, &stubs, self.kpack)?;
        real_libraries::build_loader(&executable)?;
        let program = Program {
            executable,
            libraries: vec![file.into()],
        };
        let scratch = self.work.join("scratch");
        let seen = runtime.run(prefix, &program, agent, &scratch)?;
        let mut loaded = Vec::new();
        for event in &seen.events {
            match &event.kind {
                Kind::Loaded(code_object) => loaded.push(code_object.clone()),
                Kind::Fat { .. } => bail!("{} has a fat wrapper", library.display()),
                Kind::Missing(error) => bail!("the loader's error is {error}"),
                _ => {}
            }
        }
        loaded.sort();
        Ok(loaded)
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
