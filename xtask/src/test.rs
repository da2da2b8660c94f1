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
    let cargo = cmd!(process::shell(), "cargo test --locked --workspace --all-features {rest...}");
    let variables = kpack_tests::process::cargo_variables();
    variables.fold(cargo, Cmd::env_remove).run()?;
    Ok(())
}
