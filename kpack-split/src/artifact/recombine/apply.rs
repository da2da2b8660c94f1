//! The plan, written.

use std::path::Path;

use super::{Artifact, Options, Plan, Source};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::artifact::staged_tree::StagedTree;
use crate::parallel;
use crate::store::{Directory, Made, Renames};

impl Plan {
    /// Writes the artifacts. `on_bytes` is called with the size of each file that was copied.
    ///
    /// Each is written under a hidden name, and all are renamed when all are complete and durable; an
    /// artifact of that name that is there is replaced. Where a generic artifact is there, all of
    /// its component are, and whole. The output directory is locked meanwhile.
    ///
    /// # Errors
    /// [`Error::Refused`] where the plan has errors; [`Error::Io`]. What was there before is there
    /// then.
    pub fn apply(&self, options: &Options, on_bytes: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        if self.errors() > 0 {
            let text = format!(
                "{} errors in its shards; nothing was written",
                self.errors()
            );
            return Err(Error::refused(&options.shards_dir, text));
        }
        let output = &options.output_dir;
        let mut made = Made::default();
        let directory = Directory::make(output, &mut made)?;
        directory.lock()?;

        let staged = parallel::with_jobs(options.jobs, || {
            parallel::try_map(&self.artifacts, |artifact| {
                let tree = stage(artifact, output, on_bytes)?;
                Ok::<_, Error>((artifact.group.is_none(), tree))
            })
        })?;
        // The data first: a name must not survive a power failure that its content does not.
        directory.sync_file_system()?;
        // The generic ones go first and come last: where one is, all of its component is there.
        let (generic, groups): (Vec<_>, Vec<_>) = staged.into_iter().partition(|(g, _)| *g);
        for (_, tree) in generic.iter().chain(&groups) {
            tree.check()?;
        }
        let mut renames = Renames::default();
        for (_, tree) in generic.iter().chain(&groups) {
            tree.make_way(&mut renames)?;
        }
        directory.sync()?;
        for trees in [&groups, &generic] {
            for (_, tree) in trees {
                tree.commit(&mut renames)?;
            }
            directory.sync()?;
        }
        renames.keep();
        let mut trees = groups.into_iter().chain(generic);
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
            Source::Bytes(bytes, None) => tree.write(path, bytes)?,
            Source::Bytes(bytes, Some(like)) => {
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
