//! `cargo xtask test`: the tests of the workspace.

use anyhow::Result;
use xshell::{Cmd, cmd};

use crate::{bootstrap, process};

/// Runs `cargo test` over the workspace with the arguments `rest`; with `bootstrap`, installs the
/// tools that tests run first.
///
/// # Errors
/// A test fails, or a tool cannot be installed.
pub(crate) fn run(bootstrap: bool, rest: &[String]) -> Result<()> {
    if bootstrap {
        bootstrap::install_missing()?;
        // A test that lacks a tool now fails, instead of being skipped.
        process::shell().set_var("KPACK_REQUIRE_TOOLS", "1");
    }
    process::step("Running the tests of the workspace");
    if !rest.is_empty() {
        return cargo_test(rest);
    }
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    cargo_test(&targets.map(str::to_owned))?;
    // By a cargo of its own, which compiles what builds that tests started have overwritten: the loader's
    // library has no hash in its name.
    cargo_test(&["--doc".to_owned()])
}

fn cargo_test(arguments: &[String]) -> Result<()> {
    let cargo = cmd!(
        process::shell(),
        "cargo test --locked --workspace --all-features {arguments...}"
    );
    let variables = kpack_tests::process::cargo_variables();
    variables.fold(cargo, Cmd::env_remove).run()?;
    Ok(())
}
