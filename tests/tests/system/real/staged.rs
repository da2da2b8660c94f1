//! A program with ROCm's HIP runtime and a real library, which kpack staged in parts, and what is staged although no library of
//! ROCm needs it.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use kpack_tests::require::{self, checked};
use xshell::cmd;

use super::rig::{self, Execution, Outcome, Rig};
use super::{has_rocm, installed_rocrand, windows};
use crate::support::{copy, output, prefix, run, shell, work};

/// The parts, with the ISAs of GPUs that load code from them.
const PARTS: [(&str, &[&str]); 2] =
    [("gfx1030", &["gfx1030"]), ("gfx90a", &["gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+"])];

/// Given the parts for a machine, unpacked elsewhere, when neither the original program nor its ROCm exists any more, then the
/// program loads the same code as before, and none for a GPU whose part is not there.
#[test]
#[ignore = "needs Debian's ROCm, and ROCm's HIP runtime, which it fetches"]
fn parts_load_what_the_program_did() -> Result<()> {
    let Some([theirs, ours]) = has_rocm().then(rig::rocm).flatten() else {
        return Ok(());
    };
    let count = check(theirs, false)? + check(ours, true)?;
    checked(&format!("{count} code objects, the same before and after"));
    Ok(())
}

/// Stages the program with the runtime of a rig. Returns how many code objects were compared.
fn check(rig: &Rig, has_our_loader: bool) -> Result<usize> {
    let work = rig.work("staged");
    let [rocm, app, dist] = ["rocm", "app", "dist"].map(|name| work.join(name));
    for directory in [&rocm, &app.join("bin"), &app.join("lib")] {
        fs::create_dir_all(directory)?;
    }
    // Not the rig itself: this one is removed before the staged program runs.
    Rig::rocm(has_our_loader, &rocm)?;
    let (program, (installed, library)) = ("bin/load", installed_rocrand()?);
    fs::rename(rocm.join("load"), app.join(program))?;
    copy(installed, app.join(&library));
    let load = |prefix: &Path, gpu: &str| -> Result<Outcome> {
        let program = prefix.join(program);
        let execution = Execution {
            gpus: &[gpu],
            steps: &["open", "init"],
            program: Some(&program),
            ..Execution::default()
        };
        rig.run(&prefix.join(&library), &execution)
    };
    let gpus = PARTS.iter().flat_map(|(_, gpus)| *gpus);
    let before = gpus.map(|gpu| Ok((*gpu, load(&app, gpu)?))).collect::<Result<Vec<_>>>()?;

    let kpack = prefix().join("bin/kpack");
    let (app_program, app_library) = (app.join(program), app.join(&library));
    let arch = PARTS.map(|(part, _)| part).join(",");
    let stage = cmd!(
        shell(),
        "{kpack} stage --quiet {app_program} --also {app_library} --split --arch {arch} --output-dir {dist}"
    );
    // The library is Debian's, and would get Debian's runtime.
    output(stage.env("LD_LIBRARY_PATH", &rocm))?;
    for (part, _) in PARTS {
        let unpacked = work.join("unpacked").join(part);
        fs::create_dir_all(&unpacked)?;
        let (host, own) = (dist.join("host/."), dist.join(part).join("."));
        run!("cp -a {host} {own} {unpacked}")?;
    }
    for gone in [rocm, app, dist] {
        fs::remove_dir_all(gone)?;
    }

    let mut count = 0;
    for (part, gpus) in PARTS {
        for (gpu, expected) in &before {
            let found = load(&work.join("unpacked").join(part), gpu)?;
            let is_same = if gpus.contains(gpu) {
                found == *expected && found.count() > 0
            } else {
                found.count() == 0
            };
            ensure!(
                is_same,
                "{}: with the part for {part}, {gpu} gets {found:?}, and before {expected:?}",
                rig.name
            );
            count += found.count();
        }
    }
    // Each has the runtime with its compiler.
    fs::remove_dir_all(work)?;
    Ok(count)
}

/// Given a program that compiles a kernel, then it opens neither the bitcode beside comgr nor hipRTC's library of builtins, because
/// comgr and hipRTC contain both. So the doctor does not miss these files.
#[test]
#[ignore = "needs Debian's ROCm"]
fn what_a_compiler_does_not_read() -> Result<()> {
    if !has_rocm() || !require::tracing() {
        return Ok(());
    }
    let work = work("real-compile");
    let [source, program, trace] = ["compile.c", "compile", "trace"].map(|name| work.join(name));
    // This ROCm does not know gfx1100.
    fs::write(&source, windows::COMPILE.replace("gfx1100", "gfx1030"))?;
    run!("cc -O2 -o {program} {source} -l:libamdhip64.so.5")?;
    let compiled = run!("strace -f -e trace=%file -o {trace} {program}")?;
    let trace = fs::read_to_string(trace)?;
    let names = ["libamd_comgr.so.", "amdgcn/bitcode/", "hiprtc-builtins"];
    let opened = names.map(|name| {
        trace.lines().any(|line| line.contains(name) && !line.contains(" = -1 ENOENT"))
    });
    ensure!(opened == [true, false, false], "{names:?}: {opened:?}");
    checked(&format!("{}: opened neither bitcode nor builtins", compiled.trim()));
    Ok(fs::remove_dir_all(work)?)
}
