//! The error for a refused binary.

use std::fmt;
use std::io;

/// Why a binary was rejected. The caller knows the path.
#[derive(Debug)]
#[non_exhaustive]
pub enum BinaryError {
    /// Reading or writing failed.
    Io(io::Error),
    /// A relocatable object: its device code is split before the link.
    Relocatable,
    /// The file is damaged; the text names the offending thing, what was expected and what was found.
    Refused(String),
    /// The file is sound, but of a kind that cannot be rewritten; the text says what it has.
    Unsupported(String),
    /// It has a signature, which no changed binary would keep.
    Signed,
    /// The host binary made from a sound file is damaged, which is a fault of this program. The
    /// text says what is wrong with it.
    Unsound(String),
}

impl fmt::Display for BinaryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Relocatable => f.write_str("a relocatable object; split it with `kpack object`"),
            Self::Signed => f.write_str(
                "has a signature, which would not fit the changed binary; run kpack on the unsigned one, then sign it",
            ),
            Self::Refused(reason) | Self::Unsupported(reason) => f.write_str(reason),
            Self::Unsound(reason) => write!(
                f,
                "kpack cannot write a sound host binary for it, which is a bug in kpack; please report it: {reason}"
            ),
        }
    }
}

impl std::error::Error for BinaryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<std::io::Error> for BinaryError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Shorthand for [`BinaryError::Refused`] with a formatted text.
// Macros are exported at the crate's root; this one is documented as `shared::elf::refuse`.
#[doc(hidden)]
#[macro_export]
macro_rules! __refuse {
    ($($arg:tt)*) => {
        return Err($crate::elf::BinaryError::Refused(format!($($arg)*)))
    };
}
pub use __refuse as refuse;

/// Shorthand for [`BinaryError::Unsupported`] with a formatted text.
#[doc(hidden)]
#[macro_export]
macro_rules! __unsupported {
    ($($arg:tt)*) => {
        return Err($crate::elf::BinaryError::Unsupported(format!($($arg)*)))
    };
}
pub use __unsupported as unsupported;
