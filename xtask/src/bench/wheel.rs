//! What splitting a Python wheel costs, against unpacking it and packing it again.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use super::{compare, measure, verdict};
use crate::e2e::wheels::Tools;
use crate::{corpus, process, repository};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Wheel {
    /// How often to run each of the two, alternately.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// A wheel, and the bound of the ratio: with plain bundles; and with bundles that are compressed, beside
/// much host code.
const WHEELS: [(&str, f64); 2] = [("cyllama-rocm", 0.5), ("bitsandbytes", 1.0)];

/// Measures.
///
/// # Errors
/// A command fails, or the Python package index does not answer.
pub(super) fn run(options: &Wheel) -> Result<()> {
    let helper = repository::build_helper()?;
    let work = repository::target_directory().join("bench-wheel");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    Tools::install(work.join("tools"))?;
    for (package, bound) in WHEELS {
        one(&helper, package, bound, &work, options.rounds)?;
    }
    fs::remove_dir_all(&work)?;
    Ok(())
}

fn one(helper: &Path, package: &str, bound: f64, work: &Path, rounds: u32) -> Result<()> {
    let wheel = corpus::wheel(package)?;
    process::step(&format!(
        "kpack wheel split of {package}, and wheel unpack and wheel pack, {rounds} rounds"
    ));
    let (out, program) = (work.join("out"), work.join("tools/bin/wheel"));
    let (mut split, mut packed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let _ = fs::remove_dir_all(&out);
        let mut command = Command::new(helper);
        command.args(["wheel", "split", "--quiet"]).arg(&wheel);
        split.push(measure(command.arg("--output-dir").arg(&out))?);

        let _ = fs::remove_dir_all(&out);
        fs::create_dir_all(out.join("packed"))?;
        let mut command = Command::new("sh");
        let script = "\"$0\" unpack --dest \"$1\" \"$2\" && \"$0\" pack --dest-dir \"$1/packed\" \"$1\"/*-* && sync \"$1\"/packed/*";
        command.args(["-c", script]).arg(&program).arg(&out);
        packed.push(measure(command.arg(&wheel))?);
    }
    let split = compare(
        ("unpack and pack", &mut packed),
        ("kpack wheel split", &mut split),
        bound,
    );
    let holds = verdict(split.memory < 200_000_000);
    println!("Bound: less than 200 MB: {holds}");
    Ok(())
}
