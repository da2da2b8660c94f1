//! The modules of `examples/rust-modules`, which a Rust program loads itself, in real HIP runtimes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use kpack_tests::outside::Outside;
use kpack_tests::process::{copy, try_run};
use kpack_tests::require::checked;

use super::rig::{self, Rig};
use crate::hip::project::{COMPILER, flags_without_rocm, has_tools};
use crate::support::{prefix, root, run, work};

/// A target that Debian 12's runtime knows.
const OLDER: (&str, &str) = ("gfx1030", "gfx1030");
/// The targets of the example, and the ISA of a GPU for each.
const TARGETS: [(&str, &str); 2] = [("gfx942", "gfx942:sramecc+:xnack-"), ("gfx1100", "gfx1100")];
/// A GPU that the example has no code for.
const NO_CODE: &str = "gfx1201";
/// The kernels of each module.
const KERNELS: [&str; 3] = ["vector: add", "vector: scale", "convert: to_half"];
const MODULES: usize = 2;

/// The program as Cargo built it, and in releases that were moved elsewhere.
fn programs() -> &'static [(&'static str, PathBuf)] {
    static PROGRAMS: LazyLock<Vec<(&str, PathBuf)>> =
        LazyLock::new(|| build().unwrap_or_else(|error| panic!("rust-modules: {error:#}")));
    &PROGRAMS
}

fn build() -> Result<Vec<(&'static str, PathBuf)>> {
    let (work, outside) = (work("rust-modules"), Outside::lock());
    let example = root().join("examples/rust-modules");
    let cargo = |arguments: &[&str]| {
        let mut command = outside.cargo(arguments);
        command.arg("--locked").current_dir(&example);
        command
    };
    // Its binding to the runtime is a crate that the workspace does not have.
    try_run(cargo(&["fetch"]).env("CARGO_NET_OFFLINE", "false"))?;
    let targets = [OLDER, TARGETS[0], TARGETS[1]].map(|(target, _)| target).join(";");
    // Debian 12's runtime loads nothing newer.
    let flags = format!("{} -mcode-object-version=4", flags_without_rocm());
    let mut build = cargo(&["build", "--message-format=json-render-diagnostics"]);
    build.env("HIPCXX", COMPILER).env("HIPFLAGS", flags).env("KPACK_OFFLOAD_ARCH", targets);
    let messages = work.join("build.json");
    fs::write(&messages, try_run(&mut build)?)?;
    let built = outside.target().join("debug/rust-modules");
    let (kpack, split, embedded) =
        (prefix().join("bin/kpack"), work.join("split"), work.join("embedded"));
    // kpack's own crates are not from a registry here, so their messages contain paths of this machine.
    let stage = ["--allow-build-paths", "--quiet"];
    run!("{kpack} stage {stage...} --messages {messages} --output-dir {split}")?;
    run!("{kpack} stage {stage...} --messages {messages} --output-dir {embedded} --embed")?;
    for (release, has_archives) in [(&split, true), (&embedded, false)] {
        run!("{kpack} verify {release}")?;
        ensure!(
            release.join("lib/.kpack").is_dir() == has_archives,
            "{} has archives: {}",
            release.display(),
            !has_archives
        );
    }
    // Nothing leads back to where they were staged, or to what Cargo built.
    let moved = work.join("moved");
    fs::create_dir(&moved)?;
    for release in [&split, &embedded] {
        let name = release.file_name().context("a release has a name")?;
        fs::rename(release, moved.join(name))?;
    }
    let own = work.join("rust-modules");
    copy(&built, &own);
    Ok(vec![
        ("as Cargo built it", own),
        ("staged", moved.join("split/bin/rust-modules")),
        ("staged with --embed", moved.join("embedded/bin/rust-modules")),
    ])
}

#[test]
#[ignore = "needs clang, and ROCm's HIP runtime, which it fetches"]
fn rocm_loads_them() -> Result<()> {
    let rig = has_tools().then(rig::rocm).flatten();
    rig.map_or(Ok(()), |[theirs, _]| loads(theirs, &TARGETS))
}

/// It reads no markers, and needs not: the program loads the modules itself.
#[test]
#[ignore = "needs clang, and Debian's HIP runtime"]
fn debian_12_loads_them() -> Result<()> {
    let rig = (has_tools() && super::has_rocm()).then(rig::debian_12).flatten();
    rig.map_or(Ok(()), |rig| loads(rig, &[OLDER]))
}

fn loads(rig: &Rig, targets: &[(&str, &str)]) -> Result<()> {
    let mut count = 0;
    for (target, gpu) in targets {
        let expected: BTreeSet<String> =
            KERNELS.iter().map(|kernel| format!("{kernel} for {target}")).collect();
        let mut of_built = None;
        for (name, program) in programs() {
            let alone = rig.run_alone(program, &["--load"], gpu)?;
            let lines: BTreeSet<String> = alone.stdout.lines().map(str::to_owned).collect();
            ensure!(
                lines == expected,
                "{}, {name}, for {gpu}: {lines:?}, expected {expected:?}\n{}",
                rig.name,
                alone.stderr
            );
            let loaded = alone.loaded.len();
            ensure!(loaded == MODULES, "{}, {name}: {loaded} code objects for {gpu}", rig.name);
            let first = of_built.get_or_insert_with(|| alone.loaded.clone());
            ensure!(*first == alone.loaded, "{name}: not the code that Cargo built for {gpu}");
            count += KERNELS.len();
        }
    }
    checked(&format!("{}: {count} kernels", rig.name));
    Ok(())
}

#[test]
#[ignore = "needs clang, and ROCm's HIP runtime, which it fetches"]
fn a_gpu_without_code_is_an_error_with_the_targets() -> Result<()> {
    let Some([rig, _]) = has_tools().then(rig::rocm).flatten() else {
        return Ok(());
    };
    for (name, program) in programs() {
        let alone = rig.run_alone(program, &["--load"], NO_CODE)?;
        let has_all = [NO_CODE, OLDER.0, TARGETS[0].0, TARGETS[1].0]
            .iter()
            .all(|target| alone.stderr.contains(target));
        ensure!(
            alone.stdout.is_empty() && alone.loaded.is_empty() && has_all,
            "{name}, for {NO_CODE}: {}{}",
            alone.stdout,
            alone.stderr
        );
    }
    let program = |at: usize| -> &Path { &programs()[at].1 };
    let without =
        try_run(std::process::Command::new(program(0)).env("LD_LIBRARY_PATH", "/nowhere"));
    let error = without.err().context("loads kernels without a GPU")?.to_string();
    ensure!(error.contains("found no"), "without a GPU: {error}");
    checked("the error lists the targets");
    Ok(())
}
