//! `cargo xtask wheels`: splits Python wheels with device code, shows the results to other people's tools,
//! installs them with pip and uv, and loads the device code from where these put it.

mod environment;
mod project;
mod published;

use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::Args;

pub(crate) use self::environment::Tools;
use self::environment::Wheels;
use super::real_libraries;
use super::table::Table;
use crate::build::Profile;
use crate::{corpus, dist, process, repository};

/// Options of `cargo xtask wheels`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Also split a wheel with a file of more than 4 GiB.
    #[arg(long)]
    large: bool,
}

/// Wheels of the Python package index, without dependencies on other packages.
const PUBLISHED: [&str; 4] = ["torch-scatter-rocm", "pyg-lib-rocm", "cyllama-rocm", "bitsandbytes"];

/// Runs everything and prints a table of the checks.
///
/// # Errors
/// A check failed, or the package index does not answer.
pub(crate) fn run(options: &Options) -> Result<()> {
    let work = repository::empty_directory("wheels")?;
    let kpack = work.join("kpack");
    dist::fill(&kpack, Path::new("lib"), &dist::Built::new(Profile::Release)?)?;
    // Links from uv's cache must stay in one file system.
    let tools = Tools::install(work.join("tools"))?;
    let wheels = Wheels { kpack: &kpack, tools: &tools, load: work.join("load") };
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
