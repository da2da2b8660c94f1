//! Why an archive cannot be read or written.

use std::fmt;

use crate::Reason;

/// The message of a program without zstd.
pub(super) const NO_COMPRESSION: &str = "it is compressed, and this program was built without Zstandard (feature `compression` of kpack-format)";

/// Why bytes are not an archive, or why one could not be written. Offsets are from the start of the
/// file.
#[derive(Debug)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Reading or writing failed.
    Io(std::io::Error),
    /// The bytes are not an archive, or it is damaged.
    Malformed {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        reason: Reason,
    },
    /// The TOC is not a MessagePack map with the expected keys and types.
    Toc {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        reason: Reason,
    },
    /// A stored code object does not match the TOC when decompressed.
    Decompression {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// The kernel, and what is wrong.
        reason: Reason,
    },
    /// A format version that this library does not support.
    UnsupportedVersion {
        /// The version in the header or the TOC.
        found: u64,
    },
    /// The kernel already exists with another code object.
    Conflict {
        /// Kernel name.
        kernel: String,
        /// Target ID.
        target: String,
    },
    /// It exceeds a limit of readers, so it is not written.
    TooLarge {
        /// The item that is too large, and its size.
        what: String,
        /// The limit.
        most: u64,
    },
    /// The archive is compressed, and the program was built without zstd.
    NoCompression,
    /// The archive lacks this kernel for this target.
    NoSuchKernel {
        /// Kernel name.
        kernel: String,
        /// Target ID.
        target: String,
    },
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Malformed { offset, reason } | Self::Decompression { offset, reason } => {
                write!(f, "at offset {offset:#x} of the archive: {reason}")
            }
            Self::Toc { offset, reason } => {
                write!(f, "at offset {offset:#x} of the archive: the TOC cannot be read: {reason}")
            }
            Self::UnsupportedVersion { found } => {
                write!(f, "archive format version {found}; this program reads version 1")
            }
            Self::Conflict { kernel, target } => {
                write!(f, "kernel `{kernel}` for {target} already has a different code object")
            }
            Self::TooLarge { what, most } => write!(f, "{what}; at most {most} are supported"),
            Self::NoCompression => f.write_str(NO_COMPRESSION),
            Self::NoSuchKernel { kernel, target } => {
                write!(f, "the archive has no kernel `{kernel}` for {target}")
            }
        }
    }
}

crate::wraps_io!(ArchiveError);

impl From<ArchiveError> for Reason {
    fn from(error: ArchiveError) -> Self {
        let text = error.to_string();
        let reason = match error {
            ArchiveError::Malformed { offset, reason }
            | ArchiveError::Toc { offset, reason }
            | ArchiveError::Decompression { offset, reason } => reason.at(offset),
            ArchiveError::UnsupportedVersion { found } => Self::default().differs(1, found),
            ArchiveError::Conflict { kernel, target }
            | ArchiveError::NoSuchKernel { kernel, target } => {
                Self::default().kernel(kernel).target(target)
            }
            _ => Self::default(),
        };
        Self { text, ..reason }
    }
}

pub(super) fn malformed<T>(offset: u64, reason: impl Into<Reason>) -> Result<T, ArchiveError> {
    Err(ArchiveError::Malformed { offset, reason: reason.into() })
}
