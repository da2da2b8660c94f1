//! A plan, carried out: files are copied while code objects are compressed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::KernelName;

use super::Options;
use super::copy::{self, Counts, set_time};
use super::manifests;
use super::modules::{FatBinary, Module};
use super::plan::Plan;
use super::report::{ArtifactReport, Report};
use super::stage::Stage;
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::input;
use crate::install::{ArchiveReport, Progress};
use crate::parallel::{self, lock};
use crate::split::{self, Budget, Compression, DeviceCode};
use crate::store::{self, Directory, StagedFile, make_directories, stage_archive, stage_manifest};

/// Writes the split artifacts.
pub(super) fn apply(
    options: &Options,
    plan: &Plan,
    budget: &Budget,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<(), Error> {
    progress.start(copy::bytes(&plan.items));

    let stage = Stage::lock(options)?;
    let work = Work {
        options,
        plan,
        stage: &stage,
        budget,
        progress,
    };
    let targets = work.write(report)?;
    let targets: Vec<_> = targets.iter().collect();
    match plan.generic {
        Some(_) => stage.commit(&targets),
        None => stage.commit_beside(&targets),
    }
}

/// What is written into the stage.
struct Work<'a> {
    options: &'a Options,
    plan: &'a Plan,
    stage: &'a Stage,
    budget: &'a Budget,
    progress: &'a dyn Progress,
}

impl Work<'_> {
    /// Writes everything. Gives the targets that there is an artifact for.
    fn write(&self, report: &mut Report) -> Result<Vec<TargetId>, Error> {
        let mut targets: Vec<&TargetId> = self.plan.targets.kept.iter().collect();
        self.stage.check(&targets, self.plan, report)?;
        for prefix in self.plan.generic.iter().flatten() {
            make_directories(&self.stage.artifact(None).join(prefix))?;
        }
        if self.plan.generic.is_some() {
            // There may be no prefix in it.
            make_directories(&self.stage.artifact(None))?;
        }
        let (mut counts, archives) = self.write_files()?;
        for (target, line) in archives {
            let count = counts.entry(target).or_default();
            count.files += 1;
            count.size += line.as_ref().map_or(0, |line: &ArchiveReport| line.size);
            count.archives += u64::from(line.is_some());
            report.archives.extend(line);
        }
        report.archives.sort_by(|a, b| a.path.cmp(&b.path));
        targets.retain(|target| counts.contains_key(&Some((*target).clone())));
        if self.plan.generic.is_some() {
            counts.entry(None).or_default();
        }
        self.finish(counts, report)?;
        Ok(targets.into_iter().cloned().collect())
    }

    /// Copies what stays as it is, while modules are split: where one waits for its last code object,
    /// another goes on.
    fn write_files(&self) -> Result<(Counts, Vec<Line>), Error> {
        let modules = self.plan.modules.iter().enumerate().map(Some);
        let work: Vec<Option<(usize, &Module)>> = [None].into_iter().chain(modules).collect();
        let written = parallel::try_map(work, |module| match module {
            None => Ok((
                copy::copy(self.plan, self.stage, self.progress)?,
                Vec::new(),
            )),
            Some((index, module)) => self.module(index, module),
        })?;
        let mut counts = Counts::new();
        let mut lines = Vec::new();
        for (copied, archives) in written {
            for (target, more) in copied {
                *counts.entry(target).or_default() += more;
            }
            lines.extend(archives);
        }
        Ok((counts, lines))
    }

    /// Splits a module, and writes its host binaries, whose markers depend on its device code.
    fn module(&self, index: usize, module: &Module) -> Result<(Counts, Vec<Line>), Error> {
        let mut lines = Vec::new();
        let wanted = |target: &TargetId| self.plan.targets.keeps(target);
        let binaries = module.binaries.iter();
        let sources: Vec<(String, &DeviceCode)> = binaries
            .map(|binary| (binary.name.clone(), &binary.file.code))
            .collect();
        let compression = Compression {
            group: &module.group,
            scheme: self.options.scheme,
            level: self.options.level,
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
        let binaries = module.binaries.iter();
        let plans = binaries.map(|binary| binary.plan_for(&archives));
        let plans = plans.collect::<Result<_, Error>>()?;
        let counts = copy::hosts(self.plan, self.stage, self.progress, (index, plans))?;
        let time = newest(module)?;
        let mut entries = self.present(module)?;
        let written = parallel::try_map(archives, |(target, archive)| {
            self.archive(module, target, archive, time)
        })?;
        for (target, path, file) in written {
            lines.push((
                Some(target.clone()),
                Some(ArchiveReport {
                    path,
                    target: target.to_string(),
                    size: file.size,
                    kernel_count: file.kernel_count,
                    changed: true,
                }),
            ));
            entries.insert(target.to_string(), file);
        }
        if entries.is_empty() {
            return Ok((counts, lines));
        }
        let manifest = Manifest {
            component_name: module.group.to_string(),
            prefix: module.kpacks.manifest_prefix.clone(),
            kpack_files: entries,
        };
        let directory = self.kpack_dir(module, None)?;
        let name = module.group.manifest();
        let staged = stage_manifest(&directory, name.as_ref(), &manifest)?;
        finish(staged, time)?;
        lines.push((None, None));
        Ok((counts, lines))
    }

    /// The manifest's entries for archives that were there before.
    fn present(&self, module: &Module) -> Result<BTreeMap<String, KpackFile>, Error> {
        let mut entries = match &module.manifest {
            Some(path) => {
                let mut manifest = input::read_manifest(path)?;
                manifests::retain(&mut manifest, &self.plan.targets);
                manifest.kpack_files
            }
            None => BTreeMap::new(),
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
        Ok(entries)
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
                module.binaries.iter().any(|binary| binary.name == name)
            };
            let mut present: kpack_format::archive::Archive<BufReader<File>> =
                input::open_archive(path)?;
            let merged = archive.merge(&mut present, |kernel| !replaced(kernel));
            merged.map_err(|error| Error::archive(path, "merge", error))?;
        }
        let directory = self.kpack_dir(module, Some(&target))?;
        let name = module.group.archive(&target);
        let (staged, written) = stage_archive(&directory, name.as_ref(), archive)?;
        finish(staged, time)?;
        let final_path = self.stage.output(Some(&target)).join(&module.prefix);
        let final_path = final_path.join(&module.kpacks.name).join(&name);
        let entry = store::entry(&target, name, &written);
        Ok((target, final_path, entry))
    }

    /// The module's kpack directory in an artifact.
    fn kpack_dir(
        &self,
        module: &Module,
        target: Option<&TargetId>,
    ) -> Result<Arc<Directory>, Error> {
        let artifact = self.stage.artifact(target);
        let path = artifact.join(&module.prefix).join(&module.kpacks.name);
        make_directories(&path)?;
        Directory::open(&path).map(Arc::new)
    }

    /// Lists the prefixes of each artifact, marks it, and makes directories what they are in the input.
    fn finish(&self, counts: Counts, report: &mut Report) -> Result<(), Error> {
        for (target, mut count) in counts {
            let input = self.plan.sources.like(target.as_ref());
            let time = modified(&input.join(manifest_txt::FILE_NAME))?;
            let artifact = self.stage.artifact(target.as_ref());
            let prefixes = self.plan.prefixes.iter();
            let prefixes = prefixes.filter(|prefix| artifact.join(prefix).is_dir());
            let text = manifest_txt::to_text(prefixes).into_bytes();
            let mark = mark::to_bytes(&self.options.databases);
            for (name, bytes) in [(manifest_txt::FILE_NAME, text), (mark::FILE_NAME, mark)] {
                let path = artifact.join(name);
                let (staged, ()) = StagedFile::write(&path, |staged| {
                    let written = staged.file().write_all(&bytes);
                    written.map_err(|e| Error::io(&path, "write", e))
                })?;
                finish(staged, time)?;
                count.files += 1;
                count.size += bytes.len() as u64;
            }
            copy::directories(&artifact, input)?;
            report.size_after += count.size;
            report.artifacts.push(ArtifactReport {
                path: self.stage.output(target.as_ref()),
                target: target.map(|target| target.to_string()),
                files: count.files,
                size: count.size,
                archives: count.archives,
            });
        }
        report.prefixes.clone_from(&self.plan.prefixes);
        Ok(())
    }
}

/// Tells of code objects as of what they take in the input, which may be compressed.
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
    /// Padding, and what is left out, are read as well.
    fn finish(&self) {
        let told = lock(&self.read).1;
        self.progress.advance(self.in_files.saturating_sub(told));
    }
}

/// An archive that was written for a target, or, without either, the manifest.
type Line = (Option<TargetId>, Option<ArchiveReport>);

/// Gives a file its name and its time.
fn finish(staged: StagedFile, time: SystemTime) -> Result<(), Error> {
    let set = set_time(staged.file(), time);
    set.map_err(|e| Error::io(staged.path(), "set the time of", e))?;
    staged.commit().map(drop)
}

/// When the newest of a module's binaries changed. What is made of them is as old as they are, so
/// that the same input gives the same artifacts.
fn newest(module: &Module) -> Result<SystemTime, Error> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for binary in &module.binaries {
        newest = newest.max(modified(&binary.file.code.path)?);
    }
    Ok(newest)
}

fn modified(path: &Path) -> Result<SystemTime, Error> {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.map_err(|e| Error::io(path, "read", e))
}
