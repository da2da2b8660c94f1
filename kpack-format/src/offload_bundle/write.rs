//! Plain bundles, written.

use super::PLAIN_MAGIC;

/// What clang aligns the code objects in a bundle of HIP to (`--bundle-align`), in bytes.
const ALIGNMENT: usize = 4096;

/// A plain bundle of `entries`, entry IDs and what they have, in their order. The host's entry comes
/// first, and is empty (LLVM, "Clang Offload Bundler", "Bundled Code Object Layout").
pub fn plain<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let entries: Vec<(&str, &[u8])> = entries.into_iter().collect();
    let table: usize = entries.iter().map(|(id, _)| 24 + id.len()).sum();
    let mut end = PLAIN_MAGIC.len() + 8 + table;
    let mut bytes = PLAIN_MAGIC.to_vec();
    bytes.extend((entries.len() as u64).to_le_bytes());
    let mut places = Vec::new();
    for (id, code) in &entries {
        let place = end.next_multiple_of(ALIGNMENT);
        for word in [place, code.len(), id.len()] {
            bytes.extend((word as u64).to_le_bytes());
        }
        bytes.extend(id.as_bytes());
        places.push(place);
        end = place + code.len();
    }
    for ((_, code), place) in entries.iter().zip(places) {
        if !code.is_empty() {
            bytes.resize(place, 0);
            bytes.extend(*code);
        }
    }
    bytes
}
