//! Builds what people install.

use std::path::PathBuf;

use anyhow::Result;
use xshell::cmd;

use crate::{process, repository};

/// Cargo's flags for what people install, with more flags for rustc. Messages of a panic in a dependency name its file, but not the
/// directory of the machine that built it.
fn release_flags(more: &str) -> Result<[String; 4]> {
    let home = repository::cargo_home()?;
    let config = format!("build.rustflags=['--remap-path-prefix={}=/cargo'{more}]", home.display());
    Ok(["--release".into(), "--locked".into(), "--config".into(), config])
}

/// Builds the helper binary `kpack` optimised, and returns its path.
pub(crate) fn helper() -> Result<PathBuf> {
    process::step("Building the helper binary `kpack` (release)");
    let flags = release_flags("")?;
    cmd!(process::shell(), "cargo build {flags...} --package kpack-cli --bin kpack").run()?;
    Ok(repository::target_directory().join("release/kpack"))
}

/// Builds the helper binary with a C library linked into it, so that it runs on every Linux of this architecture, and
/// returns its path.
pub(crate) fn static_helper() -> Result<PathBuf> {
    process::step("Building the helper binary `kpack` with a C library of its own (release)");
    let flags = release_flags(",'-Ctarget-feature=+crt-static'")?;
    let target = repository::explicit_target()?;
    cmd!(
        process::shell(),
        "cargo build {flags...} --target {target} --package kpack-cli --bin kpack"
    )
    .run()?;
    Ok(repository::target_directory().join(target).join("release/kpack"))
}

/// Builds the loader `librocm_kpack` and the shim `libkpack_hip` optimised, and returns the directory with their profiles.
pub(crate) fn libraries() -> Result<PathBuf> {
    process::step("Building the loader `librocm_kpack` and the shim `libkpack_hip` (release)");
    let (shell, flags) = (process::shell(), &release_flags("")?);
    cmd!(
        shell,
        "cargo rustc {flags...} --package kpack-runtime --lib --crate-type cdylib,staticlib"
    )
    .run()?;
    cmd!(shell, "cargo rustc {flags...} --package kpack-hip --lib --crate-type cdylib").run()?;
    // What is linked into each binary is built to be small.
    let [_, others @ ..] = flags;
    cmd!(shell, "cargo build --profile shim {others...} --package kpack-hip-link --lib").run()?;
    Ok(repository::target_directory())
}
