//! `cargo xtask bench`: measures the cost of splitting against a reference in the same run.

mod build_dep;
mod join;
mod tree;
mod wheel;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use wait4::Wait4;
use xshell::cmd;

use crate::{corpus, process, repository};

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Split librocsparse0's library (1.3 GB), compared with `zstd -3 -T2` on the same file.
    Split(Split),
    /// Load the kernels of librocsparse0's library for one GPU (190 MB), compared with plain zstd.
    Load(Load),
    /// Split a tree of twenty fat binaries and 2,000 database files, compared with
    /// `tar | zstd -3 -T2` on the same tree.
    Tree(tree::Tree),
    /// Join librocsparse0's library for one GPU (190 MB), compared with copying the joined file.
    Join(join::Join),
    /// Split Python wheels, compared with unpacking and packing them.
    Wheel(wheel::Wheel),
    /// Compile `kpack-build` as a build dependency, compared with `cc` and `bindgen`.
    BuildDep(build_dep::BuildDep),
}

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// How often each side loads all kernels, alternately.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Split {
    /// How often to run each of the two, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Runs the benchmark.
///
/// # Errors
/// A command fails, or the corpus cannot be fetched.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Split(options) => split(options),
        Bench::Load(options) => load(options),
        Bench::Tree(options) => tree::run(options),
        Bench::Join(options) => join::run(options),
        Bench::Wheel(options) => wheel::run(options),
        Bench::BuildDep(options) => build_dep::run(options),
    }
}

/// One run of a program.
#[derive(Debug, Clone, Copy)]
struct Cost {
    wall: Duration,
    /// Peak resident memory, in bytes.
    memory: u64,
}

/// The largest library of the corpus.
fn largest() -> Result<corpus::Library> {
    corpus::libraries()?
        .into_iter()
        .find(|library| library.package == corpus::LARGEST)
        .with_context(|| format!("{} is not in the corpus", corpus::LARGEST))
}

fn load(options: &Load) -> Result<()> {
    let library = largest()?;
    let helper = repository::build_helper()?;
    let prefix = repository::target_directory().join("bench-load");
    let _ = fs::remove_dir_all(&prefix);
    fs::create_dir_all(prefix.join("lib"))?;
    let file = Path::new("lib").join(library.name());
    fs::copy(&library.path, prefix.join(&file))?;
    cmd!(
        process::shell(),
        "{helper} install --module rocsparse --prefix {prefix} --arch gfx1030 {file}"
    )
    .ignore_stderr()
    .run()?;
    let archive = prefix.join("lib/.kpack/rocsparse_lib_gfx1030.kpack");
    let rounds = options.rounds.to_string();
    process::step("Loading every kernel, and decompressing every frame with zstd alone");
    cmd!(
        process::shell(),
        "cargo bench --quiet --locked --package kpack-runtime --bench load -- {archive} {rounds}"
    )
    .run()?;
    fs::remove_dir_all(&prefix)?;
    Ok(())
}

fn split(options: &Split) -> Result<()> {
    let library = largest()?;
    let helper = repository::build_helper()?;
    let work = repository::target_directory().join("bench");

    process::step(&format!(
        "zstd -3 -T2 and kpack install on {}, {} rounds",
        library.name(),
        options.rounds
    ));
    let file = Path::new("lib").join(library.name());
    let (mut zstd, mut kpack) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        // Each round starts with a fresh copy, which is in the page cache for both.
        let prefix = work.join("prefix");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(prefix.join("lib"))?;
        let copy = prefix.join(&file);
        fs::copy(&library.path, &copy).with_context(|| copy.display().to_string())?;

        let mut command = Command::new("zstd");
        command.args(["-3", "-T2", "-q", "-f", "-o"]);
        command.arg(work.join("reference.zst")).arg(&copy);
        zstd.push(measure(&mut command)?);
        fs::remove_file(work.join("reference.zst"))?;

        let mut command = Command::new(&helper);
        command.args(["install", "--module", "rocsparse", "--prefix"]);
        command.arg(&prefix).arg(&file);
        kpack.push(measure(&mut command)?);
    }
    let _ = fs::remove_dir_all(&work);

    let kpack = compare(
        ("zstd -3 -T2", &mut zstd),
        ("kpack install", &mut kpack),
        2.0,
    );
    let holds = verdict(kpack.memory < 400_000_000);
    println!("Bound: less than 400 MB: {holds}");
    Ok(())
}

/// Prints each run of two programs, and the ratio of the second's time, which has a bound, and memory to
/// the first's. Returns what is typical of the second.
fn compare(
    (reference, by): (&str, &mut [Cost]),
    (own, costs): (&str, &mut [Cost]),
    bound: f64,
) -> Cost {
    println!("\n{:<20} {:>10} {:>14}", "", "seconds", "peak MB");
    for (name, costs) in [(reference, &*by), (own, &*costs)] {
        for cost in costs {
            let (seconds, memory) = (cost.wall.as_secs_f64(), cost.memory as f64 / 1e6);
            println!("{name:<20} {seconds:>10.2} {memory:>14.1}");
        }
    }
    let (by, typical) = (typical(by), typical(costs));
    let ratio = typical.wall.as_secs_f64() / by.wall.as_secs_f64();
    let memory = typical.memory as f64 / by.memory as f64;
    println!(
        "{:<20} {ratio:>10.2} {memory:>14.2}   (medians; {own} over {reference})",
        "ratio"
    );
    let holds = verdict(ratio <= bound);
    println!("Bound: a ratio of wall time of at most {bound}: {holds}");
    typical
}

/// Median time and highest memory peak.
fn typical(costs: &mut [Cost]) -> Cost {
    costs.sort_by_key(|cost| cost.wall);
    Cost {
        wall: costs[costs.len() / 2].wall,
        memory: costs.iter().map(|cost| cost.memory).max().unwrap_or(0),
    }
}

fn measure(command: &mut Command) -> Result<Cost> {
    let shown = format!("{command:?}");
    println!("$ {shown}");
    let start = Instant::now();
    let used = command
        .stdin(std::process::Stdio::null())
        .spawn()
        .and_then(|mut child| child.wait4())
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow::anyhow!("{shown}: not installed"),
            _ => error.into(),
        })?;
    ensure!(used.status.success(), "{shown} failed ({})", used.status);
    Ok(Cost {
        wall: start.elapsed(),
        memory: used.rusage.maxrss,
    })
}

fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "DOES NOT HOLD" }
}
