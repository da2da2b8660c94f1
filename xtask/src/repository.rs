//! Where things are in this repository.

use std::env;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xshell::cmd;

use crate::process;

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a directory of the repository")
}

/// Cargo's target directory.
pub(crate) fn target_directory() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// An empty directory of this name in the target directory.
pub(crate) fn empty_directory(name: &str) -> Result<PathBuf> {
    let directory = target_directory().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    Ok(directory)
}

/// This machine as a target for rustc: with a target, flags of a build do not reach build scripts.
pub(crate) fn explicit_target() -> Result<String> {
    match ARCH {
        "x86_64" | "aarch64" => Ok(format!("{ARCH}-unknown-linux-gnu")),
        other => bail!("there is no target for {other}"),
    }
}

/// The files of a directory, sorted.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}

/// The files of a directory with an extension, sorted.
pub(crate) fn files_with_extension(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = files(directory)?;
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(files)
}

/// Cargo's own directory, which has the sources of dependencies.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = || Some(env::home_dir()?.join(".cargo"));
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(home).context("there is no home directory")
}

/// Cargo's flags for what people install, with more flags for rustc. Messages of a panic in a dependency name its file, but not the
/// directory of the machine that built it.
fn release_flags(more: &str) -> Result<[String; 4]> {
    let home = cargo_home()?;
    let config = format!(
        "build.rustflags=['--remap-path-prefix={}=/cargo'{more}]",
        home.display()
    );
    Ok([
        "--release".into(),
        "--locked".into(),
        "--config".into(),
        config,
    ])
}

/// Builds the helper binary `kpack` optimised, and returns its path.
pub(crate) fn build_helper() -> Result<PathBuf> {
    process::step("Building the helper binary `kpack` (release)");
    let flags = release_flags("")?;
    cmd!(
        process::shell(),
        "cargo build {flags...} --package kpack-cli --bin kpack"
    )
    .run()?;
    Ok(target_directory().join("release/kpack"))
}

/// Builds the helper binary with a C library linked into it, so that it runs on every Linux of this architecture, and
/// returns its path.
pub(crate) fn build_static_helper() -> Result<PathBuf> {
    process::step("Building the helper binary `kpack` with a C library of its own (release)");
    let flags = release_flags(",'-Ctarget-feature=+crt-static'")?;
    let target = explicit_target()?;
    cmd!(
        process::shell(),
        "cargo build {flags...} --target {target} --package kpack-cli --bin kpack"
    )
    .run()?;
    Ok(target_directory().join(target).join("release/kpack"))
}

/// Builds the loader `librocm_kpack` and the shim `libkpack_hip` optimised, and returns the directory with their profiles.
pub(crate) fn build_libraries() -> Result<PathBuf> {
    process::step("Building the loader `librocm_kpack` and the shim `libkpack_hip` (release)");
    let (shell, flags) = (process::shell(), &release_flags("")?);
    cmd!(
        shell,
        "cargo rustc {flags...} --package kpack-runtime --lib --crate-type cdylib,staticlib"
    )
    .run()?;
    cmd!(shell, "cargo build {flags...} --package kpack-hip --lib").run()?;
    // What is linked into each binary is built to be small.
    let [_, others @ ..] = flags;
    cmd!(
        shell,
        "cargo build --profile shim {others...} --package kpack-hip-link --lib"
    )
    .run()?;
    Ok(target_directory())
}
