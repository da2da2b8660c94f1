//! `cargo xtask wheels`: splits Python wheels with device code, shows the results to other people's tools,
//! installs them with pip and uv, and loads the device code from where these put it.

mod environment;
mod project;
mod published;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

pub(crate) use self::environment::Tools;
use super::real_libraries;
use super::table::Table;
use crate::{corpus, dist, process, python, repository};

/// Options of `cargo xtask wheels`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Also split a wheel with a file of more than 4 GiB.
    #[arg(long)]
    large: bool,
}

/// Wheels of the Python package index, without dependencies on other packages.
const PUBLISHED: [&str; 4] = [
    "torch-scatter-rocm",
    "pyg-lib-rocm",
    "cyllama-rocm",
    "bitsandbytes",
];

/// Runs everything and prints a table of the checks.
///
/// # Errors
/// A check failed, or the package index does not answer.
pub(crate) fn run(options: &Options) -> Result<()> {
    let work = repository::empty_directory("wheels")?;
    let kpack = work.join("kpack");
    dist::fill(&kpack, Path::new("lib"), &dist::Built::new()?)?;
    // Links from uv's cache must stay in one file system.
    let tools = Tools::install(work.join("tools"))?;
    let wheels = Wheels {
        kpack: &kpack,
        tools: &tools,
        load: work.join("load"),
    };
    real_libraries::build_loader(&wheels.load)?;

    let mut table = Table::default();
    for package in PUBLISHED {
        published(&wheels, package, &work, &mut table)?;
    }
    project::check(&wheels, &work.join("vec"), options.large, &mut table)?;
    table.finish()
}

fn published(wheels: &Wheels<'_>, package: &str, work: &Path, table: &mut Table) -> Result<()> {
    process::step(&format!("Splitting the wheel of {package}"));
    let file = corpus::wheel(package)?;
    let work = work.join(package);
    if let Err(error) = published::check(wheels, package, &file, &work, table) {
        table.add(package, Err(error));
    }
    // Each unpacks to hundreds of megabytes.
    fs::remove_dir_all(work)?;
    Ok(())
}

/// What all checks use.
struct Wheels<'a> {
    /// The prefix with the helper and the loader.
    kpack: &'a Path,
    tools: &'a Tools,
    /// A program that loads libraries.
    load: PathBuf,
}

impl Wheels<'_> {
    /// Splits wheels, and verifies the results against each.
    fn split(&self, fat: &[&Path], output: &Path) -> Result<()> {
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} wheel split {fat...} --output-dir {output}")?;
        for fat in fat {
            let split = repository::files(output)?;
            process::run!("{helper} wheel verify {split...} --against {fat}")?;
        }
        Ok(())
    }

    fn unpack(&self, wheel: &Path, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        python::unpack(wheel, directory)
    }
}

fn name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
