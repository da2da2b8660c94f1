//! What went wrong, with the file.

use std::io;
use std::path::{Path, PathBuf};

/// Why an operation on files failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input is damaged, or not what it has to be.
    #[error("{path}: {reason}", path = path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: a verb.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no compiler, or it failed.
    #[error("{0}")]
    Compiler(String),
    /// A wrong argument.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// The message, and what caused it.
    pub fn in_one_line(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }

    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }

    pub(crate) fn usage(reason: impl Into<String>) -> Self {
        Self::Usage(reason.into())
    }
}
