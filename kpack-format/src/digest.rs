//! SHA-256 digests.

pub use crate::backend::Hasher;

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
