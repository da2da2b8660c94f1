//! Builds what people install.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use xshell::cmd;

use crate::dist::Cargo;
use crate::{log, process, repository};

/// A profile of `Cargo.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Without link-time optimisation.
    Release,
    /// What packages contain.
    Dist,
}

impl Profile {
    /// Its name, and that of its directory in Cargo's target directory.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dist => "dist",
        }
    }
}

/// Cargo's flags for what people install, with more flags for rustc. Messages of a panic in a dependency name its file, but not the
/// directory of the machine that built it.
fn flags(profile: Profile, more: &str) -> Result<[String; 5]> {
    let home = repository::cargo_home()?;
    let config = format!("build.rustflags=['--remap-path-prefix={}=/cargo'{more}]", home.display());
    Ok(["--profile".into(), profile.name().into(), "--locked".into(), "--config".into(), config])
}

/// Builds the helper binary `kpack` optimised, and returns its path.
pub(crate) fn helper(profile: Profile) -> Result<PathBuf> {
    helper_with(&Cargo::System, profile)
}

/// As [`helper`].
pub(crate) fn helper_with(cargo: &Cargo, profile: Profile) -> Result<PathBuf> {
    process::step(&format!("Building the helper binary `kpack` ({})", profile.name()));
    cargo.run("build", &flags(profile, "")?, &["--package=kpack-cli", "--bin=kpack"])?;
    Ok(cargo.output()?.join(profile.name()).join("kpack"))
}

/// Builds the helper binary with a C library linked into it, so that it runs on every Linux of this architecture, and
/// returns its path.
pub(crate) fn static_helper(profile: Profile) -> Result<PathBuf> {
    let name = profile.name();
    process::step(&format!(
        "Building the helper binary `kpack` with a C library of its own ({name})"
    ));
    let flags = flags(profile, ",'-Ctarget-feature=+crt-static'")?;
    let target = repository::explicit_target()?;
    log::run(cmd!(
        process::shell(),
        "cargo build {flags...} --target {target} --package kpack-cli --bin kpack"
    ))?;
    Ok(repository::target_directory().join(target).join(name).join("kpack"))
}

/// Builds the loader `librocm_kpack` optimised, and returns its directory.
pub(crate) fn loader(cargo: &Cargo, profile: Profile) -> Result<PathBuf> {
    process::step(&format!("Building the loader `librocm_kpack` ({})", profile.name()));
    let loader = ["--package=kpack-runtime", "--lib", "--crate-type=cdylib,staticlib"];
    cargo.run("rustc", &flags(profile, "")?, &loader)?;
    Ok(cargo.output()?.join(profile.name()))
}

/// Builds the shim `libkpack_hip` optimised, and returns the shared library and the static one, as cargo builds it.
pub(crate) fn shim(cargo: &Cargo, profile: Profile) -> Result<[PathBuf; 2]> {
    process::step(&format!("Building the shim `libkpack_hip` ({})", profile.name()));
    let mut flags = flags(profile, "")?;
    let shared = ["--package=kpack-hip", "--lib", "--crate-type=cdylib"];
    cargo.run("rustc", &flags, &shared)?;
    // What is linked into each binary is built to be small.
    flags[1] = "shim".into();
    cargo.run("build", &flags, &["--package=kpack-hip-link", "--lib"])?;
    let output = cargo.output()?;
    let shared = output.join(profile.name()).join("libkpack_hip.so");
    Ok([shared, output.join("shim/libkpack_hip_link.a")])
}
