//! Splits the libraries of the corpus: real ones, from other people's compilers and linkers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::corpus::{self, Library};
use kpack_tests::elflint::elflint;
use kpack_tests::require::{self, checked, fetched};

use crate::hip::check::Checker;
use crate::hip::reference::Reference;
use crate::hip::runtime::{Program, build_load};
use crate::hip::stub_libraries;
use crate::real::gpus;
use crate::real::rig::{Rig, rocm, same_code};
use crate::real::trimmed;
use crate::support::{self, prefix, run, work};

#[test]
#[ignore = "needs elfutils, LLVM and patchelf, and fetches 120 MB"]
fn rocrand() -> Result<()> {
    check("librocrand1")
}

#[test]
#[ignore = "needs elfutils, LLVM and patchelf, and fetches a library of 1.3 GB"]
fn rocsparse() -> Result<()> {
    check(corpus::LARGEST)
}

#[test]
#[ignore = "needs elfutils, LLVM and patchelf, and fetches a wheel of 60 MB"]
fn bitsandbytes() -> Result<()> {
    check("bitsandbytes")
}

fn check(package: &str) -> Result<()> {
    if !require::tools(&["eu-elflint", "eu-strip", "llvm-strip-19", "patchelf"]) {
        return Ok(());
    }
    let Some((libraries, rigs)) = fetched(corpus::package(package)).zip(rocm()) else {
        return Ok(());
    };
    for library in &libraries {
        check_library(library, rigs).with_context(|| library.name())?;
    }
    Ok(())
}

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

/// The tools for a library of this size. Treating a large one takes minutes, so only the last two do, which move most.
fn tools(size: u64) -> &'static [&'static [&'static str]] {
    if size > LARGE { &TOOLS[3..] } else { &TOOLS }
}

/// The directories that matter come first.
const LONG_RUN_PATH: &str = "$ORIGIN/../lib:$ORIGIN:/opt/a/directory/that/is/long/enough/to/need/\
room/that/the/string/table/does/not/have/and/then/some/more/of/it/to/be/quite/sure";

/// A GPU without code in most libraries.
const ABSENT: &str = "gfx1010";

/// Whether one of the targets is of this processor.
fn has_processor(targets: &[&str], processor: &str) -> bool {
    targets.iter().any(|target| target.split(':').next() == Some(processor))
}

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

/// Splits a library, and checks the result as it is, joined, and treated by tools.
fn check_library(library: &Library, rigs: &[Rig]) -> Result<()> {
    let name = library.name();
    let work = work(&format!("corpus-{name}"));
    let file = Path::new("lib").join(&name);
    let (fat, split) = (work.join("fat"), work.join("split"));
    for prefix in [&fat, &split] {
        fs::create_dir_all(prefix.join("lib"))?;
        fs::create_dir_all(prefix.join("bin"))?;
        fs::copy(&library.path, prefix.join(&file))
            .with_context(|| format!("copying {}", library.path.display()))?;
        build_load(&prefix.join("bin/load"))?;
    }
    let runtime = stub_libraries::build(&library.path, &work.join("stubs"))?;
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
        checker: Checker { runtime: &runtime, programs: &programs, reference: &reference, scratch },
    };
    checked(&format!("{name}: {}", case.check_split()?));
    checked(&format!("{name}, joined: {}", case.check_joined().context("joined")?));
    for &tool in tools(fs::metadata(&library.path)?.len()) {
        let held = case.check_treated(tool).with_context(|| format!("then {}", tool[0]))?;
        checked(&format!("{name}, then {}: {held}", tool[0]));
    }
    checked(&format!("{name}, trimmed: {}", case.check_trimmed().context("trimmed")?));
    Ok(fs::remove_dir_all(work)?)
}

impl Case<'_> {
    /// Joins the library for one GPU. Without archives, it must give the runtime what the unsplit one
    /// has.
    fn check_joined(&self) -> Result<String> {
        let wrappers = &self.checker.reference.wrappers;
        let in_all = |target: &&str| wrappers.values().all(|code| code.contains_key(*target));
        let target = self.checker.reference.targets().into_iter().find(in_all);
        let target = target.context("no target is in all wrappers")?;
        let copy = self.split.with_file_name("joined");
        support::copy(&self.split, &copy);
        let (file, fat) = (copy.join(&self.file), self.fat.join(&self.file));
        let kpack = prefix().join("bin/kpack");
        run!("{kpack} join --quiet --prefix {copy} --arch {target} --against {fat} {file}")?;
        nothing_new(&file, &elflint(&file)?, &self.known)?;
        fs::remove_dir_all(copy.join("lib/.kpack"))?;
        let Checker { runtime, programs, scratch, .. } = &self.checker;
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

    /// Trims the library for one GPU and for two; then tools treat it.
    fn check_trimmed(&self) -> Result<String> {
        let targets = Vec::from_iter(self.checker.reference.targets());
        let generic = |target: &&&str| !target.contains("generic");
        let mut targets = Vec::from_iter(targets.iter().filter(generic).copied());
        // ROCm 7.14 ends for a gfx1010, which comes first in one library, before it loads code.
        targets.sort_by_key(|target| *target != "gfx1030");
        let is_absent = !has_processor(&targets, ABSENT);
        let removed = targets.pop().context("a library has device code")?;
        // Generic code would serve it as well.
        let all = self.checker.reference.targets();
        let has_generic = all.iter().any(|target| target.contains("generic"));
        let gone = (is_absent && !has_generic).then_some([removed, ABSENT]);
        let fat = self.fat.join(&self.file);
        // A set of two begins with each of them alone.
        let size = fs::metadata(&fat)?.len();
        let (rigs, counts) =
            if size > LARGE { (&self.rigs[..1], &[2][..]) } else { (self.rigs, &[1, 2][..]) };
        let mut count = 0;
        let copy = self.fat.with_file_name("trimmed");
        let file = copy.join(&self.file);
        for chosen in counts {
            let chosen = targets.get(..*chosen).context("the library has code for few GPUs")?;
            let _ = fs::remove_dir_all(&copy);
            support::copy(&self.fat, &copy);
            trimmed::trim(&file, chosen)?;
            nothing_new(&file, &elflint(&file)?, &self.known)?;
            for rig in rigs {
                count += trimmed::same(rig, &fat, &file, chosen, gone)?;
            }
        }
        let original = fs::read(&file)?;
        let rig = self.rigs.first().context("a runtime")?;
        for &tool in tools(size) {
            run!("env {tool...} {file}")?;
            let found = rig.all(&file, targets[0])?;
            ensure!(found == rig.all(&fat, targets[0])?, "then {}: {found:?}", tool[0]);
            fs::write(&file, &original)?;
        }
        fs::remove_dir_all(&copy)?;
        Ok(format!("{count} code objects by {} real runtimes, lint", rigs.len()))
    }

    fn check_split(&self) -> Result<String> {
        let (kpack, prefix, binary) = (prefix().join("bin/kpack"), &self.split, &self.file);
        run!("{kpack} split --prefix {prefix} --module corpus {binary}")?;
        let file = self.split.join(&self.file);
        let fat = self.fat.join(&self.file);
        run!("{kpack} verify {file} --against {fat}")?;
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
        support::copy(&self.split, &copy);
        let file = copy.join(&self.file);
        let treat = |file: &Path| run!("env {command...} {file}");
        treat(&file)?;
        let messages = elflint(&file)?;
        if !messages.is_subset(&self.known) {
            // The split is not to blame for what the tool does to the unsplit library. The library is
            // large, so look only after a failure.
            let fat = self.split.with_file_name("treated-fat");
            support::copy(&self.fat, &fat);
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
