//! BLAKE3 digests.

/// A BLAKE3 digest.
pub type Blake3 = [u8; 32];

/// The BLAKE3 digest of bytes that come one after another. It uses the vector instructions that the processor has.
#[derive(Clone, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes that were added.
    pub fn finish(self) -> Blake3 {
        self.0.finalize().into()
    }
}

/// The digest of `bytes`.
pub fn blake3(bytes: &[u8]) -> Blake3 {
    blake3::hash(bytes).into()
}

/// Bytes as lowercase hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
