//! Reports of a run, and its progress.

use std::path::{Path, PathBuf};

use kpack_format::archive::Written;
use kpack_format::{Reason, TargetId};

use crate::finding::{Finding, Id, Severity};

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The binaries, in the given order.
    pub files: Vec<FileReport>,
    /// The archives with the binaries' device code, by target; empty with `install::Only::Host`.
    pub archives: Vec<ArchiveReport>,
    /// Archives removed because they were empty.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::lossy::paths"))]
    pub removed: Vec<PathBuf>,
    /// Notes, and problems that did not stop the run.
    pub findings: Vec<Finding>,
}

/// A binary.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FileReport {
    /// Its path in the prefix.
    pub path: String,
    /// The outcome.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub outcome: Outcome,
}

impl FileReport {
    /// The report of a binary.
    pub fn new(path: impl Into<String>, outcome: Outcome) -> Self {
        Self { path: path.into(), outcome }
    }
}

/// The outcome for a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "outcome", rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Outcome {
    /// It was split, or in a partial run, the requested part was done.
    Split {
        /// Number of wrappers.
        wrappers: usize,
        /// The targets whose device code is kept.
        targets: Vec<String>,
        /// Size before, in bytes.
        size_before: u64,
        /// Size after, in bytes; the same if only device code was extracted.
        size_after: u64,
    },
    /// It was split before the link. Its code objects were added to the archives, and its markers
    /// now refer to them.
    #[cfg_attr(feature = "serde", serde(rename = "placed"))]
    Relocated {
        /// Number of wrappers.
        wrappers: usize,
        /// The targets whose device code is kept.
        targets: Vec<String>,
    },
    /// Device code was put back.
    Joined {
        /// Number of wrappers.
        wrappers: usize,
        /// The targets whose device code is in it now.
        targets: Vec<String>,
        /// Size before, in bytes.
        size_before: u64,
        /// Size after, in bytes.
        size_after: u64,
    },
    /// It was already split.
    AlreadySplit,
    /// It was skipped.
    LeftAlone {
        /// Why.
        reason: String,
    },
}

/// An archive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ArchiveReport {
    /// The file.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::lossy::path"))]
    pub path: PathBuf,
    /// Its target.
    pub target: String,
    /// Its size in bytes.
    pub size: u64,
    /// Number of code objects.
    pub code_object_count: u64,
    /// Whether it was written; false if it already had the same content.
    pub changed: bool,
}

impl ArchiveReport {
    /// The report of a written archive.
    pub fn written(path: impl Into<PathBuf>, target: &TargetId, written: &Written) -> Self {
        Self {
            path: path.into(),
            target: target.to_string(),
            size: written.size,
            code_object_count: written.kernel_count,
            changed: true,
        }
    }
}

impl Report {
    /// Adds a [`Severity::Note`].
    pub fn note(&mut self, id: Id, path: impl Into<PathBuf>, text: impl Into<Reason>) {
        self.findings.push(Finding::new(Severity::Note, id, path, text));
    }

    /// Adds a [`Severity::Warning`].
    pub fn warn(&mut self, id: Id, path: impl Into<PathBuf>, text: impl Into<Reason>) {
        self.findings.push(Finding::new(Severity::Warning, id, path, text));
    }
}

/// Receives the progress of a run.
pub trait Progress: Sync {
    /// Work starts on `total` bytes, files or components, as the function says.
    fn start(&self, total: u64) {
        let _ = total;
    }

    /// So many more of them are done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// Another run has locked this directory, and work starts when it is done.
    fn waits(&self, path: &Path) {
        let _ = path;
    }

    /// Work on a file or component starts.
    fn file(&self, path: &Path) {
        let _ = path;
    }
}

/// Ignores progress.
impl Progress for () {}
