//! Development tasks: `cargo xtask <task>`.

mod bench;
mod bootstrap;
mod corpus;
mod corpus_sizes;
mod dist;
mod e2e;
mod process;
mod repository;
mod test;
mod thread_sanitizer;

use std::path::PathBuf;
use std::process::ExitCode;

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
    /// Build a real HIP project, install, split, strip and run it, and compare everything.
    E2e(e2e::Options),
    /// Build a library with Debian's ROCm, split, package, install and load it.
    Real(e2e::real::Options),
    /// Run all tests of the workspace.
    Test {
        /// First install the tools that the tests run, with apt-get; then none may be missing.
        #[arg(long)]
        bootstrap: bool,
        /// Passed on to `cargo test`.
        #[arg(last = true)]
        rest: Vec<String>,
    },
    /// Fetch real libraries with device code, by package name, into `target/corpus`.
    Corpus {
        /// Split the largest library of each package, and print what one GPU needs of it (Markdown).
        #[arg(long)]
        sizes: bool,
    },
    /// Measure.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Install the tools that the other tasks need, with apt-get (as root, or through sudo).
    Bootstrap,
    /// Load in many threads at once, under ThreadSanitizer.
    ThreadSanitizer,
    /// Put the helper, the loader, the CMake packages and the documents into an install prefix.
    Dist {
        /// The prefix, made where it is missing.
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
        /// Where in it the loader goes, such as `lib64` or `lib/x86_64-linux-gnu`.
        #[arg(long, value_name = "DIR", default_value = "lib")]
        libdir: PathBuf,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    match Arguments::parse().task {
        Task::E2e(options) => e2e::run(&options),
        Task::Real(options) => e2e::real::run(&options),
        Task::Test { bootstrap, rest } => test::run(bootstrap, &rest),
        Task::Corpus { sizes: false } => corpus::run(),
        Task::Corpus { sizes: true } => corpus_sizes::run(),
        Task::Bench(bench) => bench::run(&bench),
        Task::Bootstrap => bootstrap::install_missing(),
        Task::ThreadSanitizer => thread_sanitizer::run(),
        Task::Dist { prefix, libdir } => dist::install(&prefix, &libdir),
    }
}
