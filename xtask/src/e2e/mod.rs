//! `cargo xtask e2e`: splits a real HIP project, the examples and, with `--corpus`, other people's libraries, and
//! compares what programs and HIP runtimes get with the unsplit build.

mod check;
pub(crate) mod code_object;
mod examples;
mod hip_project;
pub(crate) mod packages;
mod readme;
pub(crate) mod real;
pub(crate) mod real_libraries;
mod reference;
pub(crate) mod runtime;
mod stub_libraries;
mod table;
mod therock;
pub(crate) mod wheels;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;

use crate::build::Profile;
use crate::process::NotRun;
use crate::{bootstrap, corpus, dist, process, repository};
use check::Checker;
use hip_project::{HipTools, Project};
use real::rig::{Rig, same_code};
use runtime::Runtime;
use table::Table;

/// Options of `cargo xtask e2e`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// First install the tools that are missing, with apt-get (as root, or through sudo).
    #[arg(long)]
    bootstrap: bool,
    /// Also split and verify the real libraries of `cargo xtask corpus`.
    #[arg(long)]
    corpus: bool,
}

/// Runs everything and prints a table of the checks.
///
/// # Errors
/// A check failed.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.bootstrap {
        let corpus = options.corpus.then_some(bootstrap::Needs::Corpus);
        let needs = Vec::from_iter([bootstrap::Needs::E2e].into_iter().chain(corpus));
        bootstrap::install_missing(&needs, false)?;
    }
    let tools = &HipTools::find().map_err(|error| NotRun(format!("{error:#}; try --bootstrap")))?;
    let work = repository::empty_directory("e2e")?;

    let built = dist::Built::new(Profile::Release)?;
    let kpack = work.join("kpack");
    dist::fill(&kpack, Path::new("lib"), &built)?;
    let helper = kpack.join("bin/kpack");
    let runtime = Runtime::build(&work.join("hip"), &kpack)?;
    let project = tools.build(&runtime, &kpack, &work)?;

    let mut table = Table::default();
    process::step("Checking what kpack_install installed");
    table.add("split by kpack_install", project.check(&runtime, &helper, &work));
    process::step("Loading what the project installed with the real HIP runtime");
    let rigs = Rig::both(&kpack, &work).map(|rigs| {
        let loaded = project.in_real_runtime(&rigs);
        table.add("the project in the real HIP runtime", loaded);
        Vec::from(rigs)
    });
    let rigs = rigs.unwrap_or_else(|error| {
        table.add("the real HIP runtime", Err(error));
        Vec::new()
    });
    process::step("Splitting the project as TheRock does it");
    let flow = therock::check(tools, &project, &runtime, &kpack, &work.join("therock"));
    table.add("TheRock's flow", flow);
    let examples = work.join("examples");
    fs::create_dir_all(&examples)?;
    examples::check(tools, &runtime, &kpack, &examples, &mut table);
    if options.corpus {
        for library in corpus::libraries()? {
            let work = work.join("corpus");
            let checked = real_libraries::check(&kpack, &rigs, &library, &work, &mut table);
            if let Err(error) = checked {
                table.add(library.name(), Err(error));
            }
        }
    }
    table.finish()
}

impl Project {
    /// Runs the programs, and verifies the binaries against the unsplit ones.
    fn check(&self, runtime: &Runtime, helper: &Path, work: &Path) -> Result<String> {
        let checker = Checker {
            runtime,
            programs: &self.programs,
            reference: &self.reference,
            scratch: &work.join("scratch"),
        };
        let held = checker.check(&self.split)?;
        for binary in self.reference.binaries() {
            let (split, fat) = (self.split.join(binary), self.fat.join(binary));
            process::run!("{helper} verify {split} --against {fat}")?;
        }
        Ok(format!("{held}, verified against the original"))
    }

    /// All device code of each library, with and without markers.
    fn in_real_runtime(&self, rigs: &[Rig]) -> Result<String> {
        let mut count = 0;
        for binary in self.reference.binaries() {
            // Programs cannot be loaded as libraries, and AddressSanitizer needs a program compiled for it.
            if !binary.starts_with("lib") || binary.to_string_lossy().contains("asan") {
                continue;
            }
            let wrappers = self.reference.wrappers.iter();
            let wrappers = wrappers.filter(|((file, _), _)| file == binary);
            let targets = wrappers.flat_map(|(_, code)| code.keys().map(String::as_str));
            let targets = Vec::from_iter(BTreeSet::from_iter(targets));
            let [fat, split] = [&self.fat, &self.split].map(|prefix| prefix.join(binary));
            count += same_code(rigs, &fat, &split, &targets, false)
                .with_context(|| binary.display().to_string())?;
        }
        Ok(format!("{count} code objects, the same from unsplit and split libraries"))
    }
}
