//! Code objects as programs report them: by size and digest.

use std::fmt;

use anyhow::Result;
use kpack_format::digest::{hex, sha256};

/// Stands for the bytes of a code object, so that those of a large library need no memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CodeObject {
    size: usize,
    sha256: String,
}

impl CodeObject {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { size: bytes.len(), sha256: hex(&sha256(bytes)) }
    }

    /// The code object that a program reported by size and digest.
    ///
    /// # Errors
    /// The size is not a number.
    pub(super) fn reported(size: &str, sha256: &str) -> Result<Self> {
        Ok(Self { size: size.parse()?, sha256: sha256.to_owned() })
    }
}

impl fmt::Debug for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, sha256 } = self;
        write!(f, "a code object of {size} bytes, SHA-256 {sha256:.8}…")
    }
}
