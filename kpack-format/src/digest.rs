//! SHA-256 digests.

use std::fmt;

use crate::backend::Sha256Context;

/// A SHA-256 digest.
pub type Sha256 = [u8; 32];

/// The digest of `bytes`.
pub fn sha256(bytes: &[u8]) -> Sha256 {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// Bytes as lowercase hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of bytes that come one after the other.
#[derive(Clone, Default)]
pub struct Hasher(Sha256Context);

impl Hasher {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes that were added.
    pub fn finish(self) -> Sha256 {
        self.0.finish()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}
