//! TheRock's flow, by a project that makes its calls: `tests/therock`. Two machines build one artifact for some
//! targets each, and split it with the adapter; both push, the generic artifact of the last one is kept, and what
//! is fetched behaves like the unsplit prefix.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kpack_format::{Delivery, TargetId};

use super::check::Checker;
use super::hip_project::{HipTools, Project};
use super::runtime::Runtime;
use crate::process::{NotRun, copy_tree, find_program, run};
use crate::repository;

/// Name and component of the artifact.
const ARTIFACT: &str = "vec_lib";
/// Where its build installs.
const STAGE: &str = "math-libs/vec/stage";

/// Runs the flow, and the programs of what comes out of it.
///
/// # Errors
/// A step fails, or a difference from the unsplit project.
pub(super) fn check(
    tools: &HipTools,
    project: &Project,
    runtime: &Runtime,
    kpack: &Path,
    work: &Path,
) -> Result<String> {
    if find_program("python3").is_none() {
        return Err(NotRun("python3 is not installed".to_owned()).into());
    }
    let _ = fs::remove_dir_all(work);
    let stage = work.join("stage");
    copy_tree(&project.fat, &stage.join(ARTIFACT).join(STAGE))?;
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
    let (source, store) = (repository::root().join("tests/therock"), work.join("store"));
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
        let generator = tools.generator();
        run!("cmake -G {generator} -S {source} -B {build} {settings...}")?;
        run!("cmake --build {build}")?;
        let artifacts = build.join("artifacts");
        run!("python3 {flow} push {artifacts} {store}")?;
    }

    // With the archives of all machines, everything behaves as before.
    let checker = Checker {
        runtime,
        programs: &project.programs,
        reference: &project.reference,
        scratch: &work.join("scratch"),
    };
    let all = work.join("all");
    run!("python3 {flow} fetch {store} {all} {processors...}")?;
    let helper = kpack.join("bin/kpack");
    run!("{helper} verify {all}")?;
    let held = checker.check(&all)?;
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
    Ok(format!("{held}, from two machines; {count} packages"))
}
