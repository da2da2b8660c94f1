//! The ID that ties a host binary to its device code for one target.

use std::collections::BTreeMap;

use crate::digest::{Blake3, Hasher};
use crate::names::KernelName;

/// The ID of a binary's device code for one target. Equal code objects at equal code object indices
/// have the same ID. It depends on that target's code alone, so a new host or another target does
/// not change it.
pub type CodeId = [u8; 8];

/// Computes the ID of code objects, given as BLAKE3 digests by code object index; `None` if there are
/// none.
///
/// It is the start of the BLAKE3 digest of, for each index in ascending order, the index (u32,
/// little-endian) and the BLAKE3 digest of the code object.
pub fn code_id(checksums: &BTreeMap<u32, Blake3>) -> Option<CodeId> {
    if checksums.is_empty() {
        return None;
    }
    let mut hasher = Hasher::default();
    for (index, checksum) in checksums {
        hasher.update(&index.to_le_bytes());
        hasher.update(checksum);
    }
    hasher.finish().first_chunk().copied()
}

/// The code object index of `kernel`, if it is one of `binary`: `lib/libvec.so#2` is index 2 of
/// `lib/libvec.so`.
pub(crate) fn index_in(kernel: &str, binary: &str) -> Option<u32> {
    let name = KernelName::parse(kernel);
    name.index.filter(|_| name.binary == binary)
}
