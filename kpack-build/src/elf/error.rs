//! Why a binary is refused.

use std::io;

/// Why a binary was refused. The caller knows the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A relocatable object: its device code is split before the link.
    #[error("it is a relocatable object; its device code has to be split before the link")]
    Relocatable,
    /// The file is damaged, or of a kind that cannot be rewritten; the text names the offending
    /// thing, what was expected and what was found.
    #[error("{0}")]
    Refused(String),
}

/// Shorthand for [`ElfError::Refused`] with a formatted text.
macro_rules! refuse {
    ($($arg:tt)*) => {
        return Err($crate::elf::ElfError::Refused(format!($($arg)*)))
    };
}
pub(crate) use refuse;
