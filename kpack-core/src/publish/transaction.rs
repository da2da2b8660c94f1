//! All-or-nothing changes of a run: archives, their manifest, and the files that refer to them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Written};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::Group;

use super::batch::Batch;
use super::directory::{CreatedDirectories, Directory, wait_for_host};
use super::identity::Identity;
use super::kpack_dir::{KpackDir, entry, stage_manifest};
use super::merge::Update;
use super::staged_file::StagedFile;
use crate::Error;
use crate::report::{ArchiveReport, Report};

/// Files under hidden names, and files to remove. If dropped before it is committed, nothing
/// changes.
#[derive(Debug)]
pub struct Transaction {
    archives: Vec<(StagedFile, ArchiveReport)>,
    /// Names of archives that became empty.
    emptied: Vec<String>,
    manifest: Option<StagedFile>,
    /// Fragments of the manifest, if several packages share the module.
    fragments: Vec<StagedFile>,
    removes_manifest: bool,
    hosts: Vec<StagedFile>,
    /// Files outside of the directory that have what the archives lack.
    beside: Option<Batch>,
    /// Dropped after the files in them, since only empty directories are removed; and before the
    /// lock, so that a waiting run sees that the directory is gone.
    made: CreatedDirectories,
    directory: KpackDir,
}

impl Transaction {
    /// Locks the directory `relative` in `root`, creating it if missing.
    pub fn begin(root: &Directory, relative: &Path, group: &Group) -> Result<Self, Error> {
        let mut made = CreatedDirectories::default();
        let directory = KpackDir::lock(root, relative, group.clone(), &mut made)?;
        Ok(Self {
            archives: Vec::new(),
            emptied: Vec::new(),
            manifest: None,
            fragments: Vec::new(),
            removes_manifest: false,
            hosts: Vec::new(),
            beside: None,
            directory,
            made,
        })
    }

    /// The module's kpacks.
    pub fn directory(&self) -> &KpackDir {
        &self.directory
    }

    /// Merges new kernels with those that stay, writes the archives, and updates `manifest` to
    /// match. For archives that were only computed, returns them with the manifest's previous
    /// entry.
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

    /// Writes the manifest, or removes one without archives.
    pub fn manifest(&mut self, manifest: &Manifest) -> Result<(), Error> {
        self.removes_manifest = manifest.kpack_files.is_empty();
        if !self.removes_manifest {
            let name = self.directory.group().manifest();
            let directory = self.directory.directory();
            self.manifest = Some(stage_manifest(directory, name.as_ref(), manifest)?);
        }
        Ok(())
    }

    /// Writes the packages' fragments of the manifest.
    pub fn fragments(&mut self, manifest: &Manifest) -> Result<(), Error> {
        self.fragments = self.directory.stage_parts(manifest)?;
        Ok(())
    }

    /// Adds a host file that needs the archives.
    pub fn host(&mut self, host: StagedFile) {
        self.hosts.push(host);
    }

    /// Adds files outside of the directory, such as debug files, which have what the archives lack.
    pub fn beside(&mut self, files: Option<Batch>) {
        self.beside = files;
    }

    /// Renames the staged files so that each finds what it needs, making each step durable before
    /// the next.
    ///
    /// # Errors
    /// [`Error::Changed`] if a host file changed since it was read; [`Error::Io`]. Files replaced
    /// before the error are complete and consistent.
    pub fn commit(mut self, report: &mut Report) -> Result<(), Error> {
        self.flush()?;
        let locks = Locks::on(&self.hosts)?;
        for host in &self.hosts {
            host.check()?;
        }
        if let Some(beside) = self.beside.take() {
            beside.publish()?;
        }
        let directory = self.directory.directory();
        for (staged, mut line) in std::mem::take(&mut self.archives) {
            line.changed = staged.commit()?;
            report.archives.push(line);
        }
        report.archives.sort_by(|a, b| a.target.cmp(&b.target));
        for staged in self.manifest.take().into_iter().chain(std::mem::take(&mut self.fragments)) {
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
        rename(std::mem::take(&mut self.hosts), locks)
    }
}

impl Transaction {
    /// Makes the contents of all staged files durable. One after the other, with nothing written between them: file
    /// systems with a journal then write it for the first file, and the others hardly wait.
    fn flush(&mut self) -> Result<(), Error> {
        let archives = self.archives.iter_mut().map(|(archive, _)| archive);
        let manifests = self.manifest.iter_mut().chain(&mut self.fragments);
        let mut staged = archives.chain(manifests).chain(&mut self.hosts);
        staged.try_for_each(StagedFile::sync)
    }
}

/// Renames a host file that needs no new archives, as [`Transaction::commit`] does.
///
/// # Errors
/// [`Error::Changed`] if the file that it replaces changed since it was read; [`Error::Io`].
pub fn replace(host: StagedFile) -> Result<(), Error> {
    let hosts = vec![host];
    let locks = Locks::on(&hosts)?;
    rename(hosts, locks)
}

/// Renames host files and makes that durable.
fn rename(hosts: Vec<StagedFile>, locks: Locks) -> Result<(), Error> {
    let mut directories: Vec<Arc<Directory>> = Vec::new();
    for host in hosts {
        let directory = host.directory();
        // Most are in the same one as the host file before.
        let mut changed = directories.iter().rev();
        if !changed.any(|changed| changed.path() == directory.path()) {
            directories.push(directory.clone());
        }
        // Even if the bytes are the same: build systems compare the file's time with its input's.
        host.replace()?;
    }
    drop(locks);
    directories.iter().try_for_each(|changed| changed.sync())
}

/// Locks on the files to replace, so that a waiting run sees that it came too late. If files cannot
/// be locked, checking them right before replacing has to suffice.
struct Locks(Vec<File>);

impl Locks {
    fn on(hosts: &[StagedFile]) -> Result<Self, Error> {
        // Lock in a fixed order, so that no two runs wait for each other, and lock a file with
        // several names once.
        let mut replaced: Vec<(Identity, &Path, File)> = Vec::new();
        for host in hosts {
            if let Some((identity, file)) = host.replaced()? {
                let at = replaced.partition_point(|(other, ..)| *other < identity);
                if replaced.get(at).is_none_or(|(other, ..)| *other != identity) {
                    replaced.insert(at, (identity, host.path(), file));
                }
            }
        }
        let mut locks = Self(Vec::new());
        for (_, path, file) in replaced {
            let _ = wait_for_host(&file, path)?;
            locks.0.push(file);
        }
        Ok(locks)
    }
}
