//! Carries out a plan.

use std::collections::BTreeMap;

use super::{Artifact, Options, Plan};
use crate::Error;
use crate::artifact::mark;
use crate::artifact::stage::Stage;
use crate::parallel;
use crate::report::Progress;
use crate::store::{CreatedDirectories, Directory};

impl Plan {
    /// Writes the artifacts of the components that did not fail. `on_bytes` is called with the size
    /// of each file that was copied. Returns the components that failed now, and why; the others are
    /// written.
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
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<BTreeMap<String, Error>, Error> {
        if self.failed.len() == self.components {
            self.failure(&options.shards_dir)?;
        }
        let mut made = CreatedDirectories::default();
        let directory = Directory::make(&options.output_dir, &mut made)?;
        directory.lock()?;

        let mut components: BTreeMap<&str, Vec<&Artifact>> = BTreeMap::new();
        for artifact in self.writable() {
            let own = components.entry(&artifact.component).or_default();
            own.push(artifact);
        }
        let staged = parallel::with_jobs(options.jobs, || {
            parallel::map(components, |(component, artifacts)| {
                let staged = stage(component, &artifacts, options, &OnBytes(on_bytes));
                (component, staged.map(|stage| (stage, artifacts)))
            })
        });
        let mut failed = BTreeMap::new();
        for (component, staged) in staged {
            let published = staged.and_then(|(stage, artifacts)| publish(stage, &artifacts));
            if let Err(error) = published {
                failed.insert(component.to_owned(), error);
            }
        }
        if self.failed.len() + failed.len() == self.components
            && let Some((_, error)) = failed.pop_first()
        {
            return Err(error);
        }
        Ok(failed)
    }
}

/// Writes the artifacts of a component.
fn stage(
    component: &str,
    artifacts: &[&Artifact],
    options: &Options,
    progress: &dyn Progress,
) -> Result<Stage, Error> {
    let stage = Stage::lock(&options.output_dir, component)?;
    for artifact in artifacts {
        mark::check_replaceable(&stage.output(&artifact.name))?;
    }
    parallel::try_map(artifacts, |artifact| {
        stage.write(&artifact.name, &artifact.output, progress)?;
        stage.finish(&artifact.name, &artifact.output)
    })?;
    Ok(stage)
}

fn publish(stage: Stage, artifacts: &[&Artifact]) -> Result<(), Error> {
    let (generic, groups): (Vec<&Artifact>, Vec<&Artifact>) = artifacts
        .iter()
        .partition(|artifact| artifact.group.is_none());
    let groups: Vec<&str> = groups.iter().map(|group| &*group.name).collect();
    stage.publish(&groups, generic.first().map(|generic| &*generic.name))
}

/// Calls a function with the sizes of files.
struct OnBytes<'a>(&'a (dyn Fn(u64) + Sync));

impl Progress for OnBytes<'_> {
    fn advance(&self, bytes: u64) {
        (self.0)(bytes);
    }
}
