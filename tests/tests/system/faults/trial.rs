//! One disturbed run: what it left, and what the next run makes of that.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use super::place::{Place, Snapshot, differences};
use super::scenario::{Promise, Scenario};

/// A command with its input, and what an undisturbed run makes of that.
pub(super) struct Trial<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) place: &'a Place,
    before: Snapshot,
    after: Snapshot,
}

/// What the program prints: the magic and the index of each of its wrappers, and what host code computed.
const FAT: &str = "FPIH 0\nFPIH 0\nhost 27\n";
const SPLIT: &str = "HIPK 0\nHIPK 1\nhost 27\n";

/// What is expected of a disturbed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// It ends at once, wherever it is.
    Killed,
    /// It does all the same, or fails with a message and removes what it made. What cannot be removed,
    /// because this is the fault, may stay.
    DoneOrFailed { leftovers: bool },
    /// It does all the same.
    Done,
    /// It ends somehow, even by an abort.
    Ended,
}

impl<'a> Trial<'a> {
    /// Runs the command undisturbed, and verifies the result.
    pub(super) fn new(scenario: &'a Scenario, place: &'a Place) -> Result<Self> {
        (scenario.prepare)(place)?;
        place.keep()?;
        let before = place.snapshot()?;
        place.kpack(scenario.arguments)?;
        let after = place.snapshot()?;
        ensure!(before != after, "the command changes nothing");
        place.kpack(scenario.verify)?;
        let trial = Self { scenario, place, before, after };
        trial.check_promise()?;
        Ok(trial)
    }

    /// Restores the input, runs a command that disturbs kpack, and checks what it left.
    pub(super) fn run(&self, command: &mut Command, expected: Expected) -> Result<Output> {
        self.place.restore()?;
        self.run_here(command, expected)
    }

    /// The same, where the input is restored already.
    pub(super) fn run_here(&self, command: &mut Command, expected: Expected) -> Result<Output> {
        let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        self.check(&output, &said, expected)
            .with_context(|| format!("{}; it printed:\n{said}", output.status))?;
        Ok(output)
    }

    /// Runs the command again, which must do all that is left.
    pub(super) fn rerun(&self) -> Result<()> {
        self.place.kpack(self.scenario.arguments)?;
        self.check_done().context("the next run ends differently")
    }

    fn check(&self, output: &Output, said: &str, expected: Expected) -> Result<()> {
        self.check_promise()?;
        match (expected, output.status.code()) {
            (Expected::Killed, _) => {
                let signal = output.status.signal();
                ensure!(signal == Some(9), "it was not killed");
            }
            (Expected::Ended, _) => {}
            (Expected::DoneOrFailed { leftovers: true }, Some(0)) => {}
            (Expected::Done | Expected::DoneOrFailed { .. }, Some(0)) => self.check_done()?,
            (Expected::DoneOrFailed { leftovers }, Some(4)) => {
                ensure!(self.names_a_file(said), "the message names no file");
                ensure!(
                    leftovers || self.leftovers()?.is_empty(),
                    "leftovers: {:?}",
                    self.leftovers()?
                );
            }
            _ => anyhow::bail!("unexpected exit code"),
        }
        Ok(())
    }

    /// Whether a message has a path of the tree, or says that it is about standard output.
    fn names_a_file(&self, said: &str) -> bool {
        let mut paths = BTreeSet::from([self.place.root(), Path::new("standard output")]);
        paths.extend(self.before.keys().chain(self.after.keys()).map(PathBuf::as_path));
        let lines = said.lines().filter(|line| line.starts_with("kpack: error: "));
        let mut texts = lines.map(|line| line.trim_start_matches("kpack: error: "));
        texts.any(|text| paths.iter().any(|path| text.contains(&*path.to_string_lossy())))
    }

    /// What is neither of the input nor of the result.
    fn leftovers(&self) -> Result<Vec<PathBuf>> {
        let now = self.place.snapshot()?;
        let known =
            |path: &&PathBuf| !self.before.contains_key(*path) && !self.after.contains_key(*path);
        Ok(now.keys().filter(known).cloned().collect())
    }

    fn check_done(&self) -> Result<()> {
        let now = self.place.snapshot()?;
        let differences = differences(&now, &self.after);
        ensure!(differences.is_empty(), "differs from an undisturbed run: {differences:?}");
        Ok(())
    }

    /// Checks what holds at any moment.
    fn check_promise(&self) -> Result<()> {
        let now = self.place.snapshot()?;
        let directory = self.scenario.directory();
        let input = |snapshot: &Snapshot| {
            let outside = snapshot.iter().filter(|(path, _)| !path.starts_with(directory));
            // Beside a directory that is replaced as a whole there is its hidden replacement.
            let named = outside.filter(|(path, _)| self.before.contains_key(*path));
            named.map(|(path, entry)| (path.clone(), entry.clone())).collect::<Snapshot>()
        };
        ensure!(input(&now) == input(&self.before), "the input has changed");
        match self.scenario.promise {
            Promise::Binaries { binaries, targets } => binaries.iter().try_for_each(|binary| {
                self.check_binary(binary, targets).with_context(|| binary.to_string())
            }),
            Promise::Units { depth, last, may_be_missing, .. } => {
                self.check_units(&now, depth, last, may_be_missing)
            }
        }
    }

    /// Starts a binary, and compares its device code with the original's.
    fn check_binary(&self, binary: &str, targets: &[&str]) -> Result<()> {
        let path = self.place.path("prefix").join(binary);
        let original = self.place.path("original").join(binary);
        let shown = path.to_str().context("the path is UTF-8")?;
        // Wine takes a second to start, and is more lenient than what verifies the headers.
        if !binary.ends_with(".dll") {
            self.start(binary, shown)?;
        }
        if fs::read(&path)? == fs::read(&original)? {
            return Ok(());
        }
        let targets: String = targets.iter().map(|t| format!(" --arch {t}")).collect();
        self.place
            .kpack(&format!("verify --quiet prefix/{binary} --against original/{binary}{targets}"))
    }

    /// Starts a program, or loads a library.
    fn start(&self, binary: &str, path: &str) -> Result<()> {
        let is_program = binary.starts_with("bin/");
        let how = if is_program { "exec \"$0\"" } else { "LD_PRELOAD=$0 exec /bin/true" };
        let printed = self.place.run("sh", &["-c", &format!("LD_BIND_NOW=1 {how} 2>&1"), path])?;
        let expected = if is_program { &[FAT, SPLIT][..] } else { &[""] };
        ensure!(expected.contains(&&*printed), "{binary} prints {printed:?}");
        Ok(())
    }

    fn check_units(
        &self,
        now: &Snapshot,
        depth: usize,
        last: &[&str],
        may_be_missing: bool,
    ) -> Result<()> {
        let [before, now, after] =
            [&self.before, now, &self.after].map(|snapshot| self.units(snapshot, depth));
        for (unit, content) in &now {
            let known = [before.get(unit), after.get(unit)];
            // Hidden directories and files are those of the run.
            let is_known = known.iter().any(Option::is_some);
            ensure!(
                !is_known || known.contains(&Some(content)),
                "{} is neither old nor new",
                unit.display()
            );
        }
        if !may_be_missing {
            for unit in before.keys().filter(|unit| after.contains_key(*unit)) {
                ensure!(now.contains_key(unit), "{} is missing", unit.display());
            }
        }
        let is_new = |unit: &&&str| {
            let unit = Path::new(unit);
            now.get(unit).is_some_and(|content| before.get(unit) != Some(content))
        };
        if let Some(unit) = last.iter().find(is_new) {
            let others = after
                .iter()
                .filter(|(other, _)| !last.iter().any(|last| Path::new(last) == *other));
            for (other, content) in others {
                ensure!(
                    now.get(other) == Some(content),
                    "{unit} is new, but {} is not",
                    other.display()
                );
            }
        }
        Ok(())
    }

    /// The files of each unit, and the mode of each directory in it.
    fn units(
        &self,
        snapshot: &Snapshot,
        depth: usize,
    ) -> std::collections::BTreeMap<PathBuf, Snapshot> {
        let mut units = std::collections::BTreeMap::<PathBuf, Snapshot>::new();
        for (path, entry) in snapshot {
            let Ok(within) = path.strip_prefix(self.scenario.directory()) else {
                continue;
            };
            let is_directory = entry.0 & 0o170_000 == 0o040_000;
            if within.components().count() < depth.min(1) || (depth == usize::MAX && is_directory) {
                continue;
            }
            let unit: PathBuf = within.components().take(depth).collect();
            units.entry(unit).or_default().insert(within.to_owned(), entry.clone());
        }
        units
    }
}
