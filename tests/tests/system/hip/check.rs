//! Checks that a split prefix behaves like the unsplit one.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::reference::{Behaviour, Reference, Wrapper, indices};
use super::runtime::{Kind, Observation, Program, Runtime};

/// The inputs of the checks.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) programs: &'a [Program],
    pub(crate) reference: &'a Reference,
    /// A directory to write to.
    pub(crate) scratch: PathBuf,
}

/// Counts of checked items.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) programs: usize,
    pub(crate) wrappers: usize,
    pub(crate) code_objects: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, wrappers, code_objects } = self;
        write!(
            f,
            "{programs} programs ran, {wrappers} wrappers, {code_objects} code objects loaded"
        )
    }
}

/// More GPUs to run the programs on, by their ISAs: one with more features than any target, whose
/// best archive lacks kernels that the second best has; one with a generic ISA after its own; and one
/// that no code is for.
const AGENTS: [&str; 3] = ["gfx942:sramecc+:xnack-", "gfx1103,gfx11-generic", "gfx1036"];

impl Checker<'_> {
    /// Runs every program of `prefix` for a GPU of each target and for some others. They must
    /// behave like the unsplit ones, with all wrappers split, and load the same code objects.
    ///
    /// # Errors
    /// The first difference from the reference.
    pub(crate) fn check(&self, prefix: &Path) -> Result<Counts> {
        let mut counts = Counts {
            programs: self.programs.len(),
            wrappers: self.reference.wrappers.len(),
            code_objects: 0,
        };
        let targets = self.reference.targets();
        for agent in targets.iter().copied().chain(AGENTS) {
            counts.code_objects += self.observe(prefix, agent)?;
        }
        Ok(counts)
    }

    /// As [`check`](Self::check), for one GPU; returns how many code objects were loaded.
    ///
    /// # Errors
    /// The first difference from the reference.
    pub(crate) fn observe(&self, prefix: &Path, agent: &str) -> Result<usize> {
        let isas: Vec<&str> = agent.split(',').collect();
        let mut seen = BTreeSet::new();
        let mut loaded = 0;
        for (program, expected) in self.programs.iter().zip(&self.reference.programs) {
            let observation = self.runtime.run(prefix, program, agent, &self.scratch)?;
            let name = program.executable.display();
            let found = Behaviour::of(&observation);
            ensure!(
                found == *expected,
                "{name} behaves differently after the split: {}",
                expected.difference(&found)
            );
            loaded += self.check_loaded(&observation, &isas, &mut seen)?;
        }
        ensure!(
            seen.iter().eq(self.reference.wrappers.keys()),
            "{} wrappers were registered (expected {}, as before the split)",
            seen.len(),
            self.reference.wrappers.len()
        );
        Ok(loaded)
    }

    /// Checks that the loaded code objects match the unsplit binary's; returns how many did. Adds
    /// the wrappers to `seen`.
    fn check_loaded(
        &self,
        observation: &Observation,
        isas: &[&str],
        seen: &mut BTreeSet<Wrapper>,
    ) -> Result<usize> {
        let indices = indices(&observation.events);
        let mut loaded = 0;
        for event in &observation.events {
            let index = indices[&(event.binary.as_path(), event.wrapper)];
            let wrapper = (event.binary.clone(), index);
            let expected = self.reference.expected(&wrapper, isas);
            let what = format!("{}, wrapper {index}", event.binary.display());
            match (&event.kind, expected) {
                (Kind::Loaded(found), Some(expected)) => {
                    ensure!(
                        found == expected,
                        "{what}: the loader took {found} for {isas:?}; the unsplit bundle has {expected}"
                    );
                    loaded += 1;
                }
                (Kind::Loaded(found), None) => {
                    bail!("{what}: the loader took {found} for {isas:?}; there is no code for it")
                }
                (Kind::Missing(error), Some(expected)) => bail!(
                    "{what}: loading for {isas:?} failed with error {error}; the unsplit bundle has {expected}\n{}",
                    observation.stderr
                ),
                (Kind::Missing(error), None) => ensure!(
                    [5, 13, 14].contains(error),
                    "{what}: there is no code for {isas:?}, but loading failed with error {error}"
                ),
                (Kind::Fat { .. }, _) => bail!("{what}: it is fat"),
                _ => continue,
            }
            seen.insert(wrapper);
        }
        Ok(loaded)
    }
}
