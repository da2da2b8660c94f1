//! Splits many artifact directories at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::{Selection, TargetId};
use serde::Serialize;

use super::apply::apply;
use super::contents::{Contents, refuse_none_expected};
use super::plan::plan;
use super::report::SplitReport;
use super::{Options, sources};
use kpack_core::Error;
use kpack_core::parallel;
use kpack_core::report::Progress;
use kpack_core::words::list;
use kpack_core::{Details, Finding, Id, Severity, ids};
use kpack_split::split::Budget;

/// Which artifact directories to split, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BatchOptions {
    /// The directory whose directories are artifacts.
    pub parent_dir: PathBuf,
    /// How each is split; the artifact directory and the prefix in it do not matter.
    pub each: Options,
}

impl BatchOptions {
    /// Splits every artifact directory in `parent_dir` as `each` says.
    pub fn new(parent_dir: impl Into<PathBuf>, each: Options) -> Self {
        Self { parent_dir: parent_dir.into(), each }
    }
}

/// The results of a batch.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct BatchReport {
    /// The artifact directories, by name.
    pub artifacts: Vec<BatchOutcome>,
    /// Notices about the batch as a whole.
    pub findings: Vec<Finding>,
}

/// The result for one artifact directory of a batch.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum BatchOutcome {
    /// It was split.
    Split(SplitReport),
    /// It failed, and the output directory has nothing new of it.
    Failed(Failure),
}

/// An artifact directory that could not be split.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// Name and component.
    pub artifact_prefix: String,
    /// The artifact directory.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub artifact_dir: PathBuf,
    /// Why, with the file.
    pub error: String,
    /// What kind of problem it is; `system` if reading or writing failed.
    #[serde(serialize_with = "kpack_core::lossy::id")]
    pub id: Id,
    /// What `error` says, as data.
    #[serde(skip_serializing_if = "Details::is_empty")]
    pub details: Box<Details>,
}

impl Failure {
    /// The failure of the artifact directory with this prefix.
    pub fn new(artifact_prefix: &str, artifact_dir: &Path, error: &Error) -> Self {
        Self {
            artifact_prefix: artifact_prefix.to_owned(),
            artifact_dir: artifact_dir.to_owned(),
            error: error.without_id(),
            id: error.id(),
            details: Box::new(error.details()),
        }
    }
}

impl BatchReport {
    /// The artifacts that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.artifacts.iter().filter_map(|outcome| match outcome {
            BatchOutcome::Failed(failure) => Some(failure),
            BatchOutcome::Split(_) => None,
        })
    }
}

/// Splits every artifact directory of a parent directory. One that fails does not stop the others.
///
/// A directory `blas_lib_gfx94X-dcgpu` or `blas_lib_generic` is an artifact with the prefix
/// `blas_lib`, and so is `blas_lib`. `blas_lib_generic` with `blas_lib_gfx1100` and others of exact
/// targets beside it are one that was split before.
///
/// All artifacts are read before one is written. If two have archives of the same names, the second
/// one by name fails.
///
/// # Errors
/// Where there is no artifact, or two have the same prefix, or one is of a group of targets, which
/// `kpack artifact recombine` wrote, or output would go into one of them;
/// [`Error::Refused`] where there is device code, but for none of the targets that are required.
/// Nothing is written then.
pub fn batch(options: &BatchOptions, progress: &dyn Progress) -> Result<BatchReport, Error> {
    parallel::with_jobs(options.each.storage.jobs, || split_all(options, progress))
}

fn split_all(options: &BatchOptions, progress: &dyn Progress) -> Result<BatchReport, Error> {
    let mut report = BatchReport::default();
    let output = &options.each.output_dir;
    let artifacts = sources::in_parent(&options.parent_dir, output, &mut report.findings)?;
    let mut read = parallel::map(artifacts, |artifact| {
        let options = Options {
            artifact_dir: artifact.sources[0].1.clone(),
            artifact_prefix: artifact.prefix,
            ..options.each.clone()
        };
        let contents = Contents::read(&options, &artifact.sources);
        (options, contents)
    });
    refuse_collisions(&mut read);
    judge(options, &read, &mut report)?;
    // One budget limits the bytes in flight of all artifacts.
    let budget = Budget::default();
    report.artifacts = parallel::map(read, |(options, contents)| {
        let split = contents.and_then(|contents| {
            contents.refuse_all_left_out(&options, false)?;
            apply(&options, plan(&options, contents)?, &budget, progress)
        });
        match split {
            Ok(report) => BatchOutcome::Split(report),
            Err(error) => {
                let (prefix, directory) = (&options.artifact_prefix, &options.artifact_dir);
                BatchOutcome::Failed(Failure::new(prefix, directory, &error))
            }
        }
    });
    Ok(report)
}

/// An artifact and its content.
type Read = (Options, Result<Contents, Error>);

/// Refuses artifacts with archives of the same names as those of one before them: installed, they
/// would take each other's place.
fn refuse_collisions(artifacts: &mut [Read]) {
    let mut owners: BTreeMap<PathBuf, String> = BTreeMap::new();
    for (options, read) in artifacts {
        let Ok(contents) = read else { continue };
        let writes = contents.has_expected(options);
        for module in contents.modules.iter().filter(|_| writes) {
            let owner =
                owners.entry(module.archives()).or_insert_with(|| options.artifact_prefix.clone());
            if *owner != options.artifact_prefix {
                let advice = "rename the directory above `stage`, which names the module, and its line in artifact_manifest.txt; or name the components differently";
                *read = Err(module.collision(&options.artifact_dir, owner, advice));
                break;
            }
        }
    }
}

/// Refuses a batch that has device code for none of the targets that are required, and names the
/// expected ones that it has nothing for. An artifact may have nothing for one, or for all.
fn judge(options: &BatchOptions, read: &[Read], report: &mut BatchReport) -> Result<(), Error> {
    let expected: Selection = options.each.targets.iter().collect();
    let inputs = || read.iter().flat_map(|(_, contents)| contents);
    let found: BTreeSet<&TargetId> = inputs().flat_map(|contents| contents.found.keys()).collect();
    let lacks = expected.unmatched(&Vec::from_iter(found.iter().copied()));
    if found.is_empty() || lacks.is_empty() {
        return Ok(());
    }
    let text = format!(
        "no artifact in it has anything for {}; there is device code for {}",
        list(lacks.iter().copied()),
        list(found.iter().copied())
    );
    let finding = Finding::new(Severity::Warning, ids::MISSING_TARGET, &options.parent_dir, text);
    report.findings.push(finding);
    if lacks.len() < expected.iter().count() {
        return Ok(());
    }
    let has_binaries = inputs().any(|contents| !contents.of_binaries().is_empty());
    let (parent, each) = (&options.parent_dir, &options.each);
    refuse_none_expected(parent, each, found, has_binaries).map_err(|error| {
        let failures = read.iter().filter_map(|(_, read)| read.as_ref().err());
        let also: String =
            failures.map(|failure| format!("\n  and {}", failure.without_id())).collect();
        error.about(|reason| reason.then(also))
    })
}
