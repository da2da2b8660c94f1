//! `cargo xtask bench` and `cargo xtask corpus`: only these compile the package in `bench`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::Result;
use kpack_tools::process::cargo;

use crate::repository;

/// The options of a task, which the package in `bench` defines.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// See `--help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Compiles the package, and becomes one of its tasks.
///
/// # Errors
/// Cargo cannot be run.
pub(crate) fn run(task: &str, Arguments { arguments }: &Arguments) -> Result<()> {
    let mut command =
        cargo(&["run", "--quiet", "--locked", "--package=kpack-bench", "--manifest-path"]);
    command.arg(repository::root().join("Cargo.toml")).args(["--", task]);
    Err(command.args(arguments).exec().into())
}
