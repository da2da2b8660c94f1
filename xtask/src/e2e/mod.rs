//! `cargo xtask e2e`: runs everything on a real project, and compares the result of each step with
//! the unsplit build.

mod artifacts;
mod bundle_reader;
mod check;
mod embedded;
mod examples;
mod hip_project;
mod lint;
pub(crate) mod packages;
mod project;
mod readme;
pub(crate) mod real;
mod real_libraries;
mod reference;
mod runtime;
mod stub_libraries;
mod table;
mod treatment;
pub(crate) mod wheels;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use walkdir::WalkDir;

use crate::process::NotRun;
use crate::{bootstrap, corpus, dist, process, repository};
use check::{Checker, Counts};
use hip_project::HipTools;
use project::{MODULE, Project};
use real::rig::{Rig, same_code};
use runtime::Runtime;
use table::Table;
use treatment::{Treatment, copy_tree, debugger_finds};

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
        bootstrap::install_missing()?;
    }
    let tools = &HipTools::find().map_err(|error| NotRun(format!("{error:#}; try --bootstrap")))?;
    let work = repository::empty_directory("e2e")?;

    let built = dist::Built::new()?;
    let kpack = work.join("kpack");
    dist::fill(&kpack, Path::new("lib"), &built)?;
    let helper = kpack.join("bin/kpack");
    let runtime = Runtime::build(&work.join("hip"), &kpack)?;
    let project = tools.build(&runtime, &kpack, &work)?;

    let mut table = Table::default();
    let rigs = Rig::both(&kpack, &work);
    let run = Run {
        project: &project,
        work: &work,
        checker: Checker {
            runtime: &runtime,
            helper: &helper,
            programs: &project.programs,
            reference: &project.reference,
            scratch: &work.join("scratch"),
        },
    };
    run.split_as_built(&mut table);
    process::step("Loading what the project installed with the real HIP runtime");
    let what = "the project in the real HIP runtime";
    let rigs = match rigs {
        Ok(rigs) => {
            table.add(what, run.in_real_runtime(&rigs));
            Vec::from(rigs)
        }
        Err(error) => {
            table.add(what, Err(error));
            Vec::new()
        }
    };
    run.strip_by_cmake(tools, &mut table);
    process::step("Checking the README's CMake example");
    table.add(
        "the README's CMake example",
        readme::check(tools, &runtime, &kpack, &work.join("readme")),
    );
    for treatment in Treatment::ALL {
        run.treated_after(treatment, &mut table);
        run.treated_before(treatment, &mut table);
    }
    artifacts::check(&runtime, &helper, &work.join("artifacts"), &mut table);
    run.split_at_compile(tools, &kpack, &mut table);
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

/// The directory of the archives in a prefix.
const KPACKS: &str = "lib/.kpack";

/// State shared by all checks.
struct Run<'a> {
    project: &'a Project,
    work: &'a Path,
    checker: Checker<'a>,
}

impl Run<'_> {
    /// Checks what the project's own build installed: it works, a second run changes nothing, and
    /// `kpack install` alone makes the same files.
    fn split_as_built(&self, table: &mut Table) {
        process::step("Checking what kpack_install installed");
        table.add(
            "split by kpack_install",
            self.check_all(&self.project.split, &self.project.fat, None),
        );
        table.add("split again", self.idempotent());
        table.add("split by kpack install", self.same_by_helper());
    }

    /// All device code of each library, with and without markers.
    fn in_real_runtime(&self, rigs: &[Rig]) -> Result<String> {
        let Project {
            fat,
            split,
            reference,
            ..
        } = self.project;
        let mut count = 0;
        for binary in reference.binaries() {
            // Programs cannot be loaded as libraries, and AddressSanitizer needs a program of its own.
            if !binary.starts_with("lib") || binary.to_string_lossy().contains("asan") {
                continue;
            }
            let wrappers = reference
                .wrappers
                .iter()
                .filter(|((file, _), _)| file == binary);
            let targets: BTreeSet<&str> = wrappers
                .flat_map(|(_, code)| code.keys().map(String::as_str))
                .collect();
            let targets = Vec::from_iter(targets);
            count += same_code(
                rigs,
                &fat.join(binary),
                &split.join(binary),
                &targets,
                false,
            )
            .with_context(|| binary.display().to_string())?;
        }
        Ok(format!(
            "{count} code objects, the same from unsplit and split libraries"
        ))
    }

    /// `cmake --install --strip`, which strips before the split.
    fn strip_by_cmake(&self, tools: &HipTools, table: &mut Table) {
        process::step("Checking cmake --install --strip");
        let prefix = self.work.join("cmake-strip");
        let outcome = tools
            .install(self.work, &prefix, &["--strip"])
            .and_then(|()| Ok(counted(self.checker.check(&prefix)?)));
        table.add("cmake --install --strip", outcome);
    }

    /// `SPLIT_AT compile` must give the same archives, byte for byte, and programs with the same
    /// behaviour.
    fn split_at_compile(&self, tools: &HipTools, kpack: &Path, table: &mut Table) {
        process::step("Splitting the objects as they are compiled, and installing that");
        let prefix = self.work.join("split-at-compile");
        let runtime = self.checker.runtime;
        let outcome = tools
            .build_split_at_compile(runtime, kpack, self.work, &prefix)
            .and_then(|()| {
                let (linked, objects) = (self.project.split.join(KPACKS), prefix.join(KPACKS));
                process::run!("diff -r {linked} {objects}")?;
                Ok(counted(self.checker.check(&prefix)?))
            });
        table.add("objects split as they are compiled", outcome);
    }

    fn treated_after(&self, treatment: Treatment, table: &mut Table) {
        let name = treatment.name();
        process::step(&format!("Checking {name} after the split"));
        let outcome = self
            .treated_copy(&self.project.split, treatment, "after")
            .and_then(|split| {
                let fat = self.treated_copy(&self.project.fat, treatment, "fat")?;
                let mut held = counted(self.checker.check(&split)?);
                held += &self.lint(&split, &[&fat, &self.project.fat])?;
                held += &self.debugger(treatment, &split)?;
                Ok(held)
            });
        table.add(format!("split, then {name}"), outcome);
    }

    fn treated_before(&self, treatment: Treatment, table: &mut Table) {
        let name = treatment.name();
        process::step(&format!("Checking {name} before the split"));
        let outcome = self
            .treated_copy(&self.project.fat, treatment, "fat")
            .and_then(|fat| {
                let split = self.work.join("before");
                copy_tree(&fat, &split)?;
                self.install(&split)?;
                self.check_all(&split, &fat, Some(treatment))
            });
        table.add(format!("{name}, then split"), outcome);
    }

    /// Runs the programs, verifies the binaries against the unsplit ones, lints them, and asks the debugger.
    fn check_all(&self, split: &Path, fat: &Path, treatment: Option<Treatment>) -> Result<String> {
        let mut held = counted(self.checker.check(split)?);
        for binary in self.project.reference.binaries() {
            self.checker
                .verify(&split.join(binary), &fat.join(binary))?;
        }
        held += ", verified against the original";
        held += &self.lint(split, &[fat])?;
        if let Some(treatment) = treatment {
            held += &self.debugger(treatment, split)?;
        }
        Ok(held)
    }

    fn lint(&self, split: &Path, fat: &[&Path]) -> Result<String> {
        for binary in self.project.reference.binaries() {
            let mut known = lint::Messages::new();
            for fat in fat {
                known.extend(lint::lint(&fat.join(binary))?);
            }
            let file = split.join(binary);
            lint::nothing_new(&file, &lint::lint(&file)?, &known)?;
        }
        Ok(", lint".to_owned())
    }

    fn debugger(&self, treatment: Treatment, prefix: &Path) -> Result<String> {
        if !treatment.separates_debug_information() {
            return Ok(String::new());
        }
        let (binary, function) = &self.project.debugged;
        debugger_finds(&prefix.join(binary), function)?;
        Ok(", debug file found by gdb".to_owned())
    }

    /// Copies `prefix` and applies `treatment` to every binary with device code.
    fn treated_copy(&self, prefix: &Path, treatment: Treatment, name: &str) -> Result<PathBuf> {
        let copy = self.work.join(format!("treated-{name}"));
        copy_tree(prefix, &copy)?;
        for binary in self.project.reference.binaries() {
            treatment.apply(&copy.join(binary))?;
        }
        Ok(copy)
    }

    /// Runs `kpack install` for every binary of `prefix`.
    fn install(&self, prefix: &Path) -> Result<()> {
        let files = self.project.reference.binaries();
        install(self.checker.helper, prefix, files)
    }

    fn idempotent(&self) -> Result<String> {
        let before = contents(&self.project.split)?;
        self.install(&self.project.split)?;
        same_files(&before, &contents(&self.project.split)?)?;
        Ok(format!("{} files unchanged", before.len()))
    }

    fn same_by_helper(&self) -> Result<String> {
        let prefix = self.work.join("by-helper");
        copy_tree(&self.project.fat, &prefix)?;
        self.install(&prefix)?;
        let files = contents(&prefix)?;
        same_files(&contents(&self.project.split)?, &files)?;
        Ok(format!("{} files, the same bytes", files.len()))
    }
}

/// Runs `kpack install` for files of a prefix.
fn install<'a>(
    helper: &Path,
    prefix: &Path,
    files: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let files: Vec<&Path> = files.into_iter().collect();
    process::run!("{helper} install --prefix {prefix} --module {MODULE} {files...}")?;
    Ok(())
}

fn counted(counts: Counts) -> String {
    format!(
        "{} programs ran, {} wrappers, {} code objects loaded",
        counts.programs, counts.wrappers, counts.code_objects
    )
}

/// The content of every regular file of a tree, by path.
fn contents(prefix: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in WalkDir::new(prefix) {
        let entry = entry?;
        if entry.file_type().is_file() {
            let path = entry.path();
            files.insert(path.strip_prefix(prefix)?.to_owned(), fs::read(path)?);
        }
    }
    Ok(files)
}

fn same_files(
    expected: &BTreeMap<PathBuf, Vec<u8>>,
    found: &BTreeMap<PathBuf, Vec<u8>>,
) -> Result<()> {
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    ensure!(
        expected.len() == found.len() && expected.keys().eq(found.keys()),
        "expected the files {:?}, found {:?}",
        names(expected),
        names(found)
    );
    for (path, bytes) in expected {
        ensure!(found[path] == *bytes, "{} differs", path.display());
    }
    Ok(())
}
