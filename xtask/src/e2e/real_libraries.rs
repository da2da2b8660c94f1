//! Splitting the libraries of the corpus: real ones, from other people's compilers and linkers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::elflint::elflint;

use super::check::Checker;
use super::real::gpus;
use super::real::rig::{Rig, same_code};
use super::reference::Reference;
use super::runtime::Program;
use super::stub_libraries;
use super::table::Table;
use crate::corpus::Library;
use crate::process::{self, copy_tree};

/// The real runtimes load larger libraries for one GPU alone, since that takes seconds.
const LARGE: u64 = 500 << 20;

/// What packagers run on installed libraries: dh_strip, others' strip, RPM's find-debuginfo, and a longer run path
/// than the library has room for.
const TOOLS: [&[&str]; 5] = [
    &["strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"],
    &["llvm-strip-19"],
    &["eu-strip", "--remove-comment"],
    &["objcopy", "--strip-debug"],
    &["patchelf", "--set-rpath", LONG_RUN_PATH],
];

/// The directories that matter come first.
const LONG_RUN_PATH: &str = "$ORIGIN/../lib:$ORIGIN:/opt/a/directory/that/is/long/enough/to/need/\
room/that/the/string/table/does/not/have/and/then/some/more/of/it/to/be/quite/sure";

/// One library, unsplit and split.
struct Case<'a> {
    /// Path in the prefixes.
    file: PathBuf,
    fat: PathBuf,
    split: PathBuf,
    /// The linter's messages about the unsplit library.
    known: BTreeSet<String>,
    /// Real HIP runtimes.
    rigs: &'a [Rig],
    checker: Checker<'a>,
}

/// Splits `library` below `work` with the helper and loader of the prefix `kpack`, and checks the result
/// as it is, joined, and treated by tools.
///
/// # Errors
/// The unsplit library does not load.
pub(super) fn check(
    kpack: &Path,
    rigs: &[Rig],
    library: &Library,
    work: &Path,
    table: &mut Table,
) -> Result<()> {
    let name = library.name();
    let helper = &kpack.join("bin/kpack");
    process::step(&format!("Splitting {name} of {}", library.package));
    let _ = fs::remove_dir_all(work);
    let file = Path::new("lib").join(&name);
    let (fat, split) = (work.join("fat"), work.join("split"));
    for prefix in [&fat, &split] {
        fs::create_dir_all(prefix.join("lib"))?;
        fs::create_dir_all(prefix.join("bin"))?;
        fs::copy(&library.path, prefix.join(&file))
            .with_context(|| format!("copying {}", library.path.display()))?;
        build_loader(&prefix.join("bin/load"))?;
    }
    let runtime = stub_libraries::build(&library.path, &work.join("stubs"), kpack)?;
    for rig in rigs {
        stub_libraries::build_empty(&library.path, rig.directory())?;
    }
    let programs = [Program { executable: "bin/load".into(), libraries: vec![file.clone()] }];
    let scratch = work.join("scratch");
    let mut reference = Reference::default();
    let observation = runtime.run(&fat, &programs[0], "gfx90a", &scratch)?;
    reference.add(&observation)?;

    let case = Case {
        known: elflint(&fat.join(&file))?,
        rigs,
        file,
        fat,
        split,
        checker: Checker {
            runtime: &runtime,
            programs: &programs,
            reference: &reference,
            scratch: &scratch,
        },
    };
    let split = case.check_split(helper);
    let is_split = split.is_ok();
    table.add(name.clone(), split);
    if is_split {
        table.add(format!("{name}, joined"), case.check_joined(helper));
        for tool in TOOLS {
            table.add(format!("{name}, then {}", tool[0]), case.check_treated(tool));
        }
    }
    fs::remove_dir_all(work)?;
    Ok(())
}

impl Case<'_> {
    /// Joins the library for one GPU. Without archives, it must give the runtime what the unsplit one
    /// has.
    fn check_joined(&self, helper: &Path) -> Result<String> {
        let wrappers = &self.checker.reference.wrappers;
        let in_all = |target: &&str| wrappers.values().all(|code| code.contains_key(*target));
        let target = self.checker.reference.targets().into_iter().find(in_all);
        let target = target.context("no target is in all wrappers")?;
        let copy = self.split.with_file_name("joined");
        copy_tree(&self.split, &copy)?;
        let (file, fat) = (copy.join(&self.file), self.fat.join(&self.file));
        process::run!(
            "{helper} join --quiet --prefix {copy} --arch {target} --against {fat} {file}"
        )?;
        nothing_new(&file, &elflint(&file)?, &self.known)?;
        fs::remove_dir_all(copy.join("lib/.kpack"))?;
        let Checker { runtime, programs, scratch, .. } = self.checker;
        let observation = runtime.run(&copy, &programs[0], target, scratch)?;
        let mut joined = Reference::default();
        joined.add(&observation)?;
        ensure!(joined.programs == self.checker.reference.programs);
        ensure!(joined.wrappers.keys().eq(wrappers.keys()));
        for (wrapper, code) in &joined.wrappers {
            let expected = wrappers[wrapper].get(target);
            ensure!(
                code.len() == 1 && code.get(target) == expected,
                "wrapper {wrapper:?} has other code for {target}"
            );
        }
        let isa = &gpus::isa(target);
        for rig in self.rigs {
            // A runtime may know no such GPU.
            let (found, expected) = (rig.all_for(&file, &[isa])?, rig.all_for(&fat, &[isa])?);
            ensure!(
                found == expected,
                "{} takes {found:?}, and {expected:?} from the unsplit library",
                rig.name
            );
        }
        fs::remove_dir_all(&copy)?;
        let count = joined.wrappers.len();
        Ok(format!(
            "{count} code objects for {target}, without archives, lint; {} real runtimes",
            self.rigs.len()
        ))
    }

    fn check_split(&self, helper: &Path) -> Result<String> {
        let (prefix, binary) = (&self.split, &self.file);
        process::run!("{helper} install --prefix {prefix} --module corpus {binary}")?;
        let file = self.split.join(&self.file);
        let fat = self.fat.join(&self.file);
        process::run!("{helper} verify {file} --against {fat}")?;
        nothing_new(&file, &elflint(&file)?, &self.known)?;
        let counts = self.checker.check(&self.split)?;
        let mut targets = Vec::from_iter(self.checker.reference.targets());
        if fs::metadata(&fat)?.len() > LARGE {
            targets.truncate(1);
        }
        let real = same_code(self.rigs, &fat, &file, &targets, true)?;
        Ok(format!("{counts}, verified against the original, lint; {real} by real runtimes"))
    }

    fn check_treated(&self, command: &[&str]) -> Result<String> {
        let copy = self.split.with_file_name("treated");
        copy_tree(&self.split, &copy)?;
        let file = copy.join(&self.file);
        let treat = |file: &Path| process::run!("env {command...} {file}");
        treat(&file)?;
        let messages = elflint(&file)?;
        if !messages.is_subset(&self.known) {
            // The split is not to blame for what the tool does to the unsplit library. The library is
            // large, so look only after a failure.
            let fat = self.split.with_file_name("treated-fat");
            copy_tree(&self.fat, &fat)?;
            treat(&fat.join(&self.file))?;
            let mut known = elflint(&fat.join(&self.file))?;
            fs::remove_dir_all(&fat)?;
            known.extend(self.known.iter().cloned());
            nothing_new(&file, &messages, &known)?;
        }
        // One GPU is enough to see that the marker is found; its archives were checked before.
        let targets = self.checker.reference.targets();
        let target = targets.first().context("a library has device code")?;
        let loaded = self.checker.observe(&copy, target)?;
        fs::remove_dir_all(&copy)?;
        Ok(format!("loads, {loaded} code objects for {target}, lint"))
    }
}

/// # Errors
/// The linter's messages in `found` that are not in `known`.
fn nothing_new(file: &Path, found: &BTreeSet<String>, known: &BTreeSet<String>) -> Result<()> {
    let new: Vec<&String> = found.difference(known).collect();
    let file = file.display();
    ensure!(new.is_empty(), "eu-elflint says of {file}, and not of the unsplit file: {new:#?}");
    Ok(())
}

/// Builds a program that loads the libraries that it is given.
pub(crate) fn build_loader(output: &Path) -> Result<()> {
    let source = crate::repository::root().join("tests/e2e/load.c");
    process::run!("cc -O2 -o {output} {source} -ldl")?;
    Ok(())
}
