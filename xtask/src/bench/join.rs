//! What joining costs, against copying the joined file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use xshell::cmd;

use super::{compare, largest, measure};
use crate::{process, repository};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Join {
    /// How often to run each of the two, alternately.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Measures.
///
/// # Errors
/// A command fails, or the corpus cannot be fetched.
pub(super) fn run(options: &Join) -> Result<()> {
    let library = largest()?;
    let helper = repository::build_helper()?;
    let work = repository::target_directory().join("bench-join");
    let _ = fs::remove_dir_all(&work);
    let prefix = work.join("prefix");
    fs::create_dir_all(prefix.join("lib"))?;
    let file = Path::new("lib").join(library.name());
    let split = prefix.join(&file);
    fs::copy(&library.path, &split).with_context(|| split.display().to_string())?;
    cmd!(
        process::shell(),
        "{helper} install --quiet --module rocsparse --prefix {prefix} {file}"
    )
    .run()?;

    process::step(&format!(
        "kpack join of {} for gfx1030, and cp of what it writes, {} rounds",
        library.name(),
        options.rounds
    ));
    let (joined, copy) = (work.join("joined"), work.join("copy"));
    let (mut join, mut copied) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let _ = fs::remove_file(&joined);
        let mut command = Command::new(&helper);
        command.args(["join", "--quiet", "--arch", "gfx1030", "--prefix"]);
        command.arg(&prefix).arg("--output").arg(&joined).arg(&file);
        join.push(measure(&mut command)?);

        // Both make it durable.
        let _ = fs::remove_file(&copy);
        let mut command = Command::new("sh");
        let script = "cp --reflink=never --sparse=never \"$0\" \"$1\" && sync \"$1\"";
        command.args(["-c", script]).arg(&joined).arg(&copy);
        copied.push(measure(&mut command)?);
    }
    let _ = fs::remove_dir_all(&work);

    compare(("cp and sync", &mut copied), ("kpack join", &mut join), 1.5);
    Ok(())
}
