//! Builds what is measured.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kpack_tests::page::repository;
use kpack_tests::process::{cargo, target_directory, try_run};

/// The profile that packages are built with.
pub(crate) const PACKAGED: &str = "dist";

/// Cargo's flags that take away what older processors lack: SHA-256 then uses no special instructions, and BLAKE3 SSE 4.1
/// at most.
const PORTABLE: [&str; 2] = [
    "--config",
    r#"build.rustflags=["--cfg=sha2_backend=\"soft\"","--cfg=feature=\"no_avx2\"","--cfg=feature=\"no_avx512\""]"#,
];

/// The version of `b3sum` that kpack is compared with.
const B3SUM: &str = "b3sum@1.8.7";

/// Prints the next step.
pub(crate) fn step(what: &str) {
    println!("\n== {what}");
}

/// Builds the command `kpack` with a profile, and returns its path.
pub(crate) fn kpack(profile: &str) -> Result<PathBuf> {
    step(&format!("Building `kpack` ({profile})"));
    build(&["build", "--package=kpack-cli", "--bin=kpack", "--profile", profile])?;
    Ok(target_directory().join(profile).join("kpack"))
}

/// Builds the command `kpack` for a processor without SHA, AVX2 and AVX-512, and returns its path.
pub(crate) fn portable_kpack() -> Result<PathBuf> {
    step("Building `kpack` without SHA, AVX2 and AVX-512");
    // Otherwise it would replace the usual one.
    let target = target_directory().join("portable");
    let to = format!("--target-dir={}", target.display());
    let command = ["build", "--package=kpack-cli", "--bin=kpack", "--profile", PACKAGED, &to];
    build(&[&command[..], &PORTABLE].concat())?;
    Ok(target.join(PACKAGED).join("kpack"))
}

/// Builds the loader, and returns its shared library.
pub(crate) fn loader() -> Result<PathBuf> {
    step("Building the loader `librocm_kpack`");
    let package = ["--package=kpack-runtime", "--lib", "--crate-type=cdylib,staticlib"];
    build(&[&["rustc", "--profile", PACKAGED], &package[..]].concat())?;
    Ok(target_directory().join(PACKAGED).join("librocm_kpack.so"))
}

/// Builds `b3sum` beside a `kpack`, where benchmarks search first, and for the same processor.
pub(crate) fn b3sum(kpack: &Path, is_portable: bool) -> Result<()> {
    step("Building `b3sum`");
    let directory = kpack.parent().context("kpack is in no directory")?;
    let root = format!("--root={}", directory.display());
    let target = format!("--target-dir={}", directory.parent().unwrap_or(directory).display());
    let command = ["install", B3SUM, "--quiet", "--no-track", "--force", &root, &target];
    build(&[&command[..], if is_portable { &PORTABLE } else { &[] }].concat())?;
    fs::rename(directory.join("bin/b3sum"), directory.join("b3sum"))
        .with_context(|| format!("b3sum cannot be moved to {}", directory.display()))
}

fn build(arguments: &[&str]) -> Result<()> {
    try_run(cargo(arguments).arg("--locked").current_dir(repository())).map(drop)
}
