//! Carries out a plan: copies files while code objects are compressed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::KernelName;
use walkdir::WalkDir;

use super::Options;
use super::manifests;
use super::modules::{FatBinary, Module};
use super::plan::Placement;
use super::report::{ArtifactReport, Report};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::artifact::names;
use crate::artifact::output::{EntrySource, Output};
use crate::artifact::stage::Stage;
use crate::artifact::writer::{commit_with_time, modified};
use crate::elf::ElfError;
use crate::input;
use crate::parallel::{self, lock};
use crate::report::{ArchiveReport, Progress};
use crate::split::{self, Budget, Compression, DeviceCode};
use crate::store::{self, Directory, make_directories, stage_archive, stage_manifest};

pub(super) fn apply(
    options: &Options,
    plan: &Placement,
    budget: &Budget,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<(), Error> {
    progress.start(plan.bytes());
    let stage = Stage::lock(&options.output_dir, &options.artifact_prefix)?;
    let work = Work {
        options,
        plan,
        stage: &stage,
        budget,
        progress,
    };
    work.check_output(report)?;
    let archives = work.write_files()?;
    work.finish(archives, report)?;
    let generic = plan.artifacts.get(&None).map(|_| work.name(None));
    let targets = plan.artifacts.keys().flatten();
    let targets: Vec<String> = targets.map(|target| work.name(Some(target))).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    stage.publish(&targets, generic.as_deref())
}

struct Work<'a> {
    options: &'a Options,
    plan: &'a Placement,
    stage: &'a Stage,
    budget: &'a Budget,
    progress: &'a dyn Progress,
}

/// A file that was written with new device code: an archive, or a manifest.
struct Written {
    target: Option<TargetId>,
    size: u64,
    archive: Option<ArchiveReport>,
}

/// What threads do beside one another: where a module waits for its last code object, another goes on.
enum Task<'a> {
    Copy(&'a Option<TargetId>, &'a Output),
    Module(usize, &'a Module),
}

impl Work<'_> {
    fn name(&self, target: Option<&TargetId>) -> String {
        names::artifact(&self.options.artifact_prefix, target)
    }

    /// Refuses to replace what kpack did not write, and names what an earlier run wrote for targets
    /// that there is nothing for now.
    fn check_output(&self, report: &mut Report) -> Result<(), Error> {
        let artifacts = &self.plan.artifacts;
        let generic = self.stage.output(&self.name(None));
        let is_empty = artifacts
            .get(&None)
            .is_some_and(|output| !output.has_files());
        if artifacts.len() > 1 && is_empty && has_more_than_list(&generic) {
            return Err(Error::refused(
                &generic,
                "it would be replaced by an empty one, because the input has only device code \
                 that an earlier run split off",
            ));
        }
        for target in artifacts.keys() {
            mark::check_replaceable(&self.stage.output(&self.name(target.as_ref())))?;
        }
        let output = &self.options.output_dir;
        for entry in fs::read_dir(output).map_err(|e| Error::io(output, "list", e))? {
            let path = entry.map_err(|e| Error::io(output, "list", e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some((prefix, Some(target))) = names::parse(&name)
                && prefix == self.options.artifact_prefix
                && (name != self.name(Some(&target)) || !artifacts.contains_key(&Some(target)))
            {
                let text = "stale: an earlier run wrote it, and this one does not";
                report.warn(&path, text);
            }
        }
        Ok(())
    }

    /// Copies what stays as it is, and splits the modules. Returns what was written with new device
    /// code.
    fn write_files(&self) -> Result<Vec<Written>, Error> {
        let copies = self.plan.artifacts.iter();
        let copies = copies.map(|(target, output)| Task::Copy(target, output));
        let modules = self.plan.modules.iter().enumerate();
        let modules = modules.map(|(index, module)| Task::Module(index, module));
        let tasks: Vec<Task<'_>> = copies.chain(modules).collect();
        let written = parallel::try_map(tasks, |task| match task {
            Task::Copy(target, output) => {
                let name = self.name(target.as_ref());
                self.stage.write(&name, output, self.progress)?;
                Ok(Vec::new())
            }
            Task::Module(index, module) => self.module(index, module),
        })?;
        Ok(written.into_iter().flatten().collect())
    }

    /// Splits a module, and writes its host binaries, whose markers depend on its device code.
    fn module(&self, index: usize, module: &Module) -> Result<Vec<Written>, Error> {
        let archives = self.compress(module)?;
        self.hosts(index, module, &archives)?;
        let time = newest(module)?;
        let mut manifest = self.present(module)?;
        let mut written = Vec::new();
        for (target, path, file) in parallel::try_map(archives, |(target, archive)| {
            self.archive(module, target, archive, time)
        })? {
            written.push(Written {
                target: Some(target.clone()),
                size: file.size,
                archive: Some(ArchiveReport {
                    path,
                    target: target.to_string(),
                    size: file.size,
                    kernel_count: file.kernel_count,
                    changed: true,
                }),
            });
            manifest.kpack_files.insert(target.to_string(), file);
        }
        // Without archives, it says that none is missing.
        let directory = self.kpack_dir(module, None)?;
        let name = module.group.manifest();
        let staged = stage_manifest(&directory, name.as_ref(), &manifest)?;
        commit_with_time(staged, time)?;
        written.push(Written {
            target: None,
            size: manifest.to_bytes().len() as u64,
            archive: None,
        });
        Ok(written)
    }

    fn compress(&self, module: &Module) -> Result<BTreeMap<TargetId, ArchiveWriter<File>>, Error> {
        let wanted = |target: &TargetId| self.plan.targets.keeps(target);
        let binaries = module.binaries.iter();
        let sources: Vec<(String, &DeviceCode)> = binaries
            .map(|binary| (binary.name.clone(), &binary.file.code))
            .collect();
        let compression = Compression {
            group: &module.group,
            storage: self.options.storage,
            scratch: self.stage.path(),
            budget: self.budget,
        };
        let shares = module.binaries.iter().map(FatBinary::device_share);
        let sizes = sources.iter().map(|(_, code)| code.device_size(&wanted));
        let progress = OfFiles {
            progress: self.progress,
            in_files: shares.sum(),
            unpacked: sizes.fold(0, u64::saturating_add),
            read: Mutex::default(),
        };
        let archives = split::compress(&sources, &wanted, &compression, &progress)?;
        progress.finish();
        Ok(archives)
    }

    /// Writes the host binaries of a module, with the IDs of its device code.
    fn hosts(
        &self,
        index: usize,
        module: &Module,
        archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    ) -> Result<(), Error> {
        let binaries = module.binaries.iter();
        let plans: Vec<_> = binaries
            .map(|binary| binary.plan_for(archives))
            .collect::<Result<_, Error>>()?;
        let mut writer = self.stage.writer(&self.name(None))?;
        let generic = self.plan.artifacts.get(&None);
        for (path, source) in generic.iter().flat_map(|output| &output.entries) {
            let EntrySource::Host(host) = source else {
                continue;
            };
            if host.module != index {
                continue;
            }
            self.progress.file(path);
            let (binary, plan) = (&module.binaries[host.binary], &plans[host.binary]);
            let size = writer.file(path, &host.from, |from, output, to| {
                let applied = plan.apply(&binary.file.code.open()?, output);
                applied.map_err(|error| match error {
                    ElfError::Io(error) => Error::io(to, "write", error),
                    error => input::elf_error(from, error),
                })?;
                Ok(plan.output_size())
            })?;
            let file_size = binary.file.code.file_size();
            self.progress.advance(size.min(file_size));
        }
        Ok(())
    }

    /// The module's manifest, with entries for archives that were there before.
    fn present(&self, module: &Module) -> Result<Manifest, Error> {
        let (mut entries, hint) = match &module.manifest {
            Some(path) => {
                let mut manifest = input::read_manifest(path)?;
                manifests::retain(&mut manifest, &self.plan.targets);
                (manifest.kpack_files, manifest.install_hint)
            }
            None => Default::default(),
        };
        let present = module.present.iter();
        for (target, path) in present.filter(|(target, _)| self.plan.targets.keeps(target)) {
            let key = target.to_string();
            let present = store::Present {
                path: path.clone(),
                archive: input::open_archive(path)?,
            };
            let name = module.group.archive(target);
            let entry = store::entry_of(target, name, &present, entries.get(&key))?;
            entries.insert(key, entry);
        }
        Ok(Manifest {
            component_name: module.group.to_string(),
            prefix: module.kpacks.manifest_prefix.clone(),
            kpack_files: entries,
            install_hint: self.options.install_hint.clone().or(hint),
        })
    }

    /// Writes an archive, merged with the one of binaries that were split before.
    fn archive(
        &self,
        module: &Module,
        target: TargetId,
        mut archive: ArchiveWriter<File>,
        time: SystemTime,
    ) -> Result<(TargetId, PathBuf, KpackFile), Error> {
        if let Some(path) = module.present.get(&target) {
            let replaced = |kernel: &str| {
                let name = KernelName::parse(kernel).binary;
                let mut named = module.binaries.iter().filter(|binary| binary.name == name);
                named.any(|binary| binary.file.replaces(&target))
            };
            let mut present = input::open_archive(path)?;
            let merged = archive.merge(&mut present, |kernel| !replaced(kernel));
            merged.map_err(|error| Error::archive(path, "merge", error))?;
        }
        let directory = self.kpack_dir(module, Some(&target))?;
        let name = module.group.archive(&target);
        let (staged, written) = stage_archive(&directory, name.as_ref(), archive)?;
        commit_with_time(staged, time)?;
        let artifact = self.stage.output(&self.name(Some(&target)));
        let final_path = artifact.join(module.kpack_dir()).join(&name);
        let entry = store::entry(&target, name, &written);
        Ok((target, final_path, entry))
    }

    /// The module's kpack directory in an artifact.
    fn kpack_dir(
        &self,
        module: &Module,
        target: Option<&TargetId>,
    ) -> Result<Arc<Directory>, Error> {
        let artifact = self.stage.artifact(&self.name(target));
        let path = artifact.join(module.kpack_dir());
        make_directories(&path)?;
        Directory::open(&path).map(Arc::new)
    }

    /// Finishes each artifact, and reports what it has.
    fn finish(&self, written: Vec<Written>, report: &mut Report) -> Result<(), Error> {
        for (target, output) in &self.plan.artifacts {
            let name = self.name(target.as_ref());
            let (files, size) = self.stage.finish(&name, output)?;
            let new = || written.iter().filter(|file| file.target == *target);
            let archives = new().filter(|file| file.archive.is_some()).count() as u64;
            let artifact = ArtifactReport {
                path: self.stage.output(&name),
                target: target.as_ref().map(TargetId::to_string),
                files: output.files + files + new().count() as u64,
                size: output.size + size + new().map(|file| file.size).sum::<u64>(),
                archives: output.archives + archives,
            };
            report.size_after += artifact.size;
            report.artifacts.push(artifact);
        }
        let archives = written.into_iter().filter_map(|file| file.archive);
        report.archives.extend(archives);
        report.archives.sort_by(|a, b| a.path.cmp(&b.path));
        report.prefixes.clone_from(&self.plan.prefixes);
        Ok(())
    }
}

/// Whether there are files in an artifact besides its list of prefixes, and below directories.
fn has_more_than_list(artifact: &Path) -> bool {
    let mut entries = WalkDir::new(artifact).min_depth(1).into_iter().flatten();
    entries.any(|entry| {
        let within = entry.path().strip_prefix(artifact);
        !entry.file_type().is_dir() && !within.is_ok_and(manifest_txt::is_of_artifact)
    })
}

/// Reports progress in bytes of the input, which may be compressed.
struct OfFiles<'a> {
    progress: &'a dyn Progress,
    in_files: u64,
    unpacked: u64,
    /// Unpacked bytes so far, and what was told.
    read: Mutex<(u64, u64)>,
}

impl Progress for OfFiles<'_> {
    fn advance(&self, bytes: u64) {
        let mut read = lock(&self.read);
        read.0 += bytes;
        let part = u128::from(self.in_files) * u128::from(read.0);
        let now = (part / u128::from(self.unpacked.max(1))) as u64;
        self.progress.advance(now.saturating_sub(read.1));
        read.1 = now.max(read.1);
    }
}

impl OfFiles<'_> {
    /// Padding and skipped code objects are read as well.
    fn finish(&self) {
        let told = lock(&self.read).1;
        self.progress.advance(self.in_files.saturating_sub(told));
    }
}

/// When the newest of a module's binaries changed. What is made of them is as old as they are, so
/// that the same input gives the same artifacts.
fn newest(module: &Module) -> Result<SystemTime, Error> {
    let mut binaries = module.binaries.iter();
    binaries.try_fold(SystemTime::UNIX_EPOCH, |newest, binary| {
        Ok(newest.max(modified(&binary.file.code.path)?))
    })
}
