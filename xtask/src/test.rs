//! `cargo xtask test`: the tests of the workspace.

use anyhow::Result;
use xshell::cmd;

use crate::{bootstrap, process, repository};

/// Runs `cargo test` over the workspace, `rest` passed on; with `bootstrap` after installing the
/// tools that tests run.
///
/// # Errors
/// A test that fails, or a tool that cannot be installed.
pub(crate) fn run(bootstrap: bool, rest: &[String]) -> Result<()> {
    let shell = repository::shell()?;
    if bootstrap {
        bootstrap::install_missing()?;
        // Without this variable a test that lacks a tool says so and is skipped; now it fails.
        shell.set_var("KPACK_REQUIRE_TOOLS", "1");
    }
    process::step("Running the tests of the workspace");
    cmd!(
        shell,
        "cargo test --locked --workspace --all-features {rest...}"
    )
    .run()?;
    Ok(())
}
