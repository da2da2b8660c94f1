//! What a run changes, all of it or nothing: archives, their manifest, and the files that lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Written};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::Group;

use super::directory::{Directory, Made, lock_where_possible};
use super::kpack_dir::{KpackDir, entry, stage_manifest};
use super::merge::Update;
use super::staged_file::StagedFile;
use crate::Error;
use crate::report::{ArchiveReport, Report};

/// Files under hidden names, and what goes. Dropped before it is committed, nothing has changed.
#[derive(Debug)]
pub struct Transaction {
    archives: Vec<(StagedFile, ArchiveReport)>,
    /// Names of archives that hold nothing any more.
    emptied: Vec<String>,
    manifest: Option<StagedFile>,
    /// Of the manifest, where the module is in several packages.
    fragments: Vec<StagedFile>,
    removes_manifest: bool,
    hosts: Vec<StagedFile>,
    /// Dropped after the files in them, since only what is empty is removed, and before the lock: who
    /// waits for it has to see that the directory went.
    made: Made,
    directory: KpackDir,
}

impl Transaction {
    /// Waits for the lock on the directory `relative` in `root`, which is made where it is missing.
    pub fn begin(root: &Directory, relative: &Path, group: &Group) -> Result<Self, Error> {
        let mut made = Made::default();
        let directory = KpackDir::lock(root, relative, group.clone(), &mut made)?;
        Ok(Self {
            archives: Vec::new(),
            emptied: Vec::new(),
            manifest: None,
            fragments: Vec::new(),
            removes_manifest: false,
            hosts: Vec::new(),
            directory,
            made,
        })
    }

    /// The module's kpacks.
    pub fn directory(&self) -> &KpackDir {
        &self.directory
    }

    /// Merges new kernels with those that stay, and writes the archives. `manifest` is made to say what
    /// will be there. What was computed only is given
    /// back, with the entry that the manifest had.
    pub fn archives(
        &mut self,
        update: &Update<'_>,
        new: BTreeMap<TargetId, ArchiveWriter<File>>,
        manifest: &mut Manifest,
    ) -> Result<Vec<(Written, Option<KpackFile>)>, Error> {
        let updated = update.stage(&self.directory, new, manifest)?;
        self.emptied = updated.emptied;
        let mut computed = Vec::new();
        for (target, written, staged) in updated.archives {
            let name = self.directory.archive_name(&target);
            let entry = entry(&target, name, &written);
            let before = manifest.kpack_files.insert(target.to_string(), entry);
            match staged {
                Some(staged) => {
                    let line = ArchiveReport::written(staged.path(), &target, &written);
                    self.archives.push((staged, line));
                }
                None => computed.push((written, before)),
            }
        }
        Ok(computed)
    }

    /// Writes the manifest; one without archives is removed.
    pub fn manifest(&mut self, manifest: &Manifest) -> Result<(), Error> {
        self.removes_manifest = manifest.kpack_files.is_empty();
        if !self.removes_manifest {
            let name = self.directory.group().manifest();
            let directory = self.directory.directory();
            self.manifest = Some(stage_manifest(directory, name.as_ref(), manifest)?);
        }
        Ok(())
    }

    /// Writes the parts of the manifest that packages have.
    pub fn fragments(&mut self, manifest: &Manifest) -> Result<(), Error> {
        self.fragments = self.directory.stage_parts(manifest)?;
        Ok(())
    }

    /// Adds a file that needs the archives.
    pub fn host(&mut self, host: StagedFile) {
        self.hosts.push(host);
    }

    /// Renames what was staged, in the order in which each file finds what it needs, and each step
    /// durable before the next.
    ///
    /// # Errors
    /// [`Error::Changed`] where a host file is not the one any more that was read, and
    /// [`Error::Io`]. The files that were replaced by then are whole, and fit the others.
    pub fn commit(mut self, report: &mut Report) -> Result<(), Error> {
        let locks = Locks::on(&self.hosts)?;
        for host in &self.hosts {
            host.check()?;
        }
        let directory = self.directory.directory();
        for (staged, mut line) in std::mem::take(&mut self.archives) {
            line.changed = staged.commit()?;
            report.archives.push(line);
        }
        report.archives.sort_by(|a, b| a.target.cmp(&b.target));
        for staged in self
            .manifest
            .take()
            .into_iter()
            .chain(std::mem::take(&mut self.fragments))
        {
            staged.commit()?;
        }
        if self.removes_manifest {
            directory.remove(self.directory.group().manifest().as_ref())?;
        }
        directory.sync()?;
        self.made.sync()?;
        for name in &self.emptied {
            directory.remove(name.as_ref())?;
            report.removed.push(directory.path().join(name));
        }
        if !self.emptied.is_empty() {
            directory.sync()?;
        }
        let mut changed: BTreeSet<PathBuf> = BTreeSet::new();
        let mut directories = Vec::new();
        for host in std::mem::take(&mut self.hosts) {
            let directory = host.directory();
            if changed.insert(directory.path().to_owned()) {
                directories.push(directory.clone());
            }
            host.commit()?;
        }
        drop(locks);
        directories.iter().try_for_each(|changed| changed.sync())
    }
}

/// Files that are to be replaced, locked: a run that waits finds then that it came too late. Where
/// files cannot be locked, that they are looked at right before they are replaced has to do.
struct Locks(Vec<File>);

impl Locks {
    fn on(hosts: &[StagedFile]) -> Result<Self, Error> {
        // Always in the same order, so that no two runs wait for each other; and a file that has
        // several names once.
        let mut replaced = BTreeMap::new();
        for host in hosts {
            if let Some((identity, file)) = host.replaced()? {
                replaced.insert(identity, (host.path(), file));
            }
        }
        let mut locks = Self(Vec::new());
        for (path, file) in replaced.into_values() {
            lock_where_possible(&file, path)?;
            locks.0.push(file);
        }
        Ok(locks)
    }
}
