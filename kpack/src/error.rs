//! Errors, and their numbers in the C interface.

use std::io;
use std::path::{Path, PathBuf};

use kpack_format::archive::ArchiveError;
use kpack_format::finding::{self, Id};
use kpack_format::marker::MarkerError;
use kpack_format::target_id::ParseTargetIdError;

use crate::Report;
use crate::error_code::kpack_error_t as ErrorCode;

/// Why an archive could not be read, or a code object was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file.
    #[error("{}: no such file", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// A file that cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is damaged or not an archive.
    #[error("{}: {source}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Where, what was expected, and what was found.
        source: ArchiveError,
    },
    /// An archive with a name that C cannot represent.
    #[error("{}: the name {name:?} contains a NUL character", path.display())]
    NulInName {
        /// The file.
        path: PathBuf,
        /// A target ID or a kernel name.
        name: String,
    },
    /// Too little memory for a code object.
    #[error("not enough memory for a code object of {size} bytes")]
    OutOfMemory {
        /// Size in bytes.
        size: u64,
    },
    /// An address at which no file is mapped.
    #[error("no file is mapped at address {address:#x}")]
    NotMapped {
        /// The address.
        address: usize,
    },
    /// An address at which there is no marker.
    #[error("at address {address:#x}: {source}")]
    Marker {
        /// The address.
        address: usize,
        /// What was expected, and what was found.
        source: MarkerError,
    },
    /// An address that cannot be read.
    #[error("the marker's address {address:#x} cannot be read")]
    NotReadable {
        /// The address.
        address: usize,
    },
    /// The text is not a target ID.
    #[error(transparent)]
    Target(#[from] ParseTargetIdError),
    /// No ISA was given.
    #[error("no GPU ISA was given")]
    NoIsa,
    /// `ROCM_KPACK_DISABLE` is set.
    #[error("ROCM_KPACK_DISABLE turns off loading from archives")]
    Disabled,
    /// The code object was not found; the report lists where the loader looked.
    #[error("{report}")]
    NoCodeObject {
        /// [`ErrorCode::KPACK_ERROR_IO_ERROR`], [`ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND`],
        /// [`ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND`], [`ErrorCode::KPACK_ERROR_INVALID_FORMAT`] or
        /// [`ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND`].
        code: ErrorCode,
        /// The attempts.
        report: Box<Report>,
    },
}

impl Error {
    /// The number that the C interface returns for it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } => ErrorCode::KPACK_ERROR_FILE_NOT_FOUND,
            Self::Io { .. } => ErrorCode::KPACK_ERROR_IO_ERROR,
            Self::Archive { source, .. } => match source {
                ArchiveError::Io(_) => ErrorCode::KPACK_ERROR_IO_ERROR,
                ArchiveError::Toc { .. } => ErrorCode::KPACK_ERROR_MSGPACK_PARSE_FAILED,
                ArchiveError::Decompression { .. } => ErrorCode::KPACK_ERROR_DECOMPRESSION_FAILED,
                ArchiveError::UnsupportedVersion { .. } => {
                    ErrorCode::KPACK_ERROR_UNSUPPORTED_VERSION
                }
                ArchiveError::NoSuchKernel { .. } => ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND,
                _ => ErrorCode::KPACK_ERROR_INVALID_FORMAT,
            },
            Self::NulInName { .. } => ErrorCode::KPACK_ERROR_INVALID_FORMAT,
            Self::OutOfMemory { .. } => ErrorCode::KPACK_ERROR_OUT_OF_MEMORY,
            Self::NotMapped { .. } => ErrorCode::KPACK_ERROR_PATH_DISCOVERY_FAILED,
            Self::Marker { .. } | Self::NotReadable { .. } => {
                ErrorCode::KPACK_ERROR_INVALID_METADATA
            }
            Self::Target(_) | Self::NoIsa => ErrorCode::KPACK_ERROR_INVALID_ARGUMENT,
            Self::Disabled => ErrorCode::KPACK_ERROR_NOT_IMPLEMENTED,
            Self::NoCodeObject { code, .. } => *code,
        }
    }

    /// What kind of problem it is; `kpack explain` says more about it.
    pub fn id(&self) -> Id {
        match self {
            Self::NotFound { .. } => finding::MISSING_ARCHIVE,
            Self::Archive { source: ArchiveError::Io(_), .. }
            | Self::Io { .. }
            | Self::OutOfMemory { .. } => finding::SYSTEM,
            Self::Archive { .. } | Self::NulInName { .. } => finding::DAMAGED_ARCHIVE,
            Self::Marker { .. } | Self::NotReadable { .. } => finding::DAMAGED_MARKER,
            Self::NotMapped { .. } | Self::Target(_) | Self::NoIsa => finding::USAGE,
            Self::Disabled => finding::LOADER_DISABLED,
            Self::NoCodeObject { report, .. } => report.id(),
        }
    }

    /// Whether it is a failed system call that says nothing about the file, as
    /// [`kpack_format::is_exhaustion`] decides.
    pub fn is_exhaustion(&self) -> bool {
        matches!(self, Self::Io { source, .. } if kpack_format::is_exhaustion(source))
    }

    /// For an operation on the file at `path`.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound { path },
            _ => Self::Io { path, source },
        }
    }
}
