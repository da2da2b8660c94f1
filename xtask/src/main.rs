//! Development tasks: `cargo xtask <task>`.

mod api;
mod bench;
mod book;
mod bootstrap;
mod build;
#[cfg(test)]
mod dependencies;
mod dist;
mod fuzz;
mod glibc;
#[cfg(test)]
mod links;
mod log;
mod package;
mod process;
mod processes;
mod repository;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use build::Profile;
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
    /// Build, install, split and run a real HIP project, and compare every result.
    E2e {
        /// First install the tools that are missing, with apt-get (as root, or through sudo). A missing tool then fails its test.
        #[arg(long)]
        bootstrap: bool,
    },
    /// Run all tests of the workspace, or those that need packages or minutes.
    Test(test::Options),
    /// Fetch real libraries with device code, by package name, into `target/corpus`.
    #[command(disable_help_flag = true)]
    Corpus(bench::Arguments),
    /// Measure speed and memory against other programs: all, or only what is named.
    #[command(disable_help_flag = true)]
    Bench(bench::Arguments),
    /// Compare the public API of the library crates with the listings in their directories.
    Api {
        /// Write the listings again.
        #[arg(long)]
        update: bool,
    },
    /// Feed damaged files to the readers of all formats, watched by AddressSanitizer.
    Fuzz(fuzz::Options),
    /// Install the tools that tasks need, with apt-get (as root, or through sudo), and print their size first.
    ///
    /// apt-get upgrades an installed package only if a tool needs it, and removes none.
    Bootstrap {
        /// Only what these tasks need.
        #[arg(value_name = "TASK")]
        tasks: Vec<bootstrap::Needs>,
    },
    /// Put the helper, the loader, the CMake packages and the documents into an install prefix.
    Dist {
        /// The prefix, created if missing.
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
        /// The loader's directory in the prefix, such as `lib64` or `lib/x86_64-linux-gnu`.
        #[arg(long, value_name = "DIR", default_value = "lib")]
        libdir: PathBuf,
        /// Build profile: `dist`, as packaged, `release`, without link-time optimisation, or `dev`, as tests are built.
        #[arg(long, value_name = "NAME", value_enum, default_value = "dist")]
        profile: Profile,
        /// The oldest glibc that the loader, the shim and the command run with, such as 2.28: Zig, which is fetched from
        /// PyPI, links them. Default: what this system's glibc demands.
        #[arg(long, value_name = "VERSION")]
        glibc: Option<glibc::Glibc>,
    },
    /// Make the handbook of `docs/` with mdBook, in `target/book`, and check its links.
    Book,
    /// Make a DEB and an RPM of each part of kpack, and a Python wheel and an archive of the helper, in
    /// `target/package`.
    Package {
        /// Fail unless `Cargo.toml` says who publishes it ([workspace.metadata.publisher]).
        #[arg(long)]
        release: bool,
        /// Build profile: `dist`, as packaged, `release`, without link-time optimisation, or `dev`, as tests are built.
        #[arg(long, value_name = "NAME", value_enum, default_value = "dist")]
        profile: Profile,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(process::NotRun(why)) = error.downcast_ref() {
                let _ = process::note_not_run("not complete", why);
                ExitCode::from(process::NOT_RUN)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn run() -> Result<()> {
    match Arguments::parse().task {
        Task::E2e { bootstrap } => test::run(&test::Options::of("e2e", bootstrap)),
        Task::Test(options) => test::run(&options),
        Task::Corpus(arguments) => bench::run("corpus", &arguments),
        Task::Bench(arguments) => bench::run("bench", &arguments),
        Task::Api { update } => api::run(update),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Bootstrap { tasks } => bootstrap::install_missing(&tasks),
        Task::Book => book::run(),
        Task::Package { release, profile } => package::run(release, profile),
        Task::Dist { prefix, libdir, profile, glibc } => {
            dist::install(&prefix, &libdir, profile, glibc)
        }
    }
}

#[cfg(test)]
mod tests {
    use kpack_tools::documents::task_commands;

    use super::{Arguments, Parser};

    #[test]
    fn the_commands_of_the_documents_exist() {
        let mut count = 0;
        for (page, command) in task_commands().unwrap() {
            let parsed = Arguments::try_parse_from(command.split_whitespace().skip(1));
            assert!(parsed.is_ok(), "{}: {command}\n{parsed:?}", page.display());
            count += 1;
        }
        assert!(count > 10, "{count} commands");
    }
}
