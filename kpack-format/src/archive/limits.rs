//! The limits that every reader of archives keeps to, and every writer therefore, too. Without them, a
//! damaged or hostile file could ask for any amount of memory.

use super::ArchiveError;

/// The largest code object, in bytes.
pub const MAX_CODE_OBJECT: u64 = 2 << 30;
/// The most kernel names.
pub const MAX_KERNELS: usize = 1 << 18;
/// The largest TOC, in bytes: room for as many kernels as there may be, with names of some hundred
/// bytes. A reader allocates no more than a small multiple of what the TOC really has.
pub const MAX_TOC: u64 = 256 << 20;
/// The most targets in `gfx_arches`; one of few bytes in the file is many in memory.
pub(super) const MAX_TARGETS: usize = 4096;
/// The most stored code objects. In an archive without `frame_offsets`, a reader walks over those in
/// front of the one that it wants.
pub(super) const MAX_FRAMES: usize = 1 << 20;
/// The largest frame, in bytes: its size is a u32.
pub(super) const MAX_FRAME: u64 = u32::MAX as u64;

/// A writer stores no code object that no kernel names, and an archive has one target.
const _: () = assert!(MAX_KERNELS <= MAX_FRAMES);

/// Refuses to write `found`, which `what` describes, where readers take less.
pub(super) fn check(
    what: impl FnOnce() -> String,
    found: u64,
    most: u64,
) -> Result<(), ArchiveError> {
    match found <= most {
        true => Ok(()),
        false => Err(ArchiveError::TooLarge { what: what(), most }),
    }
}
