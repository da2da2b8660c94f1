//! Many artifact directories at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kpack_format::TargetId;
use serde::Serialize;

use super::Options;
use super::contents::Contents;
use super::parent_dir::{self, Artifact};
use super::report::Report;
use super::sources::Sources;
use super::targets::{is_for, list, refuse_none_expected};
use crate::Error;
use crate::install::{Notice, Progress, Severity};
use crate::parallel::{self, lock};
use crate::split::Budget;

/// Which artifact directories to split, and how.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The directory whose directories are artifacts.
    pub parent_dir: PathBuf,
    /// How each is split; the artifact directory and the prefix in it do not matter.
    pub each: Options,
}

/// What became of a batch.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BatchReport {
    /// The artifact directories, by name.
    pub artifacts: Vec<Outcome>,
    /// What is worth knowing of the batch as a whole.
    pub notices: Vec<Notice>,
}

/// What became of an artifact directory of a batch.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was split.
    Split(Report),
    /// It was not, and nothing of it is in the output directory that was not there before.
    Failed(Failure),
}

/// An artifact directory that could not be split.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// Name and component.
    pub artifact_prefix: String,
    /// The artifact directory.
    #[serde(serialize_with = "crate::lossy::path")]
    pub artifact_dir: PathBuf,
    /// Why, with the file.
    pub error: String,
    /// Whether reading or writing failed, rather than that the input was refused.
    pub io: bool,
}

impl Failure {
    /// The failure of the artifact directory with this prefix.
    pub fn new(artifact_prefix: &str, artifact_dir: &Path, error: &Error) -> Self {
        Self {
            artifact_prefix: artifact_prefix.to_owned(),
            artifact_dir: artifact_dir.to_owned(),
            error: error.in_one_line(),
            io: matches!(error, Error::Io { .. }),
        }
    }
}

impl BatchReport {
    /// The artifacts that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.artifacts.iter().filter_map(|outcome| match outcome {
            Outcome::Failed(failure) => Some(failure),
            Outcome::Split(_) => None,
        })
    }
}

/// Splits every artifact directory of a parent directory. One that fails does not stop the others.
///
/// A directory `blas_lib_gfx94X-dcgpu` or `blas_lib_generic` is an artifact with the prefix
/// `blas_lib`, and so is `blas_lib`. `blas_lib_generic` with `blas_lib_gfx1100` and others of exact
/// targets beside it are one that was split before.
///
/// Where targets are expected, artifacts that have something for one of them are split first. The
/// others, which may be for other targets only, wait until it is known that the targets are not all
/// wrong.
///
/// # Errors
/// Where there is no artifact, or two have the same prefix, or output would go into one of them;
/// [`Error::Refused`] where there is device code, but for none of the targets that are expected.
/// Nothing is written then.
pub fn batch(options: &BatchOptions, progress: &dyn Progress) -> Result<BatchReport, Error> {
    parallel::with_jobs(options.each.jobs, || split_all(options, progress))
}

fn split_all(options: &BatchOptions, progress: &dyn Progress) -> Result<BatchReport, Error> {
    let mut report = BatchReport::default();
    let output = &options.each.output_dir;
    let artifacts = parent_dir::find(&options.parent_dir, output, &mut report.notices)?;
    let run = Run {
        each: &options.each,
        budget: Budget::default(),
        progress,
        owners: Mutex::default(),
    };
    let mut outcomes = BTreeMap::new();
    let mut found = BTreeSet::new();
    let mut waiting = Vec::new();
    for (artifact, first) in run.side_by_side(artifacts, |options, sources| {
        run.split_if_expected(options, sources)
    }) {
        found.extend(first.found);
        match first.outcome {
            Some(outcome) => drop(outcomes.insert(artifact.prefix, outcome)),
            None => waiting.push(artifact),
        }
    }
    judge(options, &found, outcomes.values(), &mut report)?;
    for (artifact, outcome) in
        run.side_by_side(waiting, |options, sources| run.split(options, sources))
    {
        outcomes.insert(artifact.prefix, outcome);
    }
    report.artifacts.extend(outcomes.into_values());
    Ok(report)
}

/// How each artifact of a batch is split.
struct Run<'a> {
    each: &'a Options,
    budget: Budget,
    progress: &'a dyn Progress,
    /// The artifacts by what their archives are installed as.
    owners: Mutex<BTreeMap<PathBuf, String>>,
}

/// What became of an artifact at first.
struct First {
    /// The targets that it has something for.
    found: BTreeSet<TargetId>,
    /// `None` where it has nothing for the targets that are expected.
    outcome: Option<Outcome>,
}

impl Run<'_> {
    /// Does `work` for each artifact. What is in flight of all of them together is bounded.
    fn side_by_side<T: Send>(
        &self,
        artifacts: Vec<Artifact>,
        work: impl Fn(&Options, Sources) -> T + Sync,
    ) -> Vec<(Artifact, T)> {
        parallel::map(artifacts, |artifact| {
            let first = artifact.sources.all().next().unwrap_or(Path::new(""));
            let options = Options {
                artifact_dir: first.to_owned(),
                artifact_prefix: artifact.prefix.clone(),
                ..self.each.clone()
            };
            let result = work(&options, artifact.sources.clone());
            (artifact, result)
        })
    }

    /// Splits an artifact that has something for a target that is expected.
    fn split_if_expected(&self, options: &Options, sources: Sources) -> First {
        let (contents, report) = match super::read(options, sources) {
            Ok(read) => read,
            Err(error) => {
                return First {
                    found: BTreeSet::new(),
                    outcome: Some(outcome(options, Err(error))),
                };
            }
        };
        let found = contents.found.keys().cloned().collect();
        let split = contents
            .has_expected(options)
            .then(|| self.write(options, contents, report));
        First {
            found,
            outcome: split.map(|split| outcome(options, split)),
        }
    }

    /// Splits an artifact.
    fn split(&self, options: &Options, sources: Sources) -> Outcome {
        let split = super::read(options, sources)
            .and_then(|(contents, report)| self.write(options, contents, report));
        outcome(options, split)
    }

    /// Splits what was read, unless another artifact has archives of the same names: installed, they
    /// would take each other's place.
    fn write(
        &self,
        options: &Options,
        contents: Contents,
        report: Report,
    ) -> Result<Report, Error> {
        let own = &options.artifact_prefix;
        let writes = contents.has_expected(options);
        for module in contents.modules.iter().filter(|_| writes) {
            let archives = Path::new(&module.kpacks.name).join(module.group.archive("TARGET"));
            let mut owners = lock(&self.owners);
            let owner = owners
                .entry(archives.clone())
                .or_insert_with(|| own.clone());
            if owner != own {
                let reason = format!(
                    "its archives would be installed as {}, like those of {owner}; let one artifact \
                     have the module, or name the components differently",
                    archives.display()
                );
                let path = options.artifact_dir.join(&module.prefix);
                return Err(Error::refused(&path, reason));
            }
        }
        super::write(options, contents, report, &self.budget, self.progress)
    }
}

fn outcome(options: &Options, split: Result<Report, Error>) -> Outcome {
    match split {
        Ok(report) => Outcome::Split(report),
        Err(error) => {
            let (prefix, directory) = (&options.artifact_prefix, &options.artifact_dir);
            Outcome::Failed(Failure::new(prefix, directory, &error))
        }
    }
}

/// Refuses a batch that has device code for none of the targets that are expected, of `found`, and
/// names those that it has nothing for. An artifact may have nothing for one, or for all.
fn judge<'a>(
    options: &BatchOptions,
    found: &BTreeSet<TargetId>,
    outcomes: impl IntoIterator<Item = &'a Outcome>,
    report: &mut BatchReport,
) -> Result<(), Error> {
    let expected = &options.each.targets;
    let (there, lacks): (Vec<&TargetId>, Vec<&TargetId>) = expected
        .iter()
        .partition(|expected| found.iter().any(|found| is_for(found, expected)));
    if found.is_empty() || lacks.is_empty() {
        return Ok(());
    }
    if !there.is_empty() {
        report.notices.push(Notice {
            severity: Severity::Warning,
            path: options.parent_dir.clone(),
            text: format!(
                "no artifact in it has anything for {}; there is device code for {}",
                list(lacks),
                list(found)
            ),
        });
        return Ok(());
    }
    refuse_none_expected(&options.parent_dir, expected, found).map_err(|error| {
        let failures = outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Failed(failure) => Some(failure.error.as_str()),
            Outcome::Split(_) => None,
        });
        let also: String = failures
            .map(|failure| format!("\n  and {failure}"))
            .collect();
        match error {
            Error::Refused { path, reason } => Error::refused(&path, reason + &also),
            error => error,
        }
    })
}
