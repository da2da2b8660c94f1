//! Carries out a plan.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::finished;
use super::{Artifact, Options, Recombination};
use crate::mark;
use crate::output::{EntrySource, Output};
use crate::stage::Stage;
use kpack_core::Error;
use kpack_core::files::digest;
use kpack_core::parallel;
use kpack_core::publish::{CreatedDirectories, Directory};
use kpack_core::report::Progress;

impl Recombination {
    /// Writes the artifacts of the components that did not fail. `progress` gets the size of each file
    /// that was copied. Returns the components that failed now, and why; the others are written.
    ///
    /// A component's artifacts are written under a hidden name, and renamed when all of them are
    /// complete and durable; existing artifacts of these names are replaced. Where a generic artifact
    /// is there, all of its component are, and complete. The output directory is locked meanwhile.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Io`] where every component failed. What was there before is
    /// there then, as it is for each component that failed.
    pub fn apply(
        &self,
        options: &Options,
        progress: &dyn Progress,
    ) -> Result<BTreeMap<String, Error>, Error> {
        if self.failed.len() == self.components {
            self.failure(&options.shards_dir)?;
        }
        let mut made = CreatedDirectories::default();
        let directory = Directory::make(&options.output_dir, &mut made)?;
        directory.lock()?;
        let to_write = || {
            let all = self.writable();
            all.filter(|artifact| !self.finished.contains(&artifact.component))
        };
        progress.start(to_write().map(|artifact| artifact.size).sum());

        let mut components: BTreeMap<&str, Vec<&Artifact>> = BTreeMap::new();
        for artifact in to_write() {
            let own = components.entry(&artifact.component).or_default();
            own.push(artifact);
        }
        let mut failed =
            parallel::with_jobs(options.jobs, || self.write_all(components, options, progress));
        if self.failed.len() + failed.len() == self.components
            && let Some((_, error)) = failed.pop_first()
        {
            return Err(error);
        }
        Ok(failed)
    }

    /// Writes and publishes the artifacts of components. Returns those that failed, and why. Where copies of inputs
    /// took the room, those that did not fit are written again without, one after the other.
    fn write_all(
        &self,
        components: BTreeMap<&str, Vec<&Artifact>>,
        options: &Options,
        progress: &dyn Progress,
    ) -> BTreeMap<String, Error> {
        let has_freed = AtomicBool::new(false);
        // Each component is locked only while it is written: other runs may wait for it.
        let written = parallel::map(components, |(component, artifacts)| {
            let error = self.write(component, &artifacts, options, progress).err()?;
            if error.is_full() && self.inputs.copies.give_up() {
                has_freed.store(true, Ordering::Relaxed);
            }
            Some((component, artifacts, error))
        });
        let has_freed = has_freed.into_inner();
        let failed = written.into_iter().flatten();
        failed
            .filter_map(|(component, artifacts, error)| {
                let error = if error.is_full() && has_freed {
                    self.write(component, &artifacts, options, progress).err()?
                } else {
                    error
                };
                Some((component.to_owned(), error))
            })
            .collect()
    }

    /// Writes and publishes the artifacts of a component.
    fn write(
        &self,
        component: &str,
        artifacts: &[&Artifact],
        options: &Options,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let made = self.made.get(component);
        let stage = Stage::lock(&options.output_dir, component)?;
        // Another run may have finished it meanwhile.
        if made.is_some_and(|made| finished::read(options, component, &made.key).is_some()) {
            return Ok(());
        }
        for artifact in artifacts {
            mark::check_replaceable(&stage.output(&artifact.name))?;
        }
        let contents = parallel::try_map(artifacts, |artifact| {
            let (name, output) = (&artifact.name, &artifact.output);
            stage.write(name, output, &self.inputs.copies, progress)?;
            stage.finish(name, output)?;
            match made {
                Some(_) => self.contents(&stage.artifact(name), output),
                None => Ok(String::new()),
            }
        })?;
        let names = |is_group: bool| {
            let own = artifacts.iter();
            own.filter(move |artifact| artifact.group.is_some() == is_group)
                .map(|artifact| artifact.name.as_str())
        };
        let groups: Vec<&str> = names(true).collect();
        finished::forget(&options.output_dir, component)?;
        stage.publish(&groups, names(false).next(), &[])?;
        match made {
            Some(made) => {
                let artifacts = artifacts.iter().copied().zip(contents);
                finished::note(options, component, made, artifacts)
            }
            None => Ok(()),
        }
    }

    /// The contents of an artifact that was written at `root`. Plain copies have the bytes of their inputs.
    fn contents(&self, root: &Path, output: &Output) -> Result<String, Error> {
        finished::contents(root, &|path| {
            let source = path.strip_prefix(root).ok();
            match source.and_then(|path| output.entries.get(path)) {
                Some(EntrySource::Copy(from, edits)) if edits.is_empty() => {
                    self.inputs.digest(from)
                }
                _ => digest(path),
            }
        })
    }
}
