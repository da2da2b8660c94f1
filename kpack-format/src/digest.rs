//! SHA-256 digests.

use std::fmt;

/// A SHA-256 digest.
pub type Sha256 = [u8; 32];

/// The digest of `bytes`.
pub fn sha256(bytes: &[u8]) -> Sha256 {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// Where everything is optimised, assembly is twice as fast; where nothing is, as in a build
/// script, it is compiling that counts.
#[cfg(feature = "ring")]
mod implementation {
    #[derive(Clone)]
    pub(super) struct Context(ring::digest::Context);

    impl Context {
        pub(super) fn new() -> Self {
            Self(ring::digest::Context::new(&ring::digest::SHA256))
        }

        pub(super) fn update(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        pub(super) fn finish(self) -> super::Sha256 {
            let mut digest = [0; 32];
            digest.copy_from_slice(self.0.finish().as_ref());
            digest
        }
    }
}

#[cfg(not(feature = "ring"))]
mod implementation {
    #[derive(Clone)]
    pub(super) struct Context(hmac_sha256::Hash);

    impl Context {
        pub(super) fn new() -> Self {
            Self(hmac_sha256::Hash::new())
        }

        pub(super) fn update(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        pub(super) fn finish(self) -> super::Sha256 {
            self.0.finalize()
        }
    }
}

/// The digest of bytes that come one after the other.
#[derive(Clone)]
pub struct Hasher(implementation::Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(implementation::Context::new())
    }
}

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
