//! What went wrong, with the file.

use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};

use kpack_format::archive::ArchiveError;
use rustix::io::Errno;

/// Why an operation on files failed.
#[derive(Debug)]
pub enum Error {
    /// An input is damaged, or not what it has to be.
    Refused {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
    /// The operating system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: a verb.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A file is not the one any more that was read.
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// There is no compiler, or it failed.
    Compiler(String),
    /// A wrong argument.
    Usage(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { path, reason } => write!(f, "{}: {reason}", shown(path)),
            Self::Io { path, action, .. } => write!(f, "cannot {action} {}", shown(path)),
            Self::Changed { path } => write!(
                f,
                "{}: it changed while it was read; run this again",
                shown(path)
            ),
            Self::Compiler(text) | Self::Usage(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Error {
    /// The message, and what caused it.
    pub fn in_one_line(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }

    /// [`Error::Refused`], for `reason`.
    pub fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    /// [`Error::Changed`].
    pub fn changed(path: &Path) -> Self {
        Self::Changed {
            path: path.to_owned(),
        }
    }

    /// [`Error::Io`]; `action` is a verb.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }

    /// What went wrong with the archive at `path`: damage is [`Error::Refused`], what the system
    /// refused [`Error::Io`]; `action` is a verb.
    pub fn archive(path: &Path, action: &'static str, error: ArchiveError) -> Self {
        match error {
            // An archive that ends too early is damaged.
            ArchiveError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Self::io(path, action, error)
            }
            error => Self::refused(path, error.to_string()),
        }
    }

    /// Whether the process or the system ran out of memory or of open files, which tells nothing of the
    /// file that was read.
    pub fn is_exhaustion(&self) -> bool {
        let Self::Io { source, .. } = self else {
            return false;
        };
        let ran_out = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        source.kind() == io::ErrorKind::OutOfMemory || ran_out.contains(&source.raw_os_error())
    }

    /// [`Error::Usage`], for `reason`.
    pub fn usage(reason: impl Into<String>) -> Self {
        Self::Usage(reason.into())
    }
}

/// A path in a message: what is [`escaped`] in it cannot play tricks.
pub fn shown(path: &Path) -> impl fmt::Display {
    escaped(&path.to_string_lossy()).to_string()
}

/// Text that names of files, kernels or targets are part of, on one line: control characters, those
/// that change the direction of text, and others that cannot be seen are escaped. Whoever makes a
/// file chooses such names, and a terminal obeys some of these characters.
pub fn escaped(text: &str) -> impl fmt::Display {
    struct Escaped<'a>(&'a str);

    impl fmt::Display for Escaped<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for c in self.0.chars() {
                match c {
                    '\'' | '"' | '\\' => f.write_char(c)?,
                    c => write!(f, "{}", c.escape_debug())?,
                }
            }
            Ok(())
        }
    }

    Escaped(text)
}
