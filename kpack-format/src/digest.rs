//! BLAKE3 digests.

use std::mem;

use blake3::CHUNK_LEN;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

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

/// The BLAKE3 digest of bytes whose start is known last, such as those of a file whose header has the size of the rest.
///
/// BLAKE3 hashes chunks of 1024 bytes and joins their hashes in a binary tree, so only the first chunk has to wait for the
/// start. After it come subtrees of 1, 2, 4, 8, … chunks, each hashed as its bytes come.
#[derive(Clone)]
pub(crate) struct LateStart {
    /// Bytes of the first chunk. Those of the start are zeros.
    first: Vec<u8>,
    /// The hashes of complete subtrees.
    subtrees: Vec<ChainingValue>,
    /// The subtree after them, and where it starts. It is as large as all before it.
    last: blake3::Hasher,
    from: u64,
}

impl LateStart {
    /// The start has this many bytes, at most a chunk.
    pub(crate) fn new(start: usize) -> Self {
        let mut first = Vec::with_capacity(CHUNK_LEN);
        first.resize(start, 0);
        let from = CHUNK_LEN as u64;
        Self { first, subtrees: Vec::new(), last: subtree(from), from }
    }

    /// Adds `bytes`, which come after the start.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let room = CHUNK_LEN - self.first.len();
        let (first, mut bytes) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(first);
        while !bytes.is_empty() {
            if self.last.count() == self.from {
                self.from *= 2;
                let complete = mem::replace(&mut self.last, subtree(self.from));
                self.subtrees.push(complete.finalize_non_root());
            }
            let room = usize::try_from(self.from - self.last.count()).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.last.update(now);
            bytes = rest;
        }
    }

    /// The number of all bytes, with the start.
    pub(crate) fn size(&self) -> u64 {
        self.first.len() as u64 + (self.from - CHUNK_LEN as u64) + self.last.count()
    }

    /// The digest.
    pub(crate) fn finish(&self, start: &[u8]) -> Blake3 {
        let rest = &self.first[start.len()..];
        let mut first = blake3::Hasher::new();
        first.update(start).update(rest);
        if self.last.count() == 0 {
            return first.finalize().into();
        }
        let first = first.finalize_non_root();
        let subtrees = self.subtrees.iter();
        let left =
            subtrees.fold(first, |left, right| merge_subtrees_non_root(&left, right, Mode::Hash));
        merge_subtrees_root(&left, &self.last.finalize_non_root(), Mode::Hash).into()
    }
}

/// A hasher of what starts at `from` in the whole.
fn subtree(from: u64) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(from);
    hasher
}

/// The digest of `bytes`.
pub fn blake3(bytes: &[u8]) -> Blake3 {
    blake3::hash(bytes).into()
}

/// Bytes as lowercase hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_is_known_late_gives_the_same_digest() {
        let bytes: Vec<u8> = (0..9 * CHUNK_LEN).map(|n| (n % 251) as u8).collect();
        let sizes = (0..=9).flat_map(|chunks| [-1, 0, 1].map(|more| chunks * 1024 + more));
        for size in sizes.filter(|size| (68..=bytes.len() as i64).contains(size)) {
            for piece in [1, 100, 1024, 5000] {
                let (start, rest) = bytes[..size as usize].split_at(68);
                let mut hasher = LateStart::new(start.len());
                rest.chunks(piece).for_each(|piece| hasher.update(piece));
                let expected = (size as u64, blake3(&bytes[..size as usize]));
                assert_eq!(
                    (hasher.size(), hasher.finish(start)),
                    expected,
                    "{size} bytes, {piece} at once"
                );
            }
        }
    }
}
