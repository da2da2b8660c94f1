//! Splits Python wheels with device code, shows the results to other people's tools, installs them with pip and uv, and
//! loads the device code from where these put it.

mod environment;
mod project;
mod published;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow};
use kpack_tests::python::Tools;
use kpack_tests::require;

use crate::hip::runtime::build_load;
use crate::support::{prefix, run, work};

/// The tools for wheels, in an environment of their own. Links from uv's cache must stay in its file system.
static TOOLS: LazyLock<Result<Tools>> = LazyLock::new(|| Tools::install(work("wheel-tools")));

fn has_tools() -> bool {
    require::tools(&["python3", "pip3"])
        && require::fetched(TOOLS.as_ref().map_err(|error| anyhow!("{error:#}"))).is_some()
}

fn tools() -> &'static Tools {
    TOOLS.as_ref().expect("they are there, or the test would have ended")
}

/// A program that loads libraries.
fn load() -> &'static Path {
    static LOAD: LazyLock<PathBuf> = LazyLock::new(|| {
        let load = work("load").join("load");
        build_load(&load).unwrap_or_else(|error| panic!("{error:#}"));
        load
    });
    &LOAD
}

/// Splits wheels, and verifies the results against each.
fn split(fat: &[&Path], output: &Path) -> Result<()> {
    let kpack = prefix().join("bin/kpack");
    run!("{kpack} wheel split {fat...} --output-dir {output}")?;
    for fat in fat {
        let split = files(output)?;
        run!("{kpack} wheel verify {split...} --against {fat}")?;
    }
    Ok(())
}

/// The files of a directory, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
