//! A library that is built with a distribution's own ROCm, with and without kpack, and whose device code real HIP
//! runtimes load.
//!
//! The project is `tests/real`: hipcc compiles the device functions of rocRAND, and rocm-cmake installs
//! them. No GPU is needed: the real `libamdhip64` runs over a stub of the HSA runtime, which reports
//! each code object that it is given.
//!
//! The runtimes are those of Debian 12 (5.2), of Debian 13 (5.7), and of ROCm 7.14, which reads markers, with
//! ROCm's loader and with kpack's; `extra` has those of Debian's other suites. Each must load the
//! code objects of the unsplit library from joined libraries, from those with the shim, and, if it reads
//! markers, from split ones, in all kinds of processes.

mod aarch64;
mod conformance;
pub(crate) mod gpus;
mod modules;
mod published;
pub(crate) mod rig;
mod situations;
mod small;
mod staged;
pub(crate) mod trimmed;
mod windows;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use kpack_tests::require::{self, checked, skip};

use crate::support::{copy, prefix, root, run, work};
use rig::{Execution, Rig};
use situations::{Code, Variant};

/// The page that says what each runtime does.
const DOCUMENT: &str = "docs/dev/runtimes.md";

/// Files of Debian's packages libamdhip64-dev, libhsa-runtime-dev, hipcc, librocrand-dev and rocm-cmake.
const NEEDED: [&str; 5] = [
    "/usr/include/hip/hip_runtime.h",
    rig::HSA,
    "/usr/bin/hipcc",
    "/usr/include/rocrand/rocrand_kernel.h",
    "/usr/share/rocm/cmake/ROCMConfig.cmake",
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

/// The tests with a runtime.
macro_rules! runtime {
    ($rig:expr) => {
        runtime! { $rig;
            unsplit: |rig| situations::check(rig, "unsplit");
            split: |rig| situations::check(rig, "split");
            joined_for_one_target: |rig| situations::check(rig, "joined for one target");
            joined_for_two_targets: |rig| situations::check(rig, "joined for two targets");
            trimmed_for_one_target: |rig| situations::check(rig, "trimmed for gfx1030");
            rocrand_trimmed: trimmed::check;
            database_trimmed: trimmed::check_database;
            shim_preloaded: |rig| situations::check(rig, "shim, preloaded");
            shim_linked: |rig| situations::check(rig, "shim, linked");
            shim_linked_as_a_shared_library:
                |rig| situations::check(rig, "shim, linked as a shared library");
            generic_code: small::check_generic;
            spirv: small::check_spirv;
        }
    };
    ($rig:expr; $($name:ident: $check:expr;)*) => {
        $(
            #[test]
            #[ignore = "needs Debian's ROCm, and may fetch another HIP runtime"]
            fn $name() -> Result<()> {
                let check: fn(&'static Rig) -> Result<()> = $check;
                match has_rocm().then(|| $rig).flatten() {
                    Some(rig) => check(rig),
                    None => Ok(()),
                }
            }
        )*
    };
}

/// The tests with the runtime of one of Debian's suites.
macro_rules! suite {
    ($name:literal) => {
        use super::*;
        static RIG: std::sync::OnceLock<Result<Rig>> = std::sync::OnceLock::new();
        runtime!(rig::suite(&RIG, $name));
    };
}

mod debian_12 {
    use super::*;
    runtime!(rig::debian_12());
}
mod debian_13 {
    suite!("trixie");

    #[test]
    #[ignore = "needs Debian's ROCm, and fetches Debian 13's rocBLAS and HIP runtime"]
    fn rocblas_as_debian_built_it() -> Result<()> {
        match has_rocm().then(|| rig::suite(&RIG, "trixie")).flatten() {
            Some(rig) => super::rocblas(rig),
            None => Ok(()),
        }
    }
}
mod rocm {
    use super::*;
    runtime!(rig::rocm().map(|[theirs, _]| theirs));
}
mod rocm_with_our_loader {
    use super::*;
    runtime!(rig::rocm().map(|[_, ours]| ours));
}
mod extra {
    use super::*;
    mod sid {
        suite!("sid");
    }
    mod experimental {
        suite!("experimental");
    }
}

/// How the loaders differ, in the same runtime.
#[test]
#[ignore = "needs Debian's ROCm, and ROCm's HIP runtime, which it fetches"]
fn the_loaders_differ_as_documented() -> Result<()> {
    let Some(rigs) = has_rocm().then(rig::rocm).flatten() else {
        return Ok(());
    };
    small::check_loaders(rigs, rig::debian_12().and_then(Rig::not_privileged))
}

#[test]
#[ignore = "needs Debian's ROCm"]
fn the_split_library_is_verified_against_the_original() -> Result<()> {
    if !has_rocm() {
        return Ok(());
    }
    let [original, binary] = ["unsplit", "split"].map(|name| {
        variants().iter().find(|variant| variant.name == name).map(|variant| &variant.library)
    });
    let (original, binary) = (original.context("unsplit")?, binary.context("split")?);
    let kpack = prefix().join("bin/kpack");
    run!("{kpack} verify {binary} --against {original}").map(drop)
}

#[test]
#[ignore = "needs Debian's ROCm"]
fn rocrand_joined() -> Result<()> {
    let Some(rig) = has_rocm().then(rig::debian_12).flatten() else {
        return Ok(());
    };
    let (installed, file) = installed_rocrand()?;
    let work = work("rocrand");
    let split = work.join("split");
    split_copy(&installed, &split, &file)?;
    let mut count = 0;
    let all = joined(&split, "all", &ROCRAND.map(|(target, _)| target))?;
    for (target, gpu) in ROCRAND {
        let one = joined(&split, "one", &[target])?;
        let expected = rig.all(&installed, gpu)?;
        count += expected.len();
        for prefix in [&one, &all] {
            let joined = prefix.join(&file);
            let found = rig.all(&joined, gpu)?;
            ensure!(
                found == expected,
                "for {gpu} the real runtime loads {found:?} from {}, and {expected:?} from the unsplit library",
                joined.display()
            );
        }
    }
    checked(&format!("{count} code objects, the same from the unsplit and the joined library"));
    Ok(fs::remove_dir_all(work)?)
}

/// The split rocRAND, for all of its GPUs in one process.
#[test]
#[ignore = "needs Debian's ROCm"]
fn rocrand_with_the_shim() -> Result<()> {
    let Some(rig) = has_rocm().then(rig::debian_12).flatten() else {
        return Ok(());
    };
    if let Some(why) = Rig::has_gpus() {
        skip(why);
        return Ok(());
    }
    let (installed, file) = installed_rocrand()?;
    let split = work("rocrand-shim");
    split_copy(&installed, &split, &file)?;
    let (shim, gpus) = (shim(), ROCRAND.map(|(_, gpu)| gpu));
    let run = |library: &Path, preload| {
        let steps = &["open", "init"];
        rig.run(library, &Execution { gpus: &gpus, steps, preload, ..Execution::default() })
    };
    let expected = run(&installed, None)?;
    let found = run(&split.join(file), Some(&shim))?;
    ensure!(
        found == expected && found.loaded.len() == gpus.len(),
        "the real runtime loads {found:?}, and {expected:?} from the unsplit library"
    );
    checked(&format!("{} code objects in one process", found.count()));
    Ok(fs::remove_dir_all(split)?)
}

/// A library of another distribution, which is loaded there joined and with the shim.
fn rocblas(rig: &Rig) -> Result<()> {
    const GPU: &str = "gfx1030";
    let (installed, file) = (rig.libraries().join("librocblas.so.0.1"), "lib/librocblas.so.0.1");
    let work = work("rocblas");
    let split = work.join("split");
    split_copy(&installed, &split, file)?;
    let expected = rig.all(&installed, GPU)?;
    let joined = joined(&split, "joined", &[GPU])?;
    let found = rig.all(&joined.join(file), GPU)?;
    ensure!(found == expected, "joined: {found:?}, and unsplit {expected:?}");
    let shim = shim();
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
    checked(&format!(
        "{} code objects, the same unsplit, joined and with the shim",
        expected.len()
    ));
    // It has hundreds of megabytes.
    Ok(fs::remove_dir_all(work)?)
}

fn has_rocm() -> bool {
    NEEDED.iter().all(|file| require::file(file))
}

/// The forms of the library: the project is built once, and installed without kpack and then with it.
fn variants() -> &'static [Variant] {
    static VARIANTS: LazyLock<Vec<Variant>> =
        LazyLock::new(|| build().unwrap_or_else(|error| panic!("tests/real: {error:#}")));
    &VARIANTS
}

fn build() -> Result<Vec<Variant>> {
    let (source, work, kpack) = (root().join("tests/real"), work("real"), prefix());
    let build = work.join("build");
    let install = |name: &str, with: &str, shim: &str| {
        let prefix = work.join(name);
        run!(
            "cmake -S {source} -B {build} -G Ninja -Wno-dev -DCMAKE_CXX_COMPILER=hipcc -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH={kpack} -DCMAKE_INSTALL_PREFIX=/opt/rocm -DUSE_KPACK={with} -DUSE_SHIM={shim}"
        )?;
        run!("cmake --build {build}")?;
        run!("cmake --install {build} --prefix {prefix}")?;
        anyhow::Ok(prefix)
    };
    let fat = install("fat", "OFF", "OFF")?;
    let linked = install("linked", "ON", "ON")?;
    let shared = install("shared", "ON", "shared")?;
    let split = install("split", "ON", "OFF")?;
    let [(first, _), (second, _)] = TARGETS;
    let one = joined(&split, "joined-one", &[first])?;
    let two = joined(&split, "joined-two", &[first, second])?;
    let (program, trimmed) = (kpack.join("bin/kpack"), split.with_file_name("trimmed"));
    copy(&fat, &trimmed);
    run!("{program} trim --quiet --arch {first} {trimmed}")?;
    let variant = |name, prefix: &Path, code| Variant { name, library: prefix.join(LIBRARY), code };
    Ok(vec![
        variant("unsplit", &fat, Code::Unsplit),
        variant("split", &split, Code::Split),
        variant("joined for one target", &one, Code::ForOne),
        variant("joined for two targets", &two, Code::Joined),
        variant("trimmed for gfx1030", &trimmed, Code::Trimmed),
        variant("shim, preloaded", &split, Code::Preloaded(shim())),
        variant("shim, linked", &linked, Code::Linked),
        variant("shim, linked as a shared library", &shared, Code::Linked),
    ])
}

/// The shim for `LD_PRELOAD`.
fn shim() -> PathBuf {
    prefix().join("lib/libkpack_hip.so")
}

/// A copy of a prefix, beside it, that is joined and has no archives.
fn joined(split: &Path, name: &str, targets: &[&str]) -> Result<PathBuf> {
    let (kpack, prefix) = (prefix().join("bin/kpack"), split.with_file_name(name));
    let _ = fs::remove_dir_all(&prefix);
    copy(split, &prefix);
    let targets = targets.iter().flat_map(|target| ["--arch", target]);
    run!("{kpack} join --quiet --prefix {prefix} {targets...}")?;
    fs::remove_dir_all(prefix.join("lib/.kpack"))?;
    Ok(prefix)
}

/// Copies a library into a prefix, and splits it there.
fn split_copy(installed: &Path, prefix: &Path, file: &str) -> Result<()> {
    fs::create_dir_all(prefix.join("lib"))?;
    fs::copy(installed, prefix.join(file)).with_context(|| installed.display().to_string())?;
    let kpack = self::prefix().join("bin/kpack");
    run!("{kpack} split --quiet --prefix {prefix} --module installed {file}").map(drop)
}

/// rocRAND as Debian installs it, and its path in a prefix.
fn installed_rocrand() -> Result<(PathBuf, String)> {
    let directory = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let installed = directory.join("librocrand.so.1").canonicalize()?;
    let name = installed.file_name().context("a library has a name")?;
    let file = format!("lib/{}", name.display());
    Ok((installed, file))
}
