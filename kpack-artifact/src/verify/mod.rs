//! Verifies trees: install prefixes, artifact directories, and directories of these, with the files in them.
//! [`kpack_split::verify`] verifies each binary, archive and manifest.

mod against_tree;
mod artifact_sets;
mod artifacts;
mod databases;
mod original;

use std::path::{Path, PathBuf};

use kpack_core::parallel::{self, processors};
use kpack_core::report::Progress;
use kpack_core::{Error, Finding, Severity, ids, shown};
use kpack_split::input::Lookup;
use kpack_split::verify::{self as files, Surroundings};

use artifact_sets::Artifacts;
use kpack_tree::kernel_files::KernelFiles;
use kpack_tree::{DatabaseSelection, Known, Parsed};
use original::Original;

pub use kpack_split::verify::{Demanded, Options, VerifyReport};

/// What the checks of trees share.
struct TreeContext<'a> {
    /// What is read once, and the options.
    files: &'a files::Context<'a>,
    artifacts: &'a Artifacts,
    /// The kernel files to recognise where no mark lists them.
    kernel_files: &'a DatabaseSelection,
    /// What the tree was split from, if it is compared with that.
    original: Original,
}

impl TreeContext<'_> {
    fn known(&self) -> Parsed<'_> {
        known(self.files)
    }
}

fn known<'f>(files: &'f files::Context<'_>) -> Parsed<'f> {
    Parsed { binaries: Some(&files.parsed), archives: Some(&files.lookup.archives.parsed) }
}

/// Verifies files, install prefixes, artifact directories, and directories of artifact directories.
/// A directory with nothing to verify is a fault. `progress` counts files.
///
/// # Errors
/// [`Error::Io`] if one of `paths` cannot be read, [`Error::Refused`] if one is of a kind that
/// cannot be verified, [`Error::Usage`] if `against` is a file and the path a directory, or the
/// reverse.
pub fn verify(
    paths: &[PathBuf],
    options: &Options,
    progress: &dyn Progress,
) -> Result<VerifyReport, Error> {
    verify_with_kernel_files(paths, options, &[], progress)
}

/// As [`verify`], with rules for kernel files outside of the databases, in install prefixes and in the original.
/// Artifacts list the rules that they were split with.
///
/// # Errors
/// As [`verify`].
pub fn verify_with_kernel_files(
    paths: &[PathBuf],
    options: &Options,
    rules: &[KernelFiles],
    progress: &dyn Progress,
) -> Result<VerifyReport, Error> {
    let kernel_files = DatabaseSelection::new(Known::Auto, rules.to_vec());
    let jobs = options.jobs.unwrap_or_else(processors);
    parallel::with_jobs(jobs, || verify_all(paths, options, &kernel_files, progress))
}

fn verify_all(
    paths: &[PathBuf],
    options: &Options,
    kernel_files: &DatabaseSelection,
    progress: &dyn Progress,
) -> Result<VerifyReport, Error> {
    let mut report = VerifyReport::default();
    let artifacts = Artifacts::find(paths)?;
    let lookup = Lookup::in_overlay(artifacts.overlay().clone());
    let mut files = files::Context::new(options, lookup, &artifacts);
    let mut original = Original::default();
    if let Some(unsplit) = &options.against {
        let [path] = paths else {
            return Err(Error::usage("--against compares with one PATH, not with several"));
        };
        let kind = |path: &Path| {
            let kind = path.metadata().map(|metadata| metadata.is_dir());
            kind.map_err(|error| Error::io(path, "open", error))
        };
        if kind(path)? != kind(unsplit)? {
            let (file, directory) =
                if path.is_dir() { (&**unsplit, &**path) } else { (&**path, &**unsplit) };
            return Err(Error::usage(format!(
                "cannot compare the file {} with the directory {}; name two files or two directories",
                shown(file),
                shown(directory)
            )));
        }
        if !path.is_dir() {
            progress.start(1);
            progress.file(path);
            files.verify_against(path, unsplit, &mut report)?;
            return Ok(report);
        }
        original = Original::read(unsplit, kernel_files, known(&files))?;
    }
    let found = files.find(paths, &mut report)?;
    files.verify(&found, progress, &mut report)?;
    files.unused_kernels(paths, &found, &mut report);
    files.allow_missing_targets(&mut report);
    let context = TreeContext { files: &files, artifacts: &artifacts, kernel_files, original };
    let sets = artifacts::verify(&context, &mut report)?;
    for path in paths.iter().filter(|path| path.is_dir()) {
        if !artifacts.covers(path) {
            databases::verify(path, &context, &mut report)?;
        }
    }
    if let (Some(unsplit), [path]) = (&options.against, paths) {
        against_tree::compare(path, unsplit, &sets, &context, &mut report)?;
    }
    for path in paths {
        nothing_checked(path, &mut report);
    }
    if paths.iter().any(|path| path.is_dir()) {
        let for_targets = !options.targets.is_empty() || options.demanded == Demanded::All;
        nothing_split(for_targets, &mut report);
    }
    Ok(report)
}

/// Says that nothing is split in what was verified. That is a fault if `for_targets` were asked for, because
/// nobody verifies an unsplit tree for some targets on purpose.
fn nothing_split(for_targets: bool, report: &mut VerifyReport) {
    const OF_SPLIT: [kpack_core::Id; 4] =
        [ids::MARKER_SOUND, ids::CODE_FOUND, ids::ARCHIVE_SOUND, ids::MANIFEST_SOUND];
    let fat = report.findings.iter().filter(|found| found.id == ids::FAT_BINARY).count();
    let is_split = |found: &Finding| {
        let other_fault = found.severity == Severity::Fault && found.id != ids::MISSING_TARGET;
        OF_SPLIT.contains(&found.id) || other_fault
    };
    if fat == 0 || report.findings.iter().any(is_split) {
        return;
    }
    let fat = if fat == 1 { "1 fat binary".to_owned() } else { format!("{fat} fat binaries") };
    let text = format!(
        "nothing here is split: the device code of {fat} is in the files; `kpack split` moves it into archives"
    );
    let severity = if for_targets { Severity::Fault } else { Severity::Warning };
    report.findings.push(Finding::general(severity, ids::NOTHING_SPLIT, text));
}

/// Reports a directory with nothing to verify: it is probably the wrong one.
fn nothing_checked(path: &Path, report: &mut VerifyReport) {
    let real = path.canonicalize();
    let is_below = |check: &Finding| {
        let mut roots = [Some(path), real.as_deref().ok()].into_iter().flatten();
        roots.any(|root| check.file().starts_with(root))
    };
    let mut checks = report.findings.iter();
    if !checks.any(|check| is_below(check) && check.id != ids::LEFTOVER) {
        let text = "there is nothing to verify: no artifact directory, and no binary with device \
                    code, split or not, no .kpack archive, no .kpm manifest, no code object and no \
                    kernel database";
        report.fault(ids::NOTHING_SPLIT, path, text);
    }
}
