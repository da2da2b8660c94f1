//! Writes plain bundles.

use super::bundle::PLAIN_MAGIC;

/// Alignment of code objects in HIP bundles that clang writes (`--bundle-align`), in bytes.
const ALIGNMENT: u64 = 4096;

/// The ID of the host's entry, which is first and empty. clang writes this one for all hosts, and newer versions
/// `host-x86_64-unknown-linux-gnu-` (`constructHIPFatbinCommand` in `HIPUtility.cpp`). HIP runtimes read neither.
pub const HOST_ENTRY: &str = "host-x86_64-unknown-linux--";

/// Where everything is in a plain bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The bundle's first bytes: its table.
    pub table: Vec<u8>,
    /// The offset of each entry from the start of the bundle, in bytes.
    pub offsets: Vec<u64>,
    /// Size of the bundle in bytes.
    pub size: u64,
}

impl Layout {
    /// The layout of a bundle of `entries`, entry IDs and sizes in bytes, in their order. The host's
    /// entry comes first, and is empty (LLVM, "Clang Offload Bundler", "Bundled Code Object Layout").
    pub fn new(entries: &[(String, u64)]) -> Self {
        let ids: usize = entries.iter().map(|(id, _)| 24 + id.len()).sum();
        let mut size = (PLAIN_MAGIC.len() + 8 + ids) as u64;
        let mut table = PLAIN_MAGIC.to_vec();
        table.extend((entries.len() as u64).to_le_bytes());
        let mut offsets = Vec::with_capacity(entries.len());
        for (id, length) in entries {
            let place = size.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
            for word in [place, *length, id.len() as u64] {
                table.extend(word.to_le_bytes());
            }
            table.extend(id.as_bytes());
            offsets.push(place);
            // The offset of an empty entry is also in the bundle.
            size = place.saturating_add(*length);
        }
        Self { table, offsets, size }
    }
}

/// A plain bundle of `entries` (entry IDs and content), in their order. The host's entry comes
/// first and is empty (LLVM, "Clang Offload Bundler", "Bundled Code Object Layout").
pub fn plain<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let entries: Vec<(&str, &[u8])> = entries.into_iter().collect();
    let sizes = entries.iter().map(|(id, code)| ((*id).to_owned(), code.len() as u64));
    let layout = Layout::new(&Vec::from_iter(sizes));
    let mut bytes = layout.table;
    for ((_, code), place) in entries.iter().zip(layout.offsets) {
        bytes.resize(place as usize, 0);
        bytes.extend(*code);
    }
    bytes
}
