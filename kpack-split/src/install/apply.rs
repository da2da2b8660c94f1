//! Writes the results into the prefix: everything under hidden names first, then renamed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Written};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::{Group, KernelName};

use super::binary::InstallBinary;
use super::options::{InstallOptions, Only};
use super::plans::HostPlans;
use crate::input::{KpackPath, open};
use crate::publish::{Batch, Directory, KpackDir, StagedFile, Transaction, Update};
use crate::report::Report;
use crate::split::Presplit;
use crate::{Error, ids};

/// The changes to make in the prefix.
pub(super) struct InstallRun<'a> {
    pub(super) options: &'a InstallOptions,
    /// The prefix.
    pub(super) root: &'a Directory,
    pub(super) kpacks: &'a KpackPath,
    pub(super) group: &'a Group,
    pub(super) wants: &'a (dyn Fn(&TargetId) -> bool + Sync),
    pub(super) fat: &'a [&'a InstallBinary],
}

impl InstallRun<'_> {
    /// Writes all new files under hidden names, then renames them.
    pub(super) fn apply(
        &self,
        archives: BTreeMap<TargetId, ArchiveWriter<File>>,
        plans: &HostPlans,
        debug_files: Option<Batch>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let kpacks = Path::new(&self.kpacks.name);
        let mut transaction = Transaction::begin(self.root, kpacks, self.group)?;
        let directory = transaction.directory();
        let mut manifest = self.manifest(directory, report)?;
        let writes_manifest = self.writes_manifest(directory)?;
        let replaces = |target: &TargetId, kernel: &str| self.is_replaced(target, kernel);
        let update = Update {
            replaces: &replaces,
            touches: &|target| self.options.only != Some(Only::Device) || (self.wants)(target),
            only_computed: self.options.only == Some(Only::Host),
        };
        for (target, archive) in &archives {
            for text in archive.beyond_other_readers() {
                let name = transaction.directory().archive_name(target);
                report.note(ids::BEYOND_OTHER_READERS, self.kpacks.path.join(name), text);
            }
        }
        for (written, before) in transaction.archives(&update, archives, &mut manifest)? {
            self.warn_of_fewer(before.as_ref(), &written, report);
        }
        if writes_manifest {
            transaction.manifest(&manifest)?;
            if self.options.only != Some(Only::Host) {
                transaction.fragments(&manifest)?;
            }
        }
        self.hosts(&mut transaction, plans, report)?;
        transaction.beside(debug_files);
        transaction.commit(report)
    }

    /// Writes the host binaries, each with the attributes of the one it replaces.
    fn hosts(
        &self,
        transaction: &mut Transaction,
        plans: &HostPlans,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut directories: BTreeMap<&Path, Arc<Directory>> = BTreeMap::new();
        for binary in self.fat {
            let path = &binary.located.path;
            let Some(plan) = plans.get(path) else {
                continue;
            };
            let opened = binary.fat().map(|fat| match fat.code.path == *path {
                true => fat.code.open(),
                false => open(path),
            });
            let opened = opened.transpose()?;
            let presplit = binary.presplit.as_ref().map(Presplit::file);
            let Some(old) = opened.as_ref().or(presplit) else {
                continue;
            };
            let name = Path::new(&binary.located.name);
            let parent = name.parent().unwrap_or(Path::new(""));
            let directory = match directories.entry(parent) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(Arc::new(self.root.below(parent)?)),
            };
            let file_name = name.file_name().unwrap_or_default();
            let mut staged = StagedFile::create(Arc::clone(directory), file_name)?;
            staged.replaces(old)?;
            // Check now, before writing much in vain; the file is checked again before the rename.
            staged.check()?;
            let ((), lost) = staged.fill(old, |file| plan.write(path, old, file))?;
            for lost in lost {
                report.warn(ids::ATTRIBUTE_LOST, path, lost);
            }
            transaction.host(staged);
        }
        Ok(())
    }

    /// Whether a kernel belongs to one of the binaries being split.
    fn is_replaced(&self, target: &TargetId, kernel: &str) -> bool {
        let name = KernelName::parse(kernel).binary;
        let mut named = self.fat.iter().filter(|fat| fat.located.name == name);
        named.any(|binary| binary.fat().is_none_or(|fat| fat.replaces(target)))
    }

    /// The manifest to start from: the existing one. It keeps its entries for missing archives,
    /// which may be in separate packages.
    fn manifest(&self, directory: &KpackDir, report: &mut Report) -> Result<Manifest, Error> {
        let old = match directory.manifest() {
            Ok(old) => old,
            Err(Error::Refused { path, reason, .. }) => {
                report.warn(ids::DAMAGED_MANIFEST, path, format!("{reason}; it is rewritten"));
                None
            }
            Err(error) => return Err(error),
        };
        let mut new = Manifest::new(self.group.to_string(), &self.kpacks.manifest_prefix);
        new.install_hint = self.options.install_hint.clone();
        if let Some(old) = old {
            new.kpack_files = old.kpack_files;
            new.install_hint = new.install_hint.or(old.install_hint);
        }
        Ok(new)
    }

    /// Warns if an archive loses kernels: archives elsewhere cannot be merged, so kernels of
    /// binaries not named in this run are lost.
    fn warn_of_fewer(&self, old: Option<&KpackFile>, written: &Written, report: &mut Report) {
        if let Some(old) = old.filter(|old| old.kernel_count > written.kernel_count) {
            report.warn(
                ids::FEWER_KERNELS,
                self.kpacks.path.join(&old.filename),
                format!(
                    "the manifest lists {} kernels, the archive has {}; name every binary of \
                     the module in one run, and pass the same `--complete-variants` to `--only host` \
                     and `--only device`",
                    old.kernel_count, written.kernel_count
                ),
            );
        }
    }

    /// Whether to write the manifest. A run for device code alone leaves it to the run for host
    /// binaries.
    fn writes_manifest(&self, directory: &KpackDir) -> Result<bool, Error> {
        let with_hosts = self.options.only != Some(Only::Device);
        let host_is_here = || self.fat.iter().any(|binary| binary.located.path.exists());
        Ok(with_hosts || host_is_here() || matches!(directory.manifest(), Ok(Some(_))))
    }
}
