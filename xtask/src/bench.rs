//! `cargo xtask bench`: measures kpack and, in the same run, what it is compared with.

mod comparison;
mod page;
mod real;
mod setup;
mod sizes;
mod stored;
mod table;

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use comparison::{Group, Outcome, Setup};
use table::GROUPS;

use crate::{build, corpus_sizes, process, repository};

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "A missed bound is printed as such, and is no error: on a busy machine it says little. Data is made in the \
        target directory and removed; at most 8 GB are there at a time (20 GB with --large)."
)]
pub(crate) struct Options {
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
}

/// What is measured with inputs that the caller names.
#[derive(Debug, Subcommand)]
enum Given {
    /// Split libraries that were fetched by hand, and print a table
    Real(real::Options),
}

const ALL: &str = "all";
const SIZES: &str = "sizes";

fn names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|group| group.name).chain([SIZES, ALL])
}

/// Measures, prints the tables and, for `all`, writes the page.
///
/// # Errors
/// A command fails, or the corpus cannot be fetched. The other measurements are made all the same.
pub(crate) fn run(options: &Options) -> Result<()> {
    give_memory_back()?;
    if let Some(Given::Real(options)) = &options.given {
        return real::run(options);
    }
    let all = options.names.iter().any(|name| name == ALL);
    let chosen = |name: &str| all || options.names.iter().any(|chosen| chosen == name);
    let start = Instant::now();
    let mut machine = page::machine(options.rounds)?;
    let helper = build::helper(build::Profile::Dist)?;
    let groups = || GROUPS.iter().filter(|group| chosen(group.name));
    // Building it takes minutes.
    let portable = if groups().any(|group| group.rows.iter().any(|row| row.hashes)) {
        build::portable_helper()?
    } else {
        helper.clone()
    };
    let (mut outcomes, mut failed) = (Vec::new(), Vec::new());
    for group in groups() {
        process::step(&format!("{}: making its data", group.name));
        match measure(group, [&helper, &portable], options) {
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
    let mut parts = vec![
        ("machine", machine),
        ("comparisons", page::table(comparisons)),
        ("scaling", page::table(scaling)),
        ("transfers", transfers),
    ];
    if chosen(SIZES) {
        parts.push(("sizes", sizes::table(&helper, &corpus_sizes::largest_of_each()?)?));
    }
    println!();
    for (_, text) in parts.iter().filter(|(_, text)| !text.is_empty()) {
        println!("{text}");
    }
    println!("All took {:.1} minutes.", start.elapsed().as_secs_f64() / 60.0);
    if all {
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
    options: &Options,
) -> Result<Vec<Outcome>> {
    // Also what a run left that was killed.
    let work = repository::target_directory().join("bench");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir(&work)?;
    let rows = group.rows.iter();
    let rows: Vec<_> = rows.filter(|row| options.large || !row.large).collect();
    let setup = Setup { work: &work, kpack, portable, rows: &rows };
    let outcomes = comparison::run(group, &setup, options.rounds);
    fs::remove_dir_all(&work)?;
    outcomes
}
