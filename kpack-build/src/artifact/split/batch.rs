//! Many artifact directories at once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;

use super::report::Report;
use super::{Options, split_within};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::install::{Notice, Progress, Severity};
use crate::split::Budget;

/// Artifacts that are split at the same time; what is in flight of all of them together is bounded.
const MOST_AT_ONCE: usize = 4;

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
/// `blas_lib`, and so is `blas_lib`.
///
/// # Errors
/// Where there is no artifact, or two have the same prefix, or the parent directory is the output
/// directory too.
pub fn batch(options: &BatchOptions, progress: &dyn Progress) -> Result<BatchReport, Error> {
    let mut report = BatchReport::default();
    let artifacts = find(options, &mut report)?;
    let budget = Budget::default();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::new());
    let artifacts: Vec<(String, PathBuf)> = artifacts.into_iter().collect();
    let work = || {
        while let Some((prefix, path)) = artifacts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let options = Options {
                artifact_dir: path.clone(),
                artifact_prefix: prefix.clone(),
                ..options.each.clone()
            };
            let outcome = match split_within(&options, &budget, progress) {
                Ok(report) => Outcome::Split(report),
                Err(error) => Outcome::Failed(Failure {
                    artifact_prefix: prefix.clone(),
                    artifact_dir: path.clone(),
                    error: error.in_one_line(),
                    io: matches!(error, Error::Io { .. }),
                }),
            };
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.insert(prefix.clone(), outcome);
        }
    };
    let at_once = artifacts
        .len()
        .min(MOST_AT_ONCE)
        .min(options.each.jobs.get());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    let outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    report.artifacts.extend(outcomes.into_values());
    Ok(report)
}

/// The artifact directories, by prefix.
fn find(
    options: &BatchOptions,
    report: &mut BatchReport,
) -> Result<BTreeMap<String, PathBuf>, Error> {
    let parent = &options.parent_dir;
    let output = &options.each.output_dir;
    let real = |path: &Path| path.canonicalize().ok();
    if real(output).is_some() && real(output) == real(parent) {
        return Err(Error::usage(format!(
            "{} is the directory of the artifacts and the output directory too",
            parent.display()
        )));
    }
    let entries = fs::read_dir(parent).map_err(|e| Error::io(parent, "list", e))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::io(parent, "list", e))?.path();
        if path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut artifacts: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in paths {
        if !path.join(manifest_txt::FILE_NAME).is_file() {
            report.notices.push(Notice {
                severity: Severity::Note,
                text: format!("has no {}; skipped", manifest_txt::FILE_NAME),
                path,
            });
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let prefix = artifact_prefix(&name).to_owned();
        if let Some(other) = artifacts.get(&prefix) {
            return Err(Error::usage(format!(
                "{} and {} are both artifact {prefix}; split them into output directories of \
                 their own",
                other.display(),
                path.display()
            )));
        }
        artifacts.insert(prefix, path);
    }
    if artifacts.is_empty() {
        return Err(Error::usage(format!(
            "{}: no directory in it has an {}",
            parent.display(),
            manifest_txt::FILE_NAME
        )));
    }
    Ok(artifacts)
}

/// Name and component of an artifact directory, which may have a family of targets behind them.
pub(crate) fn artifact_prefix(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((prefix, last)) if last == "generic" || last.starts_with("gfx") => prefix,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_no_part_of_the_prefix() {
        assert_eq!(artifact_prefix("blas_lib"), "blas_lib");
        assert_eq!(artifact_prefix("blas_lib_generic"), "blas_lib");
        assert_eq!(artifact_prefix("blas_lib_gfx94X-dcgpu"), "blas_lib");
        assert_eq!(artifact_prefix("core_hip_run"), "core_hip_run");
    }
}
