//! SHA-256 digests.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

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

/// A digest, or the start of one, as it stands in a file: a MessagePack byte string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest<const SIZE: usize = 32>(pub(crate) [u8; SIZE]);

impl<const SIZE: usize> Serialize for Digest<SIZE> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de, const SIZE: usize> Deserialize<'de> for Digest<SIZE> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(DigestVisitor).map(Self)
    }
}

struct DigestVisitor<const SIZE: usize>;

impl<'de, const SIZE: usize> Visitor<'de> for DigestVisitor<SIZE> {
    type Value = [u8; SIZE];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a digest of {SIZE} bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        bytes
            .try_into()
            .map_err(|_| E::invalid_length(bytes.len(), &self))
    }

    // Some writers know no byte strings.
    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Self::Value, A::Error> {
        let mut digest = [0; SIZE];
        for (index, byte) in digest.iter_mut().enumerate() {
            *byte = bytes
                .next_element()?
                .ok_or_else(|| de::Error::invalid_length(index, &self))?;
        }
        match bytes.next_element::<de::IgnoredAny>()? {
            None => Ok(digest),
            Some(_) => Err(de::Error::invalid_length(SIZE + 1, &self)),
        }
    }
}
