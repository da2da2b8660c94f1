//! Code objects as programs report them: by size and digest.

use std::fmt;

use anyhow::{Context, Result};
use ring::digest::{SHA256, digest};

/// Stands for the bytes of a code object, so that those of a large library need no memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CodeObject {
    size: usize,
    sha256: [u8; 32],
}

impl CodeObject {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            size: bytes.len(),
            sha256: digest(&SHA256, bytes).as_ref().try_into().unwrap(),
        }
    }

    /// The code object that a program reported by size and digest.
    ///
    /// # Errors
    /// One of them is not a number or not a digest.
    pub(super) fn reported(size: &str, sha256: &str) -> Result<Self> {
        let byte = |at: usize| u8::from_str_radix(sha256.get(at..at + 2)?, 16).ok();
        let digest: Option<Vec<u8>> = (0..64).step_by(2).map(byte).collect();
        let digest = digest.and_then(|digest| digest.try_into().ok());
        Ok(Self {
            size: size.parse()?,
            sha256: digest.with_context(|| format!("{sha256} is not a SHA-256"))?,
        })
    }
}

impl fmt::Debug for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.sha256;
        write!(
            f,
            "a code object of {} bytes, SHA-256 {a:02x}{b:02x}{c:02x}{d:02x}…",
            self.size
        )
    }
}
