//! Builds a program with modules for another CPU.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use kpack_tests::outside::Outside;
use kpack_tests::process::try_run;
use kpack_tests::require::{self, checked};
use kpack_tools::AARCH64;

use crate::e2e::modules::{EXPECTED, PACKAGES, PROGRAM, cargo, workspace};
use crate::hip::project::COMPILER;
use crate::support::{prefix, run};

const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// The device code is the same for every CPU, and so are the tools for its programs.
#[test]
#[ignore = "needs clang, and builds a HIP project with Cargo for AArch64"]
fn a_program_for_aarch64() -> Result<()> {
    let has_standard_library = || {
        let sysroot = try_run(Command::new("rustc").args(["--print", "sysroot"]))?;
        anyhow::Ok(require::directory(&format!("{}/lib/rustlib/{AARCH64}", sysroot.trim_end())))
    };
    if !(require::tools(&[COMPILER, "ld.lld-19", LINKER, EMULATOR]) && has_standard_library()?) {
        return Ok(());
    }
    let outside = Outside::lock();
    let workspace = workspace("modules-aarch64")?;
    let mut build = cargo(&outside, &workspace, &["build", "--target", AARCH64]);
    try_run(build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER))?;
    let dist = workspace.join("dist");
    let program = dist.join("bin").join(PROGRAM);
    fs::create_dir_all(dist.join("bin"))?;
    fs::copy(outside.target().join(AARCH64).join("debug").join(PROGRAM), &program)?;
    let load = |gpu: &str| run!("{EMULATOR} -L /usr/aarch64-linux-gnu {program} {gpu}");
    ensure!(load("gfx1100")? == EXPECTED, "unsplit: {}", load("gfx1100")?);
    let kpack = prefix().join("bin/kpack");
    let shown = run!("{kpack} show {program}")?;
    ensure!(["gfx942", "gfx1100"].iter().all(|target| shown.contains(target)), "{shown}");
    run!("{kpack} split --prefix {dist} --quiet {program}")?;
    run!("{kpack} verify {dist} --arch all")?;
    ensure!(load("gfx1100")? == EXPECTED, "split: {}", load("gfx1100")?);
    let without = load("gfx1030")?;
    ensure!(without.matches("no code object for gfx1030").count() == PACKAGES.len(), "{without}");
    checked("built, split, verified and run");
    Ok(())
}
