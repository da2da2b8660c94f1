//! Why bytes are not a bundle.

use std::fmt;
use std::io;

use crate::Reason;

/// Why bytes are not a bundle. Offsets are from the start of the bundle.
#[derive(Debug)]
#[non_exhaustive]
pub enum BundleError {
    /// Reading failed.
    Io(std::io::Error),
    /// The bytes are not a bundle, or it is damaged.
    Malformed {
        /// Offset in bytes from the start of the bundle.
        offset: u64,
        /// What was expected and what was found.
        reason: Reason,
    },
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Malformed { offset, reason } => {
                write!(f, "at offset {offset:#x} of the bundle: {reason}")
            }
        }
    }
}

crate::wraps_io!(BundleError);

impl From<BundleError> for Reason {
    fn from(error: BundleError) -> Self {
        let text = error.to_string();
        match error {
            BundleError::Malformed { reason, .. } => Self { text, ..reason },
            BundleError::Io(_) => text.into(),
        }
    }
}

pub(crate) fn malformed<T>(offset: u64, reason: impl Into<Reason>) -> Result<T, BundleError> {
    Err(BundleError::Malformed { offset, reason: reason.into() })
}

/// The error for a failed decompressor at decompressed offset `at`: damaged data, unless the system
/// failed.
pub(super) fn failed<T>(at: u64) -> impl Fn(io::Error) -> Result<T, BundleError> {
    move |error| match error.raw_os_error() {
        Some(_) => Err(BundleError::Io(error)),
        None if error.kind() == io::ErrorKind::OutOfMemory => Err(BundleError::Io(error)),
        None => malformed!(at, "cannot be decompressed: {error}"),
    }
}
