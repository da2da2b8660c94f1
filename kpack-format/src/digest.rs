//! SHA-256 digests.

use sha2::Digest;

/// A SHA-256 digest.
pub type Sha256 = [u8; 32];

/// The SHA-256 of bytes that come one after another. It uses SHA instructions if the processor has them.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes that were added.
    pub fn finish(self) -> Sha256 {
        self.0.finalize().into()
    }
}

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
