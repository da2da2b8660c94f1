//! Whether a split prefix does all that the unsplit one does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use super::reference::{Behaviour, CodeObject, CodeObjects, Reference, Wrapper, indices};
use super::runtime::{Kind, Observation, Program, Runtime};
use crate::process;

/// What the checks need.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    pub(super) shell: &'a Shell,
    pub(super) runtime: &'a Runtime,
    pub(super) helper: &'a Path,
    pub(super) programs: &'a [Program],
    pub(super) reference: &'a Reference,
    /// A directory to write to.
    pub(super) scratch: &'a Path,
}

/// How much was checked.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) programs: usize,
    pub(super) wrappers: usize,
    pub(super) code_objects: usize,
}

/// A split wrapper's marker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Marker {
    kernel_name: String,
    search_paths: Vec<String>,
}

/// GPUs that the programs are run on; their code objects need not be for exactly these.
const AGENTS: [&str; 2] = ["gfx90a:sramecc+:xnack+", "gfx1100"];

impl Checker<'_> {
    /// Runs every program of `prefix`, and resolves every wrapper for every target.
    ///
    /// # Errors
    /// The first difference from the reference.
    pub(super) fn check(&self, prefix: &Path) -> Result<Counts> {
        let markers = self.observe(prefix)?;
        let mut counts = Counts {
            programs: self.programs.len(),
            ..Counts::default()
        };
        for (wrapper, code_objects) in &self.reference.wrappers {
            let marker = markers.get(wrapper).with_context(|| {
                format!(
                    "{}: wrapper {} was not registered",
                    wrapper.0.display(),
                    wrapper.1
                )
            })?;
            counts.wrappers += 1;
            counts.code_objects += self.resolve(prefix, wrapper, marker, code_objects)?;
        }
        Ok(counts)
    }

    /// Runs every program of `prefix`, which must do what the unsplit ones do with all wrappers
    /// split; returns their markers.
    ///
    /// # Errors
    /// The first difference from the reference.
    pub(super) fn observe(&self, prefix: &Path) -> Result<BTreeMap<Wrapper, Marker>> {
        let mut markers = BTreeMap::new();
        for (program, expected) in self.programs.iter().zip(&self.reference.programs) {
            for agent in AGENTS {
                let observation =
                    self.runtime
                        .run(self.shell, prefix, program, agent, self.scratch)?;
                let name = program.executable.display();
                let found = Behaviour::of(&observation);
                ensure!(
                    found == *expected,
                    "{name} behaves differently after the split: {}",
                    expected.difference(&found)
                );
                self.collect_markers(&observation, &mut markers)?;
                self.check_archives(&observation, prefix, agent)?;
            }
        }
        ensure!(
            markers.keys().eq(self.reference.wrappers.keys()),
            "{} wrappers were registered, {} before the split",
            markers.len(),
            self.reference.wrappers.len()
        );
        Ok(markers)
    }

    /// Every wrapper must be split, with its index among the binary's wrappers.
    fn collect_markers(
        &self,
        observation: &Observation,
        markers: &mut BTreeMap<Wrapper, Marker>,
    ) -> Result<()> {
        let indices = indices(&observation.events);
        for event in &observation.events {
            let binary = event.binary.display();
            match &event.kind {
                Kind::Fat { .. } => bail!("{binary}: the wrapper at {:#x} is fat", event.wrapper),
                Kind::Split {
                    co_index,
                    kernel_name,
                    search_paths,
                } => {
                    let index = indices[&(event.binary.as_path(), event.wrapper)];
                    ensure!(
                        *co_index == index,
                        "{binary}: wrapper {index} says that its index is {co_index}"
                    );
                    ensure!(
                        Path::new(kernel_name) == event.binary,
                        "{binary}: the marker's kernel_name is {kernel_name}"
                    );
                    let marker = Marker {
                        kernel_name: kernel_name.clone(),
                        search_paths: search_paths.clone(),
                    };
                    markers.insert((event.binary.clone(), index), marker);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The runtime finds an archive for its GPU wherever there is a target that runs on it.
    fn check_archives(&self, observation: &Observation, prefix: &Path, agent: &str) -> Result<()> {
        let runs = |target: &str| {
            let mut features = target.split(':');
            features.next() == agent.split(':').next()
                && features.all(|feature| agent.split(':').any(|f| f == feature))
        };
        let expected: Vec<&str> = self
            .reference
            .targets()
            .into_iter()
            .filter(|t| runs(t))
            .collect();
        for event in &observation.events {
            if !matches!(event.kind, Kind::Split { .. }) {
                continue;
            }
            let found = observation
                .events
                .iter()
                .find_map(|other| match &other.kind {
                    Kind::Archive { target, file }
                        if other.binary == event.binary && other.wrapper == event.wrapper =>
                    {
                        Some((target, file))
                    }
                    _ => None,
                });
            match found {
                Some((target, file)) => ensure!(
                    expected.contains(&target.as_str())
                        && file.canonicalize()?.starts_with(prefix.canonicalize()?),
                    "{}: for {agent} the runtime would open {} for {target}",
                    event.binary.display(),
                    file.display()
                ),
                None => ensure!(
                    expected.is_empty(),
                    "{}: the runtime finds no archive for {agent}",
                    event.binary.display()
                ),
            }
        }
        Ok(())
    }

    /// Extracts what the marker leads to for each target and compares; returns how many code
    /// objects were the same.
    fn resolve(
        &self,
        prefix: &Path,
        (binary, index): &Wrapper,
        marker: &Marker,
        code_objects: &CodeObjects,
    ) -> Result<usize> {
        let kernel = format!("{}#{index}", marker.kernel_name);
        let beside = prefix.join(binary);
        let beside = beside.parent().context("a binary is in a directory")?;
        for target in self.reference.targets() {
            let archives: Vec<PathBuf> = marker
                .search_paths
                .iter()
                .map(|path| beside.join(path.replace("@GFXARCH@", target)))
                .filter(|path| path.exists())
                .collect();
            let extracted = match archives.as_slice() {
                [] => bail!(
                    "{}: no archive for {target} at {:?}",
                    binary.display(),
                    marker.search_paths
                ),
                [archive, ..] => self.extract(archive, &kernel, target)?,
            };
            match (extracted, code_objects.get(target)) {
                (Some(found), Some(expected)) => ensure!(
                    found == *expected,
                    "{kernel} for {target}: {found} was extracted, the unsplit bundle has {expected}"
                ),
                (None, None) => {}
                (None, Some(_)) => {
                    bail!("{kernel} for {target} is not in {}", archives[0].display())
                }
                (Some(_), None) => {
                    bail!(
                        "{kernel} for {target} is in {}, but was in no bundle",
                        archives[0].display()
                    )
                }
            }
        }
        Ok(code_objects.len())
    }

    /// The code object, or `None` where the helper says that there is none (exit code 3).
    fn extract(&self, archive: &Path, kernel: &str, target: &str) -> Result<Option<CodeObject>> {
        let (helper, shell) = (self.helper, self.shell);
        let output = self.scratch.join("extracted");
        let _ = fs::remove_file(&output);
        let command = cmd!(
            shell,
            "{helper} extract {archive} --kernel {kernel} --arch {target} -o {output}"
        );
        let shown = command.to_string();
        let result = command.quiet().ignore_status().output()?;
        match result.status.code() {
            Some(0) => Ok(Some(CodeObject::of(&fs::read(&output)?))),
            Some(3) => Ok(None),
            _ => bail!(
                "`{shown}` failed ({}):\n{}",
                result.status,
                String::from_utf8_lossy(&result.stderr)
            ),
        }
    }

    /// `kpack verify` of a binary against its unsplit original.
    pub(super) fn verify(&self, binary: &Path, original: &Path) -> Result<()> {
        let (helper, shell) = (self.helper, self.shell);
        process::output(cmd!(shell, "{helper} verify {binary} --against {original}"))?;
        Ok(())
    }
}
