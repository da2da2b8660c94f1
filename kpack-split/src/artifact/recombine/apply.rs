//! The plan, written.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Artifact, Options, Plan, Source};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::artifact::staged_tree::StagedTree;
use crate::parallel;
use crate::store::{CreatedDirectories, Directory, Renames};

impl Plan {
    /// Writes the artifacts of the components that did not fail. `on_bytes` is called with the size
    /// of each file that was copied. Gives the components that failed now, and why; the others are
    /// written.
    ///
    /// Each artifact is written under a hidden name, and a component's are renamed when all of them
    /// are complete and durable; an artifact of that name that is there is replaced. Where a generic
    /// artifact is there, all of its component are, and whole. The output directory is locked
    /// meanwhile.
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
        let output = &options.output_dir;
        let mut made = CreatedDirectories::default();
        let directory = Directory::make(output, &mut made)?;
        directory.lock()?;

        let mut components: BTreeMap<&str, Vec<&Artifact>> = BTreeMap::new();
        for artifact in self.writable() {
            components
                .entry(&artifact.component)
                .or_default()
                .push(artifact);
        }
        let staged = parallel::with_jobs(options.jobs, || {
            parallel::map(components, |(name, artifacts)| {
                (name, Staged::write(&artifacts, output, on_bytes))
            })
        });
        let mut writing = Writing::default();
        for (name, staged) in staged {
            match staged {
                Ok(staged) => drop(writing.staged.insert(name, staged)),
                Err(error) => drop(writing.failed.insert(name.to_owned(), error)),
            }
        }
        // The data first: a name must not survive a power failure that its content does not.
        directory.sync_file_system()?;
        // The generic ones go first and come last: where one is, all of its component is there.
        writing.each(Staged::make_way);
        directory.sync()?;
        writing.each(|staged| staged.commit(false));
        directory.sync()?;
        writing.each(|staged| staged.commit(true));
        directory.sync()?;
        for (name, staged) in std::mem::take(&mut writing.staged) {
            if let Err(error) = staged.done() {
                writing.failed.insert(name.to_owned(), error);
            }
        }
        match writing.failed.pop_first() {
            Some((_, error)) if self.failed.len() + writing.failed.len() + 1 == self.components => {
                Err(error)
            }
            first => {
                writing.failed.extend(first);
                Ok(writing.failed)
            }
        }
    }
}

/// The components that are on their way to their names, and those that are not any more.
#[derive(Default)]
struct Writing<'a> {
    staged: BTreeMap<&'a str, Staged>,
    failed: BTreeMap<String, Error>,
}

impl Writing<'_> {
    /// Goes one step on with each component. Where that fails, what was there before is there again.
    fn each(&mut self, step: impl Fn(&mut Staged) -> Result<(), Error>) {
        let failed = &mut self.failed;
        self.staged.retain(|name, staged| match step(staged) {
            Ok(()) => true,
            Err(error) => {
                failed.insert((*name).to_owned(), error);
                false
            }
        });
    }
}

/// The artifacts of a component under hidden names.
struct Staged {
    /// Undone before the hidden directories are removed: fields are dropped in this order.
    renames: Renames,
    /// Each with whether it is the generic one.
    trees: Vec<(bool, StagedTree)>,
}

impl Staged {
    fn write(
        artifacts: &[&Artifact],
        output: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let mut trees = parallel::try_map(artifacts, |artifact| {
            let tree = stage(artifact, output, on_bytes)?;
            tree.check()?;
            Ok::<_, Error>((artifact.group.is_none(), tree))
        })?;
        trees.sort_by_key(|(is_generic, _)| !is_generic);
        Ok(Self {
            renames: Renames::default(),
            trees,
        })
    }

    /// Sets aside what has their names, the generic one first.
    fn make_way(&mut self) -> Result<(), Error> {
        let mut trees = self.trees.iter();
        trees.try_for_each(|(_, tree)| tree.make_way(&mut self.renames))
    }

    /// Gives the generic artifact its name, or the others.
    fn commit(&mut self, generic: bool) -> Result<(), Error> {
        let mut trees = self.trees.iter().filter(|(is, _)| *is == generic);
        trees.try_for_each(|(_, tree)| tree.commit(&mut self.renames))
    }

    /// All have their names; removes what they replaced.
    fn done(self) -> Result<(), Error> {
        self.renames.keep();
        let mut trees = self.trees.into_iter();
        trees.try_for_each(|(_, tree)| tree.done())
    }
}

fn stage(
    artifact: &Artifact,
    output: &Path,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<StagedTree, Error> {
    let mut tree = StagedTree::begin(output, &artifact.name)?;
    for (path, source) in &artifact.entries {
        match source {
            Source::Directory(like) => {
                let metadata = like.metadata().map_err(|e| Error::io(like, "read", e))?;
                tree.directory(path, metadata)?;
            }
            Source::Copy(from) | Source::Edited(from, _) => {
                tree.copy(from, path)?;
                if let Source::Edited(_, edits) = source {
                    tree.edit(from, path, edits)?;
                }
                let metadata = from.symlink_metadata();
                on_bytes(metadata.map(|m| m.len()).unwrap_or_default());
            }
            Source::Manifest(bytes) => tree.manifest(path, bytes)?,
            Source::Bytes(bytes, like) => {
                let metadata = like.metadata().map_err(|e| Error::io(like, "read", e))?;
                tree.write_like(path, bytes, &metadata)?;
            }
        }
    }
    let text = manifest_txt::to_text(&artifact.prefixes);
    tree.write(Path::new(manifest_txt::FILE_NAME), text.as_bytes())?;
    let mark = mark::to_bytes(&artifact.databases);
    tree.write(Path::new(mark::FILE_NAME), &mark)?;
    tree.finish()?;
    Ok(tree)
}
