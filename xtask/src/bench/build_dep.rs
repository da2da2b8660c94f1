//! Compares the cost of `kpack-build` as a build dependency with `cc` and `bindgen`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{measure, typical};
use crate::{process, repository};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct BuildDep {
    /// How often to compile each of the three, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Measures, and prints crates and times.
///
/// # Errors
/// A package does not build or cannot be fetched.
pub(super) fn run(options: &BuildDep) -> Result<()> {
    let work = repository::target_directory().join("bench-build-dep");
    let _ = fs::remove_dir_all(&work);
    let own = repository::root().join("kpack-build");
    let packages = [
        ("kpack-build", format!("{{ path = {own:?} }}")),
        ("cc", "\"1\"".to_owned()),
        ("bindgen", "\"0.72\"".to_owned()),
    ];
    let mut crates = Vec::new();
    for (name, dependency) in &packages {
        write_package(&work.join(name), name, dependency)?;
        crates.push(count(&work.join(name), name)?);
    }
    process::step(&format!(
        "Compiling an empty package with each as its build dependency, {} rounds",
        options.rounds
    ));
    let mut costs = [const { Vec::new() }; 3];
    for _ in 0..options.rounds {
        for ((name, _), costs) in packages.iter().zip(&mut costs) {
            let _ = fs::remove_dir_all(work.join(name).join("target"));
            let mut command = Command::new("cargo");
            command.args(["build", "--offline", "--quiet"]);
            command
                .current_dir(work.join(name))
                .env_remove("CARGO_TARGET_DIR");
            costs.push(measure(&mut command)?);
        }
    }
    println!("\n{:<14} {:>8} {:>10}", "", "crates", "seconds");
    let mut times = Vec::new();
    for (((name, _), crates), costs) in packages.iter().zip(&crates).zip(&mut costs) {
        let time = typical(costs).wall.as_secs_f64();
        println!("{name:<14} {crates:>8} {time:>10.2}");
        times.push(time);
    }
    println!(
        "kpack-build over bindgen: {:.2} of the time (medians), {:.2} of the crates",
        times[0] / times[2],
        crates[0] as f64 / crates[2] as f64
    );
    let _ = fs::remove_dir_all(&work);
    Ok(())
}

/// Writes an empty package whose build script does not use its only dependency.
fn write_package(directory: &Path, name: &str, dependency: &str) -> Result<()> {
    fs::create_dir_all(directory.join("src")).with_context(|| directory.display().to_string())?;
    let manifest = format!(
        "[package]\nname = \"uses-{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[build-dependencies]\n{name} = {dependency}\n\n[workspace]\n"
    );
    fs::write(directory.join("Cargo.toml"), manifest)?;
    fs::write(directory.join("build.rs"), "fn main() {}\n")?;
    fs::write(directory.join("src/lib.rs"), "")?;
    Ok(())
}

/// Fetches the dependency and counts the crates compiled for it, including itself.
fn count(directory: &Path, name: &str) -> Result<usize> {
    let _directory = process::shell().push_dir(directory);
    process::run!("cargo fetch")?;
    let tree =
        process::run!("cargo tree --offline --edges build,normal --prefix none --no-dedupe")?;
    // Further copies of one package are marked at the end of the line.
    let all: BTreeSet<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect();
    ensure!(
        all.iter()
            .any(|package| package.starts_with(&format!("{name} v"))),
        "`cargo tree` does not list {name}:\n{tree}"
    );
    // Do not count the empty package.
    Ok(all.len() - 1)
}
