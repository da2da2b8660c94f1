//! Limits that every reader of archives enforces, and so every writer keeps. Without them, a
//! damaged or hostile file could ask for any amount of memory.

use super::ArchiveError;

/// Maximum size of a code object, in bytes.
pub const MAX_CODE_OBJECT: u64 = 2 << 30;
/// Maximum number of kernel names. A writer counts a kernel once for each of its targets.
pub const MAX_KERNELS: usize = 1 << 18;
/// Maximum number of entries that a reader accepts: a kernel has one for each of its targets. Entries may share a code
/// object, so the number of code objects does not limit them.
pub(super) const MAX_ENTRIES: usize = 1 << 20;
/// Maximum size of a TOC in bytes: room for the maximum number of kernels, with names of some
/// hundred bytes. A reader allocates no more than a small multiple of the TOC's actual size.
pub const MAX_TOC: u64 = 256 << 20;
/// Maximum number of targets in `gfx_arches`; a target takes few bytes in the file and many in
/// memory.
pub(super) const MAX_TARGETS: usize = 4096;
/// Maximum number of stored code objects. In an archive without `frame_offsets`, a reader walks
/// over all frames before the one it wants.
pub(super) const MAX_FRAMES: usize = 1 << 20;
/// Maximum size of a frame, in bytes: the size is stored as a u32.
pub(super) const MAX_FRAME: u64 = u32::MAX as u64;

/// Every code object that a writer stores has an entry.
const _: () = assert!(MAX_KERNELS <= MAX_FRAMES);

/// Refuses to write `found` (described by `what`) if it exceeds the readers' limit.
pub(super) fn check(
    what: impl FnOnce() -> String,
    found: u64,
    most: u64,
) -> Result<(), ArchiveError> {
    if found <= most { Ok(()) } else { Err(ArchiveError::TooLarge { what: what(), most }) }
}
