//! What was split, into the prefix: everything under hidden names first, then renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Written};
use kpack_format::manifest::Manifest;

use super::host::Edits;
use super::locate::KpackPath;
use super::{ArchiveReport, Binary, Only, Options, Report, host};
use crate::Error;
use crate::elf::Plan;
use crate::kpack_dir::{self, KpackDir, Staged, Update};
use crate::split::{self, Input};

/// What is to be made of the prefix.
pub(super) struct Run<'a> {
    pub(super) options: &'a Options,
    pub(super) kpacks: &'a KpackPath,
    pub(super) group: &'a str,
    pub(super) wanted: &'a BTreeSet<TargetId>,
    pub(super) fat: &'a [&'a Binary],
}

/// Files under hidden names, and what else changes.
#[derive(Default)]
struct Staging {
    archives: Vec<(Staged, ArchiveReport)>,
    emptied: Vec<PathBuf>,
    manifest: Option<Staged>,
    /// Of the manifest, where the module is in several packages.
    parts: Vec<Staged>,
    remove_manifest: bool,
    hosts: Vec<Staged>,
}

impl Staging {
    fn add(&mut self, staged: Staged, target: &TargetId, written: &Written) {
        let line = ArchiveReport::written(staged.path(), target, written);
        self.archives.push((staged, line));
    }
}

impl Run<'_> {
    pub(super) fn apply(
        &self,
        archives: BTreeMap<TargetId, ArchiveWriter<File>>,
        plans: &BTreeMap<PathBuf, Plan>,
        edits: &BTreeMap<PathBuf, Edits>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let missing = missing_directories(&self.kpacks.path);
        let applied =
            KpackDir::lock(&self.kpacks.path, self.group.to_owned()).and_then(|directory| {
                let staging = self.stage(&directory, archives, plans, edits, report)?;
                self.commit(&directory, staging, &missing, report)
            });
        if applied.is_err() || self.options.only == Some(Only::Host) {
            // Only where it is empty.
            for directory in &missing {
                let _ = fs::remove_dir(directory);
            }
        }
        applied
    }

    /// Writes everything that is new under hidden names.
    fn stage(
        &self,
        directory: &KpackDir,
        archives: BTreeMap<TargetId, ArchiveWriter<File>>,
        plans: &BTreeMap<PathBuf, Plan>,
        edits: &BTreeMap<PathBuf, Edits>,
        report: &mut Report,
    ) -> Result<Staging, Error> {
        let mut staging = Staging::default();
        let mut manifest = self.manifest(directory, report)?;
        let replaces = |kernel: &str| self.is_replaced(kernel);
        let update = Update {
            directory,
            replaces: &replaces,
            touches: &|target| {
                self.options.only != Some(Only::Device) || self.wanted.contains(target)
            },
            only_computed: self.options.only == Some(Only::Host),
            jobs: self.options.jobs,
        };
        let updated = update.stage(archives, &mut manifest)?;
        staging.emptied = updated.emptied;
        for (target, written, staged) in updated.archives {
            match staged {
                None => self.warn_of_fewer(&manifest, &target, &written, report),
                Some(staged) => staging.add(staged, &target, &written),
            }
            let name = directory.archive_name(&target);
            let entry = kpack_dir::entry(&target, name, &written);
            manifest.kpack_files.insert(target.to_string(), entry);
        }
        if self.writes_manifest(directory)? {
            if manifest.kpack_files.is_empty() {
                staging.remove_manifest = true;
            } else {
                staging.manifest = Some(directory.stage_manifest(&manifest)?);
            }
            if self.options.only != Some(Only::Host) {
                staging.parts = directory.stage_parts(&manifest)?;
            }
        }
        for binary in self.fat {
            let path = &binary.located.path;
            if let (Some(edits), Some(presplit)) = (edits.get(path), &binary.presplit) {
                if !host::is_same(path, &presplit.file)? {
                    return Err(Error::refused(
                        path,
                        "it changed while it was read; run this again",
                    ));
                }
                staging
                    .hosts
                    .push(host::stage_edited(path, &presplit.file, edits)?);
                continue;
            }
            let (Some(plan), Some(fat)) = (plans.get(path), binary.fat()) else {
                continue;
            };
            if let Some(file) = fat.code.reopen()? {
                staging.hosts.push(host::stage(path, &file, plan)?);
            } else if !matches!(split::read(path)?, Input::Split) {
                return Err(Error::refused(
                    path,
                    "it changed while it was read; run this again",
                ));
            }
        }
        Ok(staging)
    }

    /// Whether a kernel is of one of the binaries that are split here.
    fn is_replaced(&self, kernel: &str) -> bool {
        let binary = kernel.rsplit_once('#').map_or(kernel, |(binary, _)| binary);
        self.fat.iter().any(|fat| fat.located.name == binary)
    }

    /// The manifest to start from: the one that is there, also with its entries of archives that
    /// are not, which may be in packages of their own.
    fn manifest(&self, directory: &KpackDir, report: &mut Report) -> Result<Manifest, Error> {
        let old = match directory.manifest() {
            Ok(old) => old,
            Err(Error::Refused { path, reason }) => {
                report.warn(path, format!("{reason}; it is written anew"));
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Manifest {
            component_name: self.group.to_owned(),
            prefix: self.kpacks.manifest_prefix.clone(),
            kpack_files: old.map(|old| old.kpack_files).unwrap_or_default(),
        })
    }

    /// Archives that are elsewhere cannot be merged, so a binary that was left out is missed.
    fn warn_of_fewer(
        &self,
        manifest: &Manifest,
        target: &TargetId,
        written: &Written,
        report: &mut Report,
    ) {
        let old = manifest.kpack_files.get(&target.to_string());
        if let Some(old) = old.filter(|old| old.kernel_count > written.kernel_count) {
            report.warn(
                self.kpacks.path.join(&old.filename),
                format!(
                    "had {} kernels by the manifest and has {} now; name every binary of the module in one run",
                    old.kernel_count, written.kernel_count
                ),
            );
        }
    }

    /// A run for device code alone leaves the manifest to whoever installs the host binaries.
    fn writes_manifest(&self, directory: &KpackDir) -> Result<bool, Error> {
        let with_hosts = self.options.only != Some(Only::Device);
        let host_is_here = || self.fat.iter().any(|binary| binary.located.path.exists());
        Ok(with_hosts || host_is_here() || matches!(directory.manifest(), Ok(Some(_))))
    }

    /// Renames what was staged, in the order in which each file finds what it needs, and each step
    /// durable before the next.
    fn commit(
        &self,
        directory: &KpackDir,
        staging: Staging,
        new_directories: &[PathBuf],
        report: &mut Report,
    ) -> Result<(), Error> {
        for (staged, mut line) in staging.archives {
            line.changed = staged.commit()?;
            report.archives.push(line);
        }
        report.archives.sort_by(|a, b| a.target.cmp(&b.target));
        if let Some(manifest) = staging.manifest {
            manifest.commit()?;
        }
        for part in staging.parts {
            part.commit()?;
        }
        if staging.remove_manifest {
            directory.remove_manifest()?;
        }
        directory.sync()?;
        for above in new_directories.iter().filter_map(|new| new.parent()) {
            kpack_dir::sync_directory(above)?;
        }
        for path in staging.emptied {
            kpack_dir::remove(&path)?;
            report.removed.push(path);
        }
        let mut directories = BTreeSet::new();
        for host in staging.hosts {
            directories.extend(host.path().parent().map(Path::to_owned));
            host.commit()?;
        }
        for changed in &directories {
            kpack_dir::sync_directory(changed)?;
        }
        Ok(())
    }
}

/// The directories above and at `path` that are not there, the deepest first.
fn missing_directories(path: &Path) -> Vec<PathBuf> {
    let missing = path.ancestors().take_while(|directory| !directory.exists());
    missing.map(Path::to_owned).collect()
}
