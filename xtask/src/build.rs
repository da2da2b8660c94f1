//! Builds what people install.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use xshell::cmd;

use crate::glibc::Cargo;
use crate::{log, process, repository};

/// A profile of `Cargo.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// As tests are built, so cargo has compiled nearly all of it.
    Dev,
    /// Without link-time optimisation.
    Release,
    /// What packages contain.
    Dist,
}

impl Profile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
            Self::Dist => "dist",
        }
    }

    /// Its directory in Cargo's target directory.
    fn directory(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release | Self::Dist => self.name(),
        }
    }
}

/// Cargo's flags for what people install, with more flags for rustc. Messages of a panic in a dependency name its file, but not the
/// directory of the machine that built it.
fn flags(profile: Profile, more: &[&str]) -> Result<Vec<String>> {
    let mut flags = vec!["--profile".into(), profile.name().into(), "--locked".into()];
    let mut for_rustc = Vec::from_iter(more.iter().map(|flag| format!("'{flag}'")));
    // With other flags than the tests', cargo would compile everything again.
    if profile != Profile::Dev {
        let home = repository::cargo_home()?;
        for_rustc.push(format!("'--remap-path-prefix={}=/cargo'", home.display()));
    }
    if !for_rustc.is_empty() {
        flags.extend(["--config".into(), format!("build.rustflags=[{}]", for_rustc.join(","))]);
    }
    Ok(flags)
}

/// The command, all libraries, and the smallest test. Cargo compiles a dependency again for each set of features. All
/// packages together have the features of `cargo test --workspace --all-features`, but only if a test is built as well.
const FOR_TESTS: [&str; 5] =
    ["--workspace", "--all-features", "--lib", "--bin=kpack", "--test=programs"];

/// Builds the helper binary `kpack` optimised, and returns its path.
pub(crate) fn helper(cargo: &Cargo, profile: Profile) -> Result<PathBuf> {
    process::step(&format!("Building the helper binary `kpack` ({})", profile.name()));
    let built: &[&str] = match (cargo, profile) {
        (Cargo::System, Profile::Dev) => &FOR_TESTS,
        _ => &["--package=kpack-cli", "--bin=kpack"],
    };
    cargo.run("build", &flags(profile, &[])?, built)?;
    Ok(cargo.output()?.join(profile.directory()).join("kpack"))
}

/// Builds the helper binary with a C library linked into it, so that it runs on every Linux of this architecture, and
/// returns its path.
pub(crate) fn static_helper(profile: Profile) -> Result<PathBuf> {
    process::step(&format!(
        "Building the helper binary `kpack` with a C library in it ({})",
        profile.name()
    ));
    let mut flags = flags(profile, &["-Ctarget-feature=+crt-static"])?;
    if profile == Profile::Dev {
        // Cargo compiles every crate again for it, and it runs for seconds.
        for quick in ["profile.dev.debug=0", "profile.dev.package.zstd-sys.opt-level=0"] {
            flags.extend(["--config", quick].map(str::to_owned));
        }
    }
    let target = repository::explicit_target()?;
    log::run(cmd!(
        process::shell(),
        "cargo build {flags...} --target {target} --package kpack-cli --bin kpack"
    ))?;
    Ok(repository::target_directory().join(target).join(profile.directory()).join("kpack"))
}

/// Builds the loader `librocm_kpack` optimised, and returns its directory.
pub(crate) fn loader(cargo: &Cargo, profile: Profile) -> Result<PathBuf> {
    process::step(&format!("Building the loader `librocm_kpack` ({})", profile.name()));
    let loader = ["--package=kpack-runtime", "--lib", "--crate-type=cdylib,staticlib"];
    cargo.run("rustc", &flags(profile, &[])?, &loader)?;
    Ok(cargo.output()?.join(profile.directory()))
}

/// Builds the shim `libkpack_hip` optimised, and returns the shared library and the static one, as cargo builds it.
pub(crate) fn shim(cargo: &Cargo, profile: Profile) -> Result<[PathBuf; 2]> {
    process::step(&format!("Building the shim `libkpack_hip` ({})", profile.name()));
    let mut flags = flags(profile, &[])?;
    let shared = ["--package=kpack-hip", "--lib", "--crate-type=cdylib"];
    cargo.run("rustc", &flags, &shared)?;
    // What is linked into each binary is built to be small.
    flags[1] = "shim".into();
    cargo.run("build", &flags, &["--package=kpack-hip-link", "--lib"])?;
    let output = cargo.output()?;
    let shared = output.join(profile.directory()).join("libkpack_hip.so");
    Ok([shared, output.join("shim/libkpack_hip_link.a")])
}

/// As [`shim`], of what is built for tests anyway: optimising the static library takes as long as compiling the command.
pub(crate) fn shim_for_tests() -> Result<[PathBuf; 2]> {
    let (cargo, profile) = (Cargo::System, Profile::Dev);
    cargo.run("build", &flags(profile, &[])?, &FOR_TESTS)?;
    let output = cargo.output()?.join(profile.directory());
    Ok(["libkpack_hip.so", "libkpack_hip_link.a"].map(|name| output.join(name)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kpack_tools::process::{cargo, try_run};
    use serde_json::Value;

    use super::FOR_TESTS;
    use crate::repository;

    /// What cargo would compile, with the features and the options for the compiler.
    fn units(arguments: &[&str]) -> BTreeSet<String> {
        let mut command = cargo(arguments);
        command.args(["--locked", "--unit-graph", "-Zunstable-options"]);
        let graph = try_run(command.env("RUSTC_BOOTSTRAP", "1").current_dir(repository::root()));
        let mut graph: Value = serde_json::from_str(&graph.unwrap()).unwrap();
        let units = graph["units"].as_array_mut().unwrap().iter_mut();
        let shown = units.map(|unit| {
            // `test` inherits all of `dev`.
            unit["profile"]["name"] = Value::Null;
            let target = ["name", "kind"].map(|key| unit["target"][key].to_string());
            let others = ["pkg_id", "mode", "features", "profile"].map(|key| unit[key].to_string());
            [target.join(" "), others.join(" ")].join(" ")
        });
        shown.collect()
    }

    #[test]
    fn what_e2e_compiles_serves_all_tests() {
        let all = units(&["test", "--no-run", "--workspace", "--all-features"]);
        let tests = ["test", "--no-run", "--workspace", "--all-features", "--test=system"];
        for arguments in [&tests[..], &[&["build"], &FOR_TESTS[..]].concat()] {
            let own = units(arguments);
            // No test needs the static library of the shim.
            let other = own.difference(&all).filter(|unit| !unit.contains("kpack-hip-link"));
            assert_eq!(Vec::from_iter(other), Vec::<&String>::new());
            assert!(own.len() > 100, "{own:#?}");
        }
    }
}
