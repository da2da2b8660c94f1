//! Development tasks: `cargo xtask <task>`.

mod bootstrap;
mod dist;
mod process;
mod repository;
mod test;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Development tasks of kpack.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run all tests of the workspace.
    Test {
        /// First install the tools that the tests run, with apt-get; then none may be missing.
        #[arg(long)]
        bootstrap: bool,
        /// Passed on to `cargo test`.
        #[arg(last = true)]
        rest: Vec<String>,
    },
    /// Install the tools that the other tasks need, with apt-get (as root, or through sudo).
    Bootstrap,
    /// Put the helper, the CMake package and the documents into an install prefix.
    Dist {
        /// The prefix, made where it is missing.
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Test { bootstrap, rest } => test::run(bootstrap, &rest),
        Task::Bootstrap => bootstrap::install_missing(),
        Task::Dist { prefix } => dist::install(&prefix),
    }
}
