//! Splits a real HIP project and the examples, and compares what programs and HIP runtimes get with the unsplit build.

mod examples;
pub(crate) mod modules;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use kpack_format::{Delivery, TargetId};
use kpack_tests::require::{self, checked};

use crate::hip::project::{GENERATOR, has_tools, project};
use crate::real::rig::{rocm, same_code};
use crate::support::{copy, prefix, root, run, work};

#[test]
#[ignore = "needs clang, and builds a HIP project"]
fn programs_do_the_same_after_kpack_install() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let project = project();
    let held = project.checker("split-run").check(&project.split)?;
    let kpack = prefix().join("bin/kpack");
    for binary in project.reference.binaries() {
        let (split, fat) = (project.split.join(binary), project.fat.join(binary));
        run!("{kpack} verify {split} --against {fat}")?;
    }
    checked(&format!("{held}, verified against the original"));
    Ok(())
}

/// All device code of each library, with and without markers.
#[test]
#[ignore = "needs clang and ROCm's HIP runtime, which it fetches, and builds a HIP project"]
fn real_hip_runtimes_load_the_same_code() -> Result<()> {
    let Some(rigs) = rocm().filter(|_| has_tools()) else {
        return Ok(());
    };
    let project = project();
    let mut count = 0;
    for binary in project.reference.binaries() {
        // Programs cannot be loaded as libraries, and AddressSanitizer needs a program compiled for it.
        if !binary.starts_with("lib") || binary.to_string_lossy().contains("asan") {
            continue;
        }
        let wrappers = project.reference.wrappers.iter();
        let wrappers = wrappers.filter(|((file, _), _)| file == binary);
        let targets = wrappers.flat_map(|(_, code)| code.keys().map(String::as_str));
        let targets = Vec::from_iter(BTreeSet::from_iter(targets));
        let [fat, split] = [&project.fat, &project.split].map(|prefix| prefix.join(binary));
        count += same_code(rigs, &fat, &split, &targets, false)
            .with_context(|| binary.display().to_string())?;
    }
    checked(&format!("{count} code objects, the same from unsplit and split libraries"));
    Ok(())
}

/// TheRock's flow, by a project that makes its calls: `tests/therock`. Two machines build one artifact for some
/// targets each, and split it with the adapter; both push, the generic artifact of the last one is kept, and what
/// is fetched behaves like the unsplit prefix.
#[test]
#[ignore = "needs clang and Python, and builds a HIP project"]
fn the_flow_of_therock() -> Result<()> {
    const ARTIFACT: &str = "vec_lib";
    /// Where its build installs.
    const STAGE: &str = "math-libs/vec/stage";
    if !(has_tools() && require::tool("python3")) {
        return Ok(());
    }
    let (project, kpack, work) = (project(), prefix(), work("therock"));
    let stage = work.join("stage");
    let installed = stage.join(ARTIFACT).join(STAGE);
    fs::create_dir_all(installed.parent().context("it is in a directory")?)?;
    copy(&project.fat, &installed);
    fs::write(stage.join(ARTIFACT).join("artifact_manifest.txt"), format!("{STAGE}\n"))?;
    fs::write(stage.join(format!("{ARTIFACT}.stamp")), "")?;

    let targets = project.reference.targets();
    let targets: Vec<TargetId> =
        targets.iter().map(|target| target.parse().context("a target")).collect::<Result<_>>()?;
    let processors = BTreeSet::from_iter(targets.iter().map(TargetId::processor));
    let gpus: Vec<&str> =
        processors.iter().copied().filter(|name| !name.ends_with("-generic")).collect();
    ensure!(gpus.len() > 1, "one machine would have nothing to build");
    let (one, other) = gpus.split_at(gpus.len() / 2);
    let (source, store) = (root().join("tests/therock"), work.join("store"));
    let flow = source.join("flow.py");
    for (family, targets) in [("family-one", one), ("family-two", other)] {
        let build = work.join(family);
        let settings = [
            format!("-DKPACK_DIR={}", kpack.join("share/kpack/therock").display()),
            format!("-DSTAGE={}", stage.display()),
            format!("-DPREFIXES={ARTIFACT}"),
            format!("-DFAMILY={family}"),
            format!("-DTARGETS={}", targets.join(";")),
        ];
        run!("cmake -G {GENERATOR} -S {source} -B {build} {settings...}")?;
        run!("cmake --build {build}")?;
        let artifacts = build.join("artifacts");
        run!("python3 {flow} push {artifacts} {store}")?;
    }

    // With the archives of all machines, everything behaves as before.
    let all = work.join("all");
    run!("python3 {flow} fetch {store} {all} {processors...}")?;
    let helper = kpack.join("bin/kpack");
    run!("{helper} verify {all}")?;
    let held = project.checker("therock-run").check(&all)?;
    // A machine needs the artifact of its GPU, whichever machine built it.
    for gpu in [one[0], other[0]] {
        let single = work.join(format!("only-{gpu}"));
        let target: TargetId = gpu.parse()?;
        let needed = targets.iter().filter(|found| target.needs(found, Delivery::Archive));
        let needed = BTreeSet::from_iter(needed.map(TargetId::processor));
        run!("python3 {flow} fetch {store} {single} {needed...}")?;
        run!("{helper} verify {single} --arch {gpu}")?;
    }
    let packages = work.join("packages");
    run!("python3 {flow} package {store} {packages}")?;
    let count = fs::read_dir(&packages)?.count();
    checked(&format!("{held}, from two machines; {count} packages"));
    Ok(())
}
