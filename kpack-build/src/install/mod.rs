//! Binaries of an install prefix, through [`split`](crate::split) and the module's kpack directory.
//!
//! Everything is read, checked and written under hidden names before a file of the prefix changes.
//! Then archives are replaced, then the manifest, and when these are durable the host binaries: at
//! each moment, every binary finds the device code that it asks for.

mod host;
mod locate;
mod options;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Written};
use kpack_format::manifest::Manifest;

use crate::Error;
use crate::elf::Plan;
use crate::inspect;
use crate::kpack_dir::{self, KpackDir, Present, Staged};
use crate::split::{self, Compression, FatFile, Input};
use locate::{KpackPath, Located, Prefix};

pub use options::{Only, Options, Progress, Unexpected};
pub use report::{ArchiveReport, FileReport, Notice, Outcome, Report, Severity};

/// Splits binaries of an install prefix.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense, [`Error::Refused`] for input that is damaged or
/// not what it should be, [`Error::Io`]. No file of the prefix has changed then, but where
/// replacing files failed half-way: each that was replaced is whole, and fits the others.
pub fn install(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    options.validate()?;
    let prefix = Prefix::new(&options.prefix)?;
    let kpacks = prefix.kpack_dir(&options.kpack_dir)?;
    let group = kpack_dir::group_name(&options.module, &options.component);
    let mut report = Report::default();

    let binaries = binaries(&prefix, options, &mut report)?;
    let fat: Vec<&Binary> = binaries.iter().filter(|b| b.fat().is_some()).collect();
    let split_before = binaries.iter().any(|b| matches!(b.input, Input::Split));
    let wanted = wanted_targets(options, &kpacks, &group, &fat, split_before, &mut report)?;
    let wants = |target: &TargetId| wanted.contains(target);

    let mut plans = BTreeMap::new();
    if options.only != Some(Only::Device) {
        for binary in &fat {
            let marker = kpacks.marker(&binary.located, &group).to_bytes();
            if let Some(file) = binary.fat() {
                plans.insert(binary.located.path.clone(), file.plan(&marker)?);
            }
        }
    }

    let sources: Vec<(String, &FatFile)> = fat
        .iter()
        .filter_map(|binary| Some((binary.located.name.clone(), binary.fat()?)))
        .collect();
    let sizes = sources.iter().map(|(_, file)| file.device_size(&wants));
    progress.start(sizes.fold(0, u64::saturating_add));
    let compression = Compression {
        group: &group,
        scheme: options.scheme,
        level: options.level,
        jobs: options.jobs,
        scratch: kpacks.existing(),
    };
    let archives = split::compress(&sources, &wants, &compression, progress)?;

    file_reports(&binaries, &plans, &wants, &mut report)?;
    if !fat.is_empty() {
        let run = Run {
            options,
            kpacks: &kpacks,
            group: &group,
            wanted: &wanted,
            fat: &fat,
        };
        run.apply(archives, &plans, &mut report)?;
    }
    Ok(report)
}

/// A binary, and what it is.
struct Binary {
    located: Located,
    input: Input,
}

impl Binary {
    fn fat(&self) -> Option<&FatFile> {
        match &self.input {
            Input::Fat(file) => Some(file),
            _ => None,
        }
    }
}

/// Reads what the files are, each once.
fn binaries(prefix: &Prefix, options: &Options, report: &mut Report) -> Result<Vec<Binary>, Error> {
    let mut binaries: Vec<Binary> = Vec::new();
    for (index, file) in options.files.iter().enumerate() {
        let source = options.sources.get(index);
        let located = match source {
            Some(_) => prefix.absent_binary(file)?,
            None => prefix.binary(file)?,
        };
        if located.name != file.to_string_lossy() && !file.is_absolute() {
            report.note(file, format!("is {} in the prefix", located.name));
        }
        if binaries.iter().any(|known| known.located == located) {
            continue;
        }
        let input = split::read(source.map_or(&located.path, |source| source))?;
        binaries.push(Binary { located, input });
    }
    Ok(binaries)
}

/// The targets whose device code is kept.
fn wanted_targets(
    options: &Options,
    kpacks: &KpackPath,
    group: &str,
    fat: &[&Binary],
    split_before: bool,
    report: &mut Report,
) -> Result<BTreeSet<TargetId>, Error> {
    let targets_of = |binary: &Binary| binary.fat().map(FatFile::targets).unwrap_or_default();
    let found: BTreeSet<TargetId> = fat.iter().flat_map(|binary| targets_of(binary)).collect();
    if options.architectures.is_empty() || fat.is_empty() {
        return Ok(found);
    }
    let expected: BTreeSet<TargetId> = options.architectures.iter().cloned().collect();

    let mut known: BTreeSet<String> = found.iter().map(TargetId::to_string).collect();
    if split_before {
        // What was split in an earlier run is in the manifest.
        let manifest = inspect::read_manifest(&kpacks.path.join(format!("{group}.kpm")));
        known.extend(
            manifest
                .into_iter()
                .flat_map(|manifest| manifest.kpack_files.into_keys()),
        );
    }
    let missing: Vec<String> = expected
        .iter()
        .map(TargetId::to_string)
        .filter(|target| !known.contains(target))
        .collect();
    if let Some(first) = fat.first().filter(|_| !missing.is_empty()) {
        let others = match fat.len() {
            1 => String::new(),
            count => format!(", nor has any of the other {} binaries", count - 1),
        };
        return Err(Error::refused(
            &first.located.path,
            format!(
                "it has no device code for {}{others}; there is device code for {}",
                missing.join(", "),
                list(&found)
            ),
        ));
    }
    for binary in fat {
        let own = targets_of(binary);
        let path = &binary.located.path;
        let lacks: BTreeSet<_> = expected.difference(&own).cloned().collect();
        if !lacks.is_empty() {
            report.warn(
                path,
                format!(
                    "has no device code for {}, only for {}",
                    list(&lacks),
                    list(&own)
                ),
            );
        }
        // A run for device code of some targets leaves the others to other runs.
        let more: BTreeSet<_> = own.difference(&expected).cloned().collect();
        if more.is_empty() || options.only == Some(Only::Device) {
            continue;
        }
        match options.unexpected {
            Unexpected::Keep => {}
            Unexpected::Drop => report.warn(
                path,
                format!(
                    "device code for {} is not expected, and left out",
                    list(&more)
                ),
            ),
            Unexpected::Error => {
                return Err(Error::refused(
                    path,
                    format!(
                        "it has device code for {}; expected only {}",
                        list(&more),
                        list(&expected)
                    ),
                ));
            }
        }
    }
    let keeps_all = options.unexpected == Unexpected::Keep && options.only != Some(Only::Device);
    Ok(if keeps_all { found } else { expected })
}

fn list(targets: &BTreeSet<TargetId>) -> String {
    let names: Vec<String> = targets.iter().map(TargetId::to_string).collect();
    names.join(", ")
}

/// What becomes of each binary.
fn file_reports(
    binaries: &[Binary],
    plans: &BTreeMap<PathBuf, Plan>,
    wants: &dyn Fn(&TargetId) -> bool,
    report: &mut Report,
) -> Result<(), Error> {
    for Binary { located, input } in binaries {
        let outcome = match input {
            Input::Split => Outcome::AlreadySplit,
            Input::LeftAlone(reason) => {
                report.note(&located.path, format!("left alone: {reason}"));
                Outcome::LeftAlone {
                    reason: reason.clone(),
                }
            }
            Input::Fat(fat) => {
                let metadata = fat.file.metadata();
                let size = metadata.map_err(|e| Error::io(&fat.path, "read", e))?.len();
                let targets = fat.targets().into_iter().filter(wants);
                Outcome::Split {
                    wrappers: fat.wrapper_count(),
                    targets: targets.map(|target| target.to_string()).collect(),
                    size_before: size,
                    size_after: plans.get(&located.path).map_or(size, Plan::output_size),
                }
            }
        };
        report.files.push(FileReport {
            path: located.name.clone(),
            outcome,
        });
    }
    Ok(())
}

/// What is to be made of the prefix.
struct Run<'a> {
    options: &'a Options,
    kpacks: &'a KpackPath,
    group: &'a str,
    wanted: &'a BTreeSet<TargetId>,
    fat: &'a [&'a Binary],
}

/// Files under hidden names, and what else changes.
#[derive(Default)]
struct Staging {
    archives: Vec<(Staged, ArchiveReport)>,
    emptied: Vec<PathBuf>,
    manifest: Option<Staged>,
    remove_manifest: bool,
    hosts: Vec<Staged>,
}

impl Run<'_> {
    fn apply(
        &self,
        archives: BTreeMap<TargetId, ArchiveWriter<File>>,
        plans: &BTreeMap<PathBuf, Plan>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let missing = missing_directories(&self.kpacks.path);
        let applied =
            KpackDir::lock(&self.kpacks.path, self.group.to_owned()).and_then(|directory| {
                let staging = self.stage(&directory, archives, plans, report)?;
                self.commit(&directory, staging, report)
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
        report: &mut Report,
    ) -> Result<Staging, Error> {
        let mut staging = Staging::default();
        let mut manifest = self.manifest(directory, report)?;
        let mut present = directory.archives()?;
        for (target, mut archive) in archives {
            if let Some(old) = present.remove(&target) {
                self.merge(&mut archive, old)?;
            }
            let name = directory.archive_name(&target);
            let written = if self.options.only == Some(Only::Host) {
                let written = archive.finish(io::sink());
                let written = written.map_err(|e| split::archive_error(directory.path(), e))?;
                self.warn_of_fewer(&manifest, &target, &written, report);
                written
            } else {
                let (staged, written) = directory.stage_archive(&target, archive)?;
                let line = ArchiveReport {
                    path: staged.path().to_owned(),
                    target: target.to_string(),
                    size: written.size,
                    kernel_count: written.kernel_count,
                    changed: true,
                };
                staging.archives.push((staged, line));
                written
            };
            let entry = kpack_dir::entry(&target, name, &written);
            manifest.kpack_files.insert(target.to_string(), entry);
        }
        for (target, old) in present {
            self.drop_stale(directory, &target, old, &mut manifest, &mut staging)?;
        }
        if self.writes_manifest(directory)? {
            if manifest.kpack_files.is_empty() {
                staging.remove_manifest = true;
            } else {
                staging.manifest = Some(directory.stage_manifest(&manifest)?);
            }
        }
        for binary in self.fat {
            let path = &binary.located.path;
            let (Some(plan), Some(fat)) = (plans.get(path), binary.fat()) else {
                continue;
            };
            if host::is_same(path, &fat.file)? {
                staging.hosts.push(host::stage(path, &fat.file, plan)?);
            } else if !matches!(split::read(path)?, Input::Split) {
                return Err(Error::refused(
                    path,
                    "it changed while it was read; run this again",
                ));
            }
        }
        Ok(staging)
    }

    /// Takes over the kernels of other binaries.
    fn merge(&self, archive: &mut ArchiveWriter<File>, mut old: Present) -> Result<(), Error> {
        archive
            .merge(&mut old.archive, |kernel| !self.is_replaced(kernel))
            .map_err(|error| split::archive_error(&old.path, error))
    }

    /// Whether a kernel is of one of the binaries that are split here.
    fn is_replaced(&self, kernel: &str) -> bool {
        let binary = kernel.rsplit_once('#').map_or(kernel, |(binary, _)| binary);
        self.fat.iter().any(|fat| fat.located.name == binary)
    }

    /// Archives of targets that the binaries have no device code for (any more).
    fn drop_stale(
        &self,
        directory: &KpackDir,
        target: &TargetId,
        old: Present,
        manifest: &mut Manifest,
        staging: &mut Staging,
    ) -> Result<(), Error> {
        let name = directory.archive_name(target);
        let key = target.to_string();
        let kernels = &old.archive.toc().kernels;
        let untouched = self.options.only == Some(Only::Device) && !self.wanted.contains(target);
        if untouched || !kernels.keys().any(|kernel| self.is_replaced(kernel)) {
            let known = manifest.kpack_files.get(&key);
            let entry = kpack_dir::entry_of(target, name, &old, known)?;
            manifest.kpack_files.insert(key, entry);
            return Ok(());
        }
        if kernels.keys().all(|kernel| self.is_replaced(kernel)) {
            manifest.kpack_files.remove(&key);
            if self.options.only != Some(Only::Host) {
                staging.emptied.push(old.path);
            }
            return Ok(());
        }
        let spool = tempfile::tempfile_in(directory.path())
            .map_err(|e| Error::io(directory.path(), "create a scratch file in", e))?;
        let scheme = old.archive.toc().scheme;
        let mut archive = ArchiveWriter::new(spool, self.group, target, scheme);
        let path = old.path.clone();
        self.merge(&mut archive, old)?;
        let written = if self.options.only == Some(Only::Host) {
            archive
                .finish(io::sink())
                .map_err(|e| split::archive_error(&path, e))?
        } else {
            let (staged, written) = directory.stage_archive(target, archive)?;
            let line = ArchiveReport {
                path,
                target: key.clone(),
                size: written.size,
                kernel_count: written.kernel_count,
                changed: true,
            };
            staging.archives.push((staged, line));
            written
        };
        manifest
            .kpack_files
            .insert(key, kpack_dir::entry(target, name, &written));
        Ok(())
    }

    /// The manifest to start from. Its entries are those of archives that are there; with
    /// [`Only::Host`], where archives may be elsewhere, also those of others.
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

    /// Renames what was staged, in the order in which each file finds what it needs.
    fn commit(
        &self,
        directory: &KpackDir,
        staging: Staging,
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
        if staging.remove_manifest {
            directory.remove_manifest()?;
        }
        directory.sync()?;
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
