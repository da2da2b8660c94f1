//! The error for a refused binary.

use std::fmt;
use std::io;

use kpack_format::Reason;

/// Why a binary was rejected. The caller knows the path.
#[derive(Debug)]
#[non_exhaustive]
pub enum BinaryError {
    /// Reading or writing failed.
    Io(io::Error),
    /// A relocatable object: its device code is split before the link.
    Relocatable,
    /// The file ends before something that its headers name.
    Truncated(Reason),
    /// The file is damaged; the text names the offending thing, what was expected and what was found.
    Refused(Reason),
    /// The file is sound, but of a kind that cannot be rewritten; the text says what it has.
    Unsupported(Reason),
    /// It has a signature, which no changed binary would keep.
    Signed,
    /// The host binary made from a sound file is damaged, which is a fault of this program. The
    /// text says what is wrong with it.
    Unsound(Reason),
}

impl fmt::Display for BinaryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Relocatable => f.write_str("a relocatable object; split it with `kpack object`"),
            Self::Signed => f.write_str(
                "has a signature, which would not fit the changed binary; run kpack on the unsigned one, then sign it",
            ),
            Self::Truncated(reason) | Self::Refused(reason) | Self::Unsupported(reason) => {
                reason.fmt(f)
            }
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

impl From<BinaryError> for Reason {
    fn from(error: BinaryError) -> Self {
        let text = error.to_string();
        match error {
            BinaryError::Truncated(reason)
            | BinaryError::Refused(reason)
            | BinaryError::Unsupported(reason)
            | BinaryError::Unsound(reason) => Self::new(text, reason.details),
            _ => text.into(),
        }
    }
}

/// A [`Reason`] of a formatted text, after what it says as data, if anything: `at OFFSET`, `expected E, found F`.
#[doc(hidden)]
#[macro_export]
macro_rules! __reason {
    (at $offset:expr, expected $expected:expr, found $found:expr; $($text:tt)*) => {
        $crate::elf::reason!(expected $expected, found $found; $($text)*).at($offset)
    };
    (at $offset:expr; $($text:tt)*) => {
        $crate::elf::reason!($($text)*).at($offset)
    };
    (expected $expected:expr, found $found:expr; $($text:tt)*) => {
        $crate::elf::reason!($($text)*).differs($expected, $found)
    };
    ($($text:tt)*) => {
        $crate::Reason::from(format!($($text)*))
    };
}
pub use __reason as reason;

/// Shorthand for [`BinaryError::Refused`] with a [`reason`].
// Macros are exported at the crate's root; this one is documented as `shared::elf::refuse`.
#[doc(hidden)]
#[macro_export]
macro_rules! __refuse {
    ($($arg:tt)*) => {
        return Err($crate::elf::BinaryError::Refused($crate::elf::reason!($($arg)*)))
    };
}
pub use __refuse as refuse;

/// Shorthand for [`BinaryError::Unsupported`] with a [`reason`].
#[doc(hidden)]
#[macro_export]
macro_rules! __unsupported {
    ($($arg:tt)*) => {
        return Err($crate::elf::BinaryError::Unsupported($crate::elf::reason!($($arg)*)))
    };
}
pub use __unsupported as unsupported;
