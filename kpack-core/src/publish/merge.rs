//! Merges new kernels into a module's archives, replacing older ones of the same binaries.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Written};
use kpack_format::manifest::Manifest;

use super::kpack_dir::{KpackDir, Present, entry_of, stage_archive};
use super::scratch::scratch_file;
use super::staged_file::StagedFile;
use crate::Error;
use crate::parallel;

/// How to change a module's archives.
pub struct Update<'a> {
    /// Whether an existing kernel for a target belongs to a rewritten binary, whose code for that target
    /// is known.
    pub replaces: &'a (dyn Fn(&TargetId, &str) -> bool + Sync),
    /// Whether the archive of a target without new kernels may change.
    pub touches: &'a (dyn Fn(&TargetId) -> bool + Sync),
    /// Only compute the archives; do not keep them.
    pub only_computed: bool,
}

/// A merged archive, under a hidden name. No file if only computed.
type Merged = (TargetId, Written, Option<StagedFile>);

/// The result of an update.
#[derive(Default)]
pub(super) struct Updated {
    pub(super) archives: Vec<Merged>,
    /// Names of archives to remove.
    pub(super) emptied: Vec<String>,
}

/// An archive to write: new kernels, and the archive to merge them with.
struct Change {
    target: TargetId,
    archive: ArchiveWriter<File>,
    old: Option<Present>,
}

impl Update<'_> {
    /// Merges `new` kernels with those that stay. Removes the entries of emptied archives from
    /// `manifest`, and adds those of unchanged ones.
    pub(super) fn stage(
        &self,
        directory: &KpackDir,
        new: BTreeMap<TargetId, ArchiveWriter<File>>,
        manifest: &mut Manifest,
    ) -> Result<Updated, Error> {
        let mut updated = Updated::default();
        let mut present = directory.archives()?;
        let mut changes = Vec::new();
        for (target, archive) in new {
            let old = present.remove(&target);
            changes.push(Change { target, archive, old });
        }
        for (target, old) in present {
            if let Some(archive) =
                self.without_stale(directory, &target, &old, manifest, &mut updated.emptied)?
            {
                changes.push(Change { target, archive, old: Some(old) });
            }
        }
        updated.archives = parallel::try_map(changes, |change| self.write(directory, change))?;
        Ok(updated)
    }

    /// Handles the archive of a target for which the binaries have no device code (any more). If it
    /// has to change, returns a new archive for the kernels of other binaries.
    fn without_stale(
        &self,
        directory: &KpackDir,
        target: &TargetId,
        old: &Present,
        manifest: &mut Manifest,
        emptied: &mut Vec<String>,
    ) -> Result<Option<ArchiveWriter<File>>, Error> {
        let (key, group) = (target.to_string(), directory.group());
        let name = directory.archive_name(target);
        let toc = old.archive.toc();
        let stale = toc.kernels.keys().filter(|kernel| (self.replaces)(target, kernel)).count();
        if !(self.touches)(target) || stale == 0 {
            let known = manifest.kpack_files.get(&key);
            let entry = entry_of(target, name, old, known)?;
            manifest.kpack_files.insert(key, entry);
            return Ok(None);
        }
        if stale == toc.kernels.len() {
            manifest.kpack_files.remove(&key);
            if !self.only_computed {
                emptied.push(name);
            }
            return Ok(None);
        }
        let spool = scratch_file(directory.path())?;
        Ok(Some(ArchiveWriter::new(spool, group, target, toc.scheme)))
    }

    /// Merges and writes an archive.
    fn write(
        &self,
        directory: &KpackDir,
        Change { target, mut archive, old }: Change,
    ) -> Result<Merged, Error> {
        if let Some(mut old) = old {
            archive
                .merge(&mut old.archive, |kernel| !(self.replaces)(&target, kernel))
                .map_err(|error| Error::archive(&old.path, "merge", error))?;
        }
        if self.only_computed {
            let written = archive
                .finish(io::sink())
                .map_err(|e| Error::archive(directory.path(), "write into", e))?;
            return Ok((target, written, None));
        }
        let name = directory.archive_name(&target);
        let (staged, written) = stage_archive(directory.directory(), name.as_ref(), archive)?;
        Ok((target, written, Some(staged)))
    }
}
