//! `cargo xtask api`: only this task compiles the package in `tests/api`.

use std::process::Stdio;

use anyhow::{Result, bail, ensure};
use kpack_tools::process::cargo;

use crate::{process, repository};

/// Compares the listings of the public API, or with `update` writes them again.
///
/// # Errors
/// The public API of a crate changed. [`NotRun`](process::NotRun) with another release of Rust.
pub(crate) fn run(update: bool) -> Result<()> {
    process::step("Listing the public API of the library crates");
    let mut command = cargo(&["run", "--quiet", "--locked", "--package=kpack-api", "--"]);
    command.args(update.then_some("--update")).current_dir(repository::root());
    let output = command.stderr(Stdio::inherit()).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(process::NOT_RUN.into()) {
        bail!(process::NotRun(printed.trim().to_owned()));
    }
    print!("{printed}");
    ensure!(output.status.success(), "the public API is not what the listings say: see above");
    Ok(())
}
