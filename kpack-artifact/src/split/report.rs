//! Reports of splits.

use std::path::PathBuf;

use serde::Serialize;

use kpack_core::report::{ArchiveReport, FileReport};
use kpack_core::{Finding, Id, Reason, Severity};

/// The result for one artifact directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SplitReport {
    /// Name and component, such as `blas_lib`.
    pub artifact_prefix: String,
    /// The artifact directory that was read.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub artifact_dir: PathBuf,
    /// Whether there is device code or a kernel database in it, or binaries whose device code was
    /// split off before. Where not, there is a generic artifact only.
    pub device_code: bool,
    /// How many binaries were split before, and are as they were.
    pub already_split: u64,
    /// How many files with device code stay in the generic artifact: of databases that are not
    /// selected, in no known place, in no prefix.
    pub left_generic: u64,
    /// The targets whose files were skipped, because they are not expected.
    pub left_out: Vec<String>,
    /// The prefixes that exist.
    pub prefixes: Vec<String>,
    /// Size of the input's files in bytes, a file with several names counted once.
    pub size_before: u64,
    /// Size of the split artifacts' files in bytes, counted likewise.
    pub size_after: u64,
    /// The split artifacts, the generic one first.
    pub artifacts: Vec<ArtifactReport>,
    /// The binaries that were split.
    pub binaries: Vec<FileReport>,
    /// The archives with their device code.
    pub archives: Vec<ArchiveReport>,
    /// What is worth knowing, or wrong but no reason to stop.
    pub findings: Vec<Finding>,
}

/// A split artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArtifactReport {
    /// The directory.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub path: PathBuf,
    /// Its target; `None` for the generic one.
    pub target: Option<String>,
    /// How many files and symbolic links it has, its list of prefixes and its mark included.
    pub files: u64,
    /// Their size in bytes.
    pub size: u64,
    /// Number of archives among them, both new ones and those split before.
    pub archives: u64,
}

impl SplitReport {
    pub(super) fn note(&mut self, id: Id, path: impl Into<PathBuf>, text: impl Into<Reason>) {
        self.findings.push(Finding::new(Severity::Note, id, path, text));
    }

    pub(super) fn warn(&mut self, id: Id, path: impl Into<PathBuf>, text: impl Into<Reason>) {
        self.findings.push(Finding::new(Severity::Warning, id, path, text));
    }
}
