//! Writes the planned artifacts.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Artifact, Options, Recombination};
use crate::mark;
use crate::writer;
use kpack_core::Error;
use kpack_core::parallel;
use kpack_core::publish::{CreatedDirectories, Directory, NewNames, Stage};
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
        progress.start(self.writable().map(|artifact| artifact.size).sum());
        let mut components: BTreeMap<&str, Vec<&Artifact>> = BTreeMap::new();
        for artifact in self.writable() {
            components.entry(&artifact.component).or_default().push(artifact);
        }
        // Each component is locked only while it is written: other runs may wait for it.
        let written = parallel::with_jobs(options.jobs, || {
            parallel::map(components, |(component, artifacts)| {
                let error = write(component, &artifacts, &directory, progress).err()?;
                Some((component.to_owned(), error))
            })
        });
        let mut failed: BTreeMap<String, Error> = written.into_iter().flatten().collect();
        if self.failed.len() + failed.len() == self.components
            && let Some((_, error)) = failed.pop_first()
        {
            return Err(error);
        }
        Ok(failed)
    }
}

/// Writes and publishes the artifacts of a component.
fn write(
    component: &str,
    artifacts: &[&Artifact],
    output: &Directory,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let stage = Stage::lock_in(output, component)?;
    for artifact in artifacts {
        mark::check_replaceable(stage.above(), artifact.name.as_ref())?;
    }
    parallel::try_map(artifacts, |artifact| {
        writer::write(&stage, &artifact.output, progress)?;
        writer::finish(&stage, &artifact.output)
    })?;
    let names = |is_group: bool| {
        let own = artifacts.iter().filter(move |artifact| artifact.group.is_some() == is_group);
        own.map(|artifact| artifact.name.as_str())
    };
    let (groups, generic): (Vec<&str>, Vec<&str>) = (names(true).collect(), names(false).collect());
    let may_replace = |name: &Path| mark::check_replaceable(stage.above(), name);
    stage.publish(&NewNames::new(&groups).with_last(&generic).where_allowed(&may_replace))
}
