//! Errors, with the file that caused them.

use std::fmt::{self, Write as _};
use std::io;
use std::path::{MAIN_SEPARATOR, MAIN_SEPARATOR_STR, Path, PathBuf};

use kpack_format::archive::ArchiveError;
use kpack_format::{Details, Reason};

use crate::finding::{Id, ids, with_id};
use crate::platform::readable;
use crate::words::one_line;

/// Why an operation on files failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An input is damaged or unsupported.
    #[non_exhaustive]
    Refused {
        /// What kind of problem it is.
        id: Id,
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
        /// What `reason` says, as data.
        details: Box<Details>,
    },
    /// An operating system call failed.
    #[non_exhaustive]
    Io {
        /// The file.
        path: PathBuf,
        /// The failed action: a verb.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A file was replaced or modified after it was read.
    #[non_exhaustive]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// There is no suitable compiler, or it failed.
    Compiler(String),
    /// An invalid argument.
    Usage(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { path, reason, .. } => write!(f, "{}: {reason}", shown(path)),
            Self::Io { path, action, .. } => write!(f, "cannot {action} {}", shown(path)),
            Self::Changed { path } => {
                write!(f, "{}: it changed while it was read; run the command again", shown(path))
            }
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

impl From<&Error> for Reason {
    fn from(error: &Error) -> Self {
        Self::new(error.without_id(), Box::new(error.details()))
    }
}

impl Error {
    /// The message, its cause and its ID, on one line unless the message has several.
    pub fn in_one_line(&self) -> String {
        with_id(&self.without_id(), self.id())
    }

    /// The message and its cause.
    pub fn without_id(&self) -> String {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                format!("{self}: {source}; check the path")
            }
            Self::Io { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }

    /// The ID of the problem.
    pub fn id(&self) -> Id {
        match self {
            Self::Refused { id, .. } => *id,
            Self::Io { .. } => ids::SYSTEM,
            Self::Changed { .. } => ids::CHANGED,
            Self::Compiler(_) => ids::COMPILER,
            Self::Usage(_) => ids::USAGE,
        }
    }

    /// [`Error::Refused`], for `reason`, which is one line: line breaks in it come from names, and are escaped.
    pub fn rejected(id: Id, path: &Path, reason: impl Into<Reason>) -> Self {
        let Reason { text, details, .. } = reason.into();
        Self::Refused { id, path: path.to_owned(), reason: one_line(text), details }
    }

    /// The same with what `change` adds to its reason, if it is [`Error::Refused`].
    pub fn about(self, change: impl FnOnce(Reason) -> Reason) -> Self {
        match self {
            Self::Refused { id, path, reason, details } => {
                let Reason { text, details, .. } = change(Reason::new(reason, details));
                Self::Refused { id, path, reason: text, details }
            }
            error => error,
        }
    }

    /// Its details: what the message says, as data; nothing unless it is [`Error::Refused`].
    pub fn details(&self) -> Details {
        match self {
            Self::Refused { details, .. } => (**details).clone(),
            _ => Details::default(),
        }
    }

    /// The same, with another path if it is about a file.
    pub fn with_path(self, change: impl FnOnce(&Path) -> PathBuf) -> Self {
        match self {
            Self::Refused { id, path, reason, details } => {
                Self::Refused { id, path: change(&path), reason, details }
            }
            Self::Io { path, action, source } => Self::Io { path: change(&path), action, source },
            Self::Changed { path } => Self::Changed { path: change(&path) },
            error => error,
        }
    }

    /// [`Error::Changed`].
    pub fn changed(path: &Path) -> Self {
        Self::Changed { path: path.to_owned() }
    }

    /// [`Error::Io`]; `action` is a verb. An empty path is the current directory.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let here = || std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        Self::Io {
            path: if path.as_os_str().is_empty() { here() } else { path.to_owned() },
            action,
            source,
        }
    }

    /// An error of the archive at `path`: [`Error::Refused`] for damage, [`Error::Io`] for a failed
    /// system call; `action` is a verb.
    pub fn archive(path: &Path, action: &'static str, error: ArchiveError) -> Self {
        match error {
            // A truncated archive counts as damaged.
            ArchiveError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Self::io(path, action, error)
            }
            error => {
                let reason = Reason::from(error).then("; build or install the archive again");
                Self::rejected(ids::DAMAGED_ARCHIVE, path, reason)
            }
        }
    }

    /// Whether it is a failed system call that says nothing about the file, as
    /// [`kpack_format::is_exhaustion`] decides.
    pub fn is_exhaustion(&self) -> bool {
        matches!(self, Self::Io { source, .. } if kpack_format::is_exhaustion(source))
    }

    /// [`Error::Usage`], for `reason`, which is one line, as in [`rejected`](Self::rejected).
    pub fn usage(reason: impl Into<String>) -> Self {
        Self::Usage(one_line(reason.into()))
    }
}

/// A path for messages, [`escaped`]. On Windows, parts of it may have been written with another separator than the others; it has
/// one here.
pub fn shown(path: &Path) -> impl fmt::Display {
    let text = path.to_string_lossy();
    let is_mixed = MAIN_SEPARATOR != '/' && text.contains(MAIN_SEPARATOR);
    let text = if is_mixed { text.replace('/', MAIN_SEPARATOR_STR).into() } else { text };
    escaped(&text).to_string()
}

/// Escapes names of files, kernels or targets so that they fit on one line. It escapes control
/// characters, invisible characters, and those that change the direction of text, because terminals
/// obey some of them and the names come from whoever made the file.
pub fn escaped(text: &str) -> impl fmt::Display {
    struct Escaped<'a>(&'a str);

    impl fmt::Display for Escaped<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for c in readable(self.0).chars() {
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
