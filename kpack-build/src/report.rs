//! What a run did, and how far it is.

mod json;

use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::Written;

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The binaries, in the order in which they were given.
    pub files: Vec<FileReport>,
    /// The archives that the binaries' device code is in, by target; with
    /// `install::Only::Host` none.
    pub archives: Vec<ArchiveReport>,
    /// Archives that held nothing any more.
    pub removed: Vec<PathBuf>,
    /// What is worth knowing, or wrong but no reason to stop.
    pub notices: Vec<Notice>,
}

/// A binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// Its path in the prefix.
    pub path: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was split, or its half of the work was done.
    Split {
        /// How many wrappers it has.
        wrappers: usize,
        /// The targets whose device code is kept.
        targets: Vec<String>,
        /// Its size before, in bytes.
        size_before: u64,
        /// Its size after, in bytes; the same where only device code was taken.
        size_after: u64,
    },
    /// It was split before the link: its code objects were put into the archives, and its markers
    /// changed to lead there.
    Placed {
        /// How many wrappers it has.
        wrappers: usize,
        /// The targets whose device code is kept.
        targets: Vec<String>,
    },
    /// It is a split binary already.
    AlreadySplit,
    /// It was left alone.
    LeftAlone {
        /// Why.
        reason: String,
    },
}

/// An archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveReport {
    /// The file.
    pub path: PathBuf,
    /// Its target.
    pub target: String,
    /// Its size in bytes.
    pub size: u64,
    /// How many kernels it has.
    pub kernel_count: u64,
    /// Whether it was written; it was not where it would be the same.
    pub changed: bool,
}

impl ArchiveReport {
    /// The line for an archive that was written.
    pub fn written(path: impl Into<PathBuf>, target: &TargetId, written: &Written) -> Self {
        Self {
            path: path.into(),
            target: target.to_string(),
            size: written.size,
            kernel_count: written.kernel_count,
            changed: true,
        }
    }
}

/// Something worth knowing about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// How much it matters.
    pub severity: Severity,
    /// The file.
    pub path: PathBuf,
    /// What is to be known.
    pub text: String,
}

/// How much a notice matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Probably not what was wanted.
    Warning,
}

impl Report {
    /// Adds a [`Severity::Note`].
    pub fn note(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.notices.push(Notice {
            severity: Severity::Note,
            path: path.into(),
            text: text.into(),
        });
    }

    /// Adds a [`Severity::Warning`].
    pub fn warn(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.notices.push(Notice {
            severity: Severity::Warning,
            path: path.into(),
            text: text.into(),
        });
    }
}

/// Is told how far the work is.
pub trait Progress: Sync {
    /// There are `total` bytes of device code.
    fn start(&self, total: u64) {
        let _ = total;
    }

    /// `bytes` more of them were read.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// The work on a file begins.
    fn file(&self, path: &Path) {
        let _ = path;
    }
}

/// Tells nobody.
impl Progress for () {}
