//! Carries out a plan: copies files while code objects are compressed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::KernelName;

use super::modules::Module;
use super::plan::ArtifactPlan;
use super::report::{ArtifactReport, SplitReport};
use super::{Layout, Options};
use crate::manifest_txt;
use crate::mark;
use crate::names;
use crate::output::OutputTree;
use crate::writer::{self, Writer, commit_with_time, modified};
use kpack_core::parallel;
use kpack_core::publish::{self, Directory, NewNames, Stage, stage_archive, stage_manifest};
use kpack_core::report::{ArchiveReport, Progress};
use kpack_core::{Error, Finding, ids};
use kpack_split::elf::BinaryError;
use kpack_split::input;
use kpack_split::leftover::directories;
use kpack_split::split::{self, Budget, CompressedArchives, Compression, DebugFiles, PackedCode};

/// Writes and publishes what is planned. `budget` limits the memory for code objects in flight, and may be shared.
pub(super) fn apply(
    options: &Options,
    mut plan: ArtifactPlan,
    budget: &Budget,
    progress: &dyn Progress,
) -> Result<SplitReport, Error> {
    progress.start(plan.bytes());
    let mut report = mem::take(&mut plan.report);
    let stage = Stage::lock(&options.output_dir, &options.artifact_prefix)?;
    refuse_loss(&plan, &stage)?;
    report_stale(options, &plan, &mut report)?;
    let may_replace =
        |name: &Path| mark::check_replaceable_with(stage.above(), name, options.replace_artifacts);
    for output in plan.artifacts.values() {
        may_replace(output.name.as_ref())?;
    }
    let debug_files = DebugFiles::new(&options.storage.debug, true);
    let work =
        Work { options, debug_files: &debug_files, plan: &plan, stage: &stage, budget, progress };
    // Modules wait for their last code object, so others are copied or split meanwhile.
    let copies = plan.artifacts.values().map(Task::Copy);
    let tasks = Vec::from_iter(copies.chain(plan.modules.iter().map(Task::Module)));
    let written = parallel::try_map(tasks, |task| match task {
        Task::Copy(output) => writer::write(&stage, output, progress).map(|()| None),
        Task::Module(module) => work.module(module).map(Some),
    })?;
    work.finish(written.into_iter().flatten().collect(), &mut report)?;
    debug_files.publish()?;
    let names = |is_generic: bool| {
        let own = plan.artifacts.iter().filter(move |(target, _)| target.is_none() == is_generic);
        Vec::from_iter(own.map(|(_, output)| output.name.as_str()))
    };
    let (targets, generic) = (names(false), names(true));
    stage.publish(&NewNames::new(&targets).with_last(&generic).where_allowed(&may_replace))?;
    Ok(report)
}

struct Work<'a> {
    options: &'a Options,
    debug_files: &'a DebugFiles,
    plan: &'a ArtifactPlan,
    stage: &'a Stage,
    budget: &'a Budget,
    progress: &'a dyn Progress,
}

/// What was written for a module besides its host binaries.
struct WrittenModule {
    findings: Vec<Finding>,
    archives: Vec<ArchiveReport>,
    /// The size of its manifest, if it has one.
    manifest: Option<u64>,
}

/// A task of one thread: all tasks of an artifact write different files.
enum Task<'a> {
    Copy(&'a OutputTree),
    Module(&'a Module),
}

impl Work<'_> {
    /// The name of the artifact of a target, or of the generic one.
    fn name(&self, target: Option<&TargetId>) -> String {
        names::artifact(&self.options.artifact_prefix, target)
    }

    /// Splits a module, and writes its host binaries, whose markers depend on its device code.
    fn module(&self, module: &Module) -> Result<WrittenModule, Error> {
        let CompressedArchives { archives, debug } = self.compress(module)?;
        let input = self.options.artifact_dir.join(&module.prefix);
        let mut findings = debug.findings(&self.options.storage.debug, &input);
        findings.extend(split::variants::warnings(&archives, &BTreeMap::new(), |name| {
            input.join(name)
        }));
        self.hosts(module, &archives)?;
        let time = newest(module)?;
        let mut entries = BTreeMap::new();
        let mut written = Vec::new();
        for (target, archive, file) in parallel::try_map(archives, |(target, archive)| {
            self.archive(module, target, archive, time)
        })? {
            entries.insert(target.to_string(), file);
            written.push(archive);
        }
        let manifest = match self.options.layout {
            Layout::Module => Some(self.manifest(module, entries, time)?),
            // Machines that build for other targets write the same generic artifact, and the last one's is
            // kept: a list of this one's archives would be wrong.
            Layout::Artifact => None,
        };
        Ok(WrittenModule { findings, archives: written, manifest })
    }

    /// Writes the manifest of a module with these new archives. Returns its size. Without archives, it says
    /// that none is missing.
    fn manifest(
        &self,
        module: &Module,
        entries: BTreeMap<String, KpackFile>,
        time: SystemTime,
    ) -> Result<u64, Error> {
        let mut manifest = self.present(module)?;
        manifest.kpack_files.extend(entries);
        let directory = self.kpack_dir(module, None)?;
        let name = module.group.manifest();
        let staged = stage_manifest(&directory, name.as_ref(), &manifest)?;
        commit_with_time(staged, time)?;
        Ok(manifest.to_bytes().len() as u64)
    }

    fn compress(&self, module: &Module) -> Result<CompressedArchives, Error> {
        let wanted = |target: &TargetId| self.plan.targets.keeps(target);
        let binaries = module.binaries.iter();
        let sources: Vec<(String, &PackedCode)> =
            binaries.map(|binary| (binary.name.clone(), &binary.file.code)).collect();
        let compression = Compression {
            group: &module.group,
            storage: self.options.storage.clone(),
            scratch: &self.stage.directory().anchor(),
            budget: self.budget,
            flushes: true,
            debug_files: self.debug_files,
        };
        split::compress(&sources, &wanted, &compression, self.progress)
    }

    /// Writes the host binaries of a module, with the IDs of its device code.
    fn hosts(
        &self,
        module: &Module,
        archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    ) -> Result<(), Error> {
        let mut writer = Writer::new(self.stage.make(self.name(None))?);
        for binary in &module.binaries {
            let plan = binary.plan_for(archives)?;
            for (path, from) in &binary.files {
                self.progress.file(path);
                let size = writer.file(path, from, |from, output, to| {
                    let applied = plan.apply(&binary.file.code.open()?, output);
                    applied.map_err(|error| match error {
                        BinaryError::Io(error) => Error::io(to, "write", error),
                        error => input::binary_error(from, error),
                    })?;
                    Ok(plan.output_size())
                })?;
                let file_size = binary.file.code.file_size();
                self.progress.advance(size.min(file_size));
            }
        }
        Ok(())
    }

    /// The module's manifest, with entries for archives that were there before.
    fn present(&self, module: &Module) -> Result<Manifest, Error> {
        let (mut entries, hint) = match &module.manifest {
            Some(path) => {
                let mut manifest = input::read_manifest(path)?;
                self.plan.targets.retain(&mut manifest);
                (manifest.kpack_files, manifest.install_hint)
            }
            None => Default::default(),
        };
        let present = module.present.iter();
        for (target, path) in present.filter(|(target, _)| self.plan.targets.keeps(target)) {
            let key = target.to_string();
            let present =
                publish::Present { path: path.clone(), archive: input::open_archive(path)? };
            let name = module.archive_name(target);
            let entry = publish::entry_of(target, name, &present, entries.get(&key))?;
            entries.insert(key, entry);
        }
        let mut manifest = Manifest::new(module.group.to_string(), &module.kpacks.manifest_prefix);
        manifest.kpack_files = entries;
        manifest.install_hint = self.options.install_hint.clone().or(hint);
        Ok(manifest)
    }

    /// Writes an archive, merged with the one of binaries that were split before.
    fn archive(
        &self,
        module: &Module,
        target: TargetId,
        mut archive: ArchiveWriter<File>,
        time: SystemTime,
    ) -> Result<(TargetId, ArchiveReport, KpackFile), Error> {
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
        let name = module.archive_name(&target);
        let (staged, written) = stage_archive(&directory, name.as_ref(), archive)?;
        commit_with_time(staged, time)?;
        let artifact = self.stage.output(self.name(Some(&target)));
        let final_path = artifact.join(module.kpack_dir()).join(&name);
        let report = ArchiveReport::written(final_path, &target, &written);
        let entry = publish::entry(&target, name, &written);
        Ok((target, report, entry))
    }

    /// The module's kpack directory in an artifact.
    fn kpack_dir(
        &self,
        module: &Module,
        target: Option<&TargetId>,
    ) -> Result<Arc<Directory>, Error> {
        let path = Path::new(&self.name(target)).join(module.kpack_dir());
        self.stage.make(path).map(Arc::new)
    }

    /// Finishes each artifact, and reports what it has.
    fn finish(&self, written: Vec<WrittenModule>, report: &mut SplitReport) -> Result<(), Error> {
        for (target, output) in &self.plan.artifacts {
            let (files, size) = writer::finish(self.stage, output)?;
            let path = self.stage.output(&output.name);
            let archives: Vec<u64> = written
                .iter()
                .flat_map(|module| &module.archives)
                .filter(|archive| archive.path.starts_with(&path))
                .map(|archive| archive.size)
                .collect();
            let manifests: Vec<u64> = written
                .iter()
                .filter(|_| target.is_none())
                .filter_map(|module| module.manifest)
                .collect();
            let artifact = ArtifactReport {
                path,
                target: target.as_ref().map(TargetId::to_string),
                files: output.files + files + (archives.len() + manifests.len()) as u64,
                size: output.size + size + archives.iter().chain(&manifests).sum::<u64>(),
                archives: output.archives + archives.len() as u64,
            };
            report.size_after += artifact.size;
            report.artifacts.push(artifact);
        }
        for module in written {
            report.findings.extend(module.findings);
            report.archives.extend(module.archives);
        }
        report.archives.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }
}

/// Refuses to replace host files with an empty generic artifact.
fn refuse_loss(plan: &ArtifactPlan, stage: &Stage) -> Result<(), Error> {
    let generic = plan.artifacts.get(&None).filter(|_| plan.artifacts.len() > 1);
    let Some(generic) = generic.filter(|generic| !generic.has_files()) else {
        return Ok(());
    };
    let path = stage.output(&generic.name);
    if !has_files(&path)? {
        return Ok(());
    }
    let reason = "would be replaced by an empty one, because the input has only device code \
                  that an earlier run split off";
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &path, reason))
}

/// Names what an earlier run wrote for targets that there is nothing for now.
fn report_stale(
    options: &Options,
    plan: &ArtifactPlan,
    report: &mut SplitReport,
) -> Result<(), Error> {
    for path in directories(&options.output_dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some((prefix, Some(_))) = names::parse(&name)
            && prefix == options.artifact_prefix
            && !plan.artifacts.values().any(|output| output.name == name)
        {
            let text = "stale: an earlier run wrote it, and this one does not";
            report.warn(ids::STALE_ARTIFACT, &path, text);
        }
    }
    Ok(())
}

/// Whether an artifact directory, which may be missing, has files. What cannot be listed may be some.
fn has_files(artifact: &Path) -> Result<bool, Error> {
    for entry in manifest_txt::walk_outside(artifact, &[]) {
        match entry {
            Ok(entry) if entry.file_type().is_dir() => {}
            Ok(_) => return Ok(true),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// When the newest of a module's binaries changed. What is made of them is as old as they are, so
/// that the same input gives the same artifacts.
fn newest(module: &Module) -> Result<SystemTime, Error> {
    let mut binaries = module.binaries.iter();
    binaries.try_fold(SystemTime::UNIX_EPOCH, |newest, binary| {
        Ok(newest.max(modified(&binary.file.code.path)?))
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use kpack_tests::tree::Tree;

    use super::*;

    #[test]
    fn what_cannot_be_listed_is_not_taken_for_empty() {
        let tree = Tree::new();
        fs::create_dir_all(tree.path("empty/lib")).unwrap();
        tree.write("full/lib/file", b"");
        symlink("loop", tree.path("loop")).unwrap();
        for (name, expected) in [("missing", false), ("empty", false), ("full", true)] {
            assert_eq!(has_files(&tree.path(name)).unwrap(), expected, "{name}");
        }
        let error = has_files(&tree.path("loop")).unwrap_err();
        assert_eq!(error.id(), ids::SYSTEM, "{error:?}");
    }
}
