//! Why an archive cannot be read or written.

use std::fmt;

use super::codec::NO_COMPRESSION;

/// Why bytes are no archive, or why one could not be written. Offsets are from the start of the
/// file.
#[derive(Debug)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Reading or writing failed.
    Io(std::io::Error),
    /// The bytes are not an archive; says where, what was expected and what was found.
    Malformed {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
    /// The TOC is no MessagePack map with a TOC's keys and types; says why.
    Toc {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
    /// A stored code object does not decompress to what the TOC says.
    Decompression {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// Which kernel, and what is wrong.
        reason: String,
    },
    /// A version of the format that this library does not read.
    UnsupportedVersion {
        /// The version in the header or the TOC.
        found: u64,
    },
    /// The kernel is there already, with another code object.
    Conflict {
        /// Kernel name.
        kernel: String,
        /// Target ID.
        target: String,
    },
    /// More than a reader takes, so it is not written.
    TooLarge {
        /// What is too large, and how large it is.
        what: String,
        /// The limit.
        most: u64,
    },
    /// A Zstandard frame, and a program without zstd.
    NoCompression,
    /// No such kernel for that target.
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
            Self::Toc { offset, reason } => write!(
                f,
                "at offset {offset:#x} of the archive: the TOC cannot be read: {reason}"
            ),
            Self::UnsupportedVersion { found } => write!(
                f,
                "archive format version {found}; this program reads version 1"
            ),
            Self::Conflict { kernel, target } => write!(
                f,
                "kernel `{kernel}` for {target} already has a different code object"
            ),
            Self::TooLarge { what, most } => write!(f, "{what}; at most {most} are supported"),
            Self::NoCompression => f.write_str(NO_COMPRESSION),
            Self::NoSuchKernel { kernel, target } => {
                write!(f, "the archive has no kernel `{kernel}` for {target}")
            }
        }
    }
}

crate::wraps_io!(ArchiveError);
