//! `cargo xtask bench` measures kpack and, in the same run, the programs that it is compared with. `cargo xtask corpus` fetches
//! libraries to measure.

mod build;
mod comparison;
mod corpus;
mod page;
mod real;
mod setup;
mod stored;
mod table;

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use kpack_tests::process::target_directory;

use comparison::{Group, Outcome, Setup};
use table::GROUPS;

/// Benchmarks of kpack.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measure speed and memory against other programs: all, or only what is named.
    Bench(Options),
    /// Fetch real libraries with device code, by package name, into `target/corpus`.
    Corpus {
        /// Split the largest library of each package, and print the sizes as a Markdown table.
        #[arg(long)]
        sizes: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Bench(options) => run(&options),
        Task::Corpus { sizes: false } => corpus::list(),
        Task::Corpus { sizes: true } => corpus::sizes(),
    }
}

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "A missed bound is printed as such, and is no error: on a busy machine it says little. Data is made in the \
        target directory and removed; at most 8 GB are there at a time (20 GB with --large)."
)]
struct Options {
    #[command(subcommand)]
    given: Option<Given>,
    /// What to measure; `all` also writes the tables of docs/dev/performance.md
    #[arg(required = true, value_parser = PossibleValuesParser::new(names()))]
    names: Vec<String>,
    /// How often to run each program, alternately
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure with 5 GB of device code and with a million files as well
    #[arg(long)]
    large: bool,
    /// Compare two builds of kpack instead, both named `kpack`, and build none
    #[arg(long, num_args = 2, value_names = ["OLDER", "NEWER"])]
    compare: Option<Vec<PathBuf>>,
}

/// What is measured with inputs that the caller names.
#[derive(Debug, Subcommand)]
enum Given {
    /// Split libraries that were fetched by hand, and print a table
    Real(real::Options),
}

const ALL: &str = "all";

fn names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|group| group.name).chain([ALL])
}

/// Measures, prints the tables and, for `all`, writes the page.
///
/// # Errors
/// A command fails, or the corpus cannot be fetched. The other measurements are made all the same.
fn run(options: &Options) -> Result<()> {
    give_memory_back()?;
    if let Some(Given::Real(options)) = &options.given {
        return real::run(options);
    }
    let all = options.names.iter().any(|name| name == ALL);
    let chosen = |name: &str| all || options.names.iter().any(|chosen| chosen == name);
    let start = Instant::now();
    let mut machine = page::machine(options.rounds)?;
    let (older, kpack) = match options.compare.as_deref() {
        Some([older, newer]) => (Some(fs::canonicalize(older)?), fs::canonicalize(newer)?),
        _ => (None, build::kpack(build::PACKAGED)?),
    };
    let groups = || GROUPS.iter().filter(|group| chosen(group.name));
    // Building it takes minutes.
    let portable =
        if older.is_none() && groups().any(|group| group.rows.iter().any(|row| row.hashes)) {
            build::portable_kpack()?
        } else {
            kpack.clone()
        };
    let (mut outcomes, mut failed) = (Vec::new(), Vec::new());
    for group in groups() {
        build::step(&format!("{}: making its data", group.name));
        match measure(group, [&kpack, &portable], older.as_deref(), options) {
            Ok(measured) => outcomes.extend(measured),
            Err(error) => {
                eprintln!("error: {}: {error:#}", group.name);
                failed.push(group.name);
            }
        }
    }
    let transfers = page::transfers(&outcomes);
    let (scaling, comparisons): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|outcome| outcome.row.size > 0);
    if !failed.is_empty() {
        machine += &format!("Not measured, because of an error: {}.\n", failed.join(", "));
    }
    let parts = vec![
        ("machine", machine),
        ("comparisons", page::table(comparisons)),
        ("scaling", page::table(scaling)),
        ("transfers", transfers),
    ];
    println!();
    for (_, text) in parts.iter().filter(|(_, text)| !text.is_empty()) {
        println!("{text}");
    }
    println!("All took {:.1} minutes.", start.elapsed().as_secs_f64() / 60.0);
    if all && older.is_none() {
        page::write(&parts)?;
    }
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

/// Makes malloc return every large block to the system, by starting this program anew: a child's peak is at least
/// what its parent holds when it starts.
fn give_memory_back() -> Result<()> {
    if env::var_os(comparison::MALLOC).is_some() {
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    let command = command.args(env::args_os().skip(1));
    Err(command.env(comparison::MALLOC, "65536").exec().into())
}

/// Measures one group in a directory that is removed afterwards.
fn measure(
    group: &'static Group,
    [kpack, portable]: [&Path; 2],
    older: Option<&Path>,
    options: &Options,
) -> Result<Vec<Outcome>> {
    // Also what a run left that was killed.
    let work = target_directory().join("bench");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir(&work)?;
    let rows = group.rows.iter();
    let mut rows: Vec<_> = rows.filter(|row| options.large || !row.large).collect();
    if older.is_some() {
        // Rows of the same command differ only in what they compare it with.
        rows.dedup_by_key(|row| (row.own, row.size));
    }
    let setup = Setup { work: &work, kpack, portable, older, rows: &rows };
    let outcomes = comparison::run(group, &setup, options.rounds);
    fs::remove_dir_all(&work)?;
    outcomes
}

#[cfg(test)]
mod tests {
    use kpack_tests::page::task_commands;

    use super::{Arguments, Parser};

    /// For `xtask` itself, the rest of these commands may be anything.
    #[test]
    fn the_commands_of_the_documents_exist() {
        let mut count = 0;
        for (page, command) in task_commands().unwrap() {
            let words = Vec::from_iter(command.split_whitespace().skip(1));
            if !words.get(1).is_some_and(|task| ["bench", "corpus"].contains(task)) {
                continue;
            }
            let parsed = Arguments::try_parse_from(words);
            assert!(parsed.is_ok(), "{}: {command}\n{parsed:?}", page.display());
            count += 1;
        }
        assert!(count > 4, "{count} commands");
    }
}
