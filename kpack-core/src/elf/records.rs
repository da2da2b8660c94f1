//! Wrappers and byte records, which relocatable objects and linked files share.

use object::pod::{self, Pod};

/// The section that holds the bundles.
pub const FAT_SECTION: &str = ".hip_fatbin";
/// The section that holds the wrappers.
pub const WRAPPER_SECTION: &str = ".hipFatBinSegment";

/// `HIPF`: the wrapper points to a bundle.
pub const MAGIC_FAT: u32 = 0x4849_5046;
/// `HIPK`: the wrapper points to a marker.
pub const MAGIC_SPLIT: u32 = 0x4b50_4948;
/// The only version of a wrapper.
pub const VERSION: u32 = 1;
/// Size of a wrapper (`__CudaFatBinaryWrapper`), in bytes.
pub const WRAPPER_SIZE: u64 = 24;
/// Offset of the pointer in a wrapper, in bytes.
pub const POINTER: u64 = 8;

/// A wrapper with magic HIPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrapper {
    /// Its position among all wrappers of the file, which is its code object index when it is split.
    pub co_index: u32,
    /// Address of the wrapper.
    pub address: u64,
    /// Address of its bundle.
    pub bundle_address: u64,
    /// File offset of its bundle.
    pub bundle_offset: u64,
    /// How many bytes the bundle may occupy: up to the next bundle that another wrapper points to,
    /// or the end of the section.
    pub bundle_available: u64,
}

/// The records in `bytes`; ignores an incomplete one at the end.
pub fn pods<T: Pod>(bytes: &[u8]) -> &[T] {
    let count = bytes.len() / size_of::<T>();
    // The length fits, and `object`'s ELF records have alignment 1.
    pod::slice_from_bytes(bytes, count).map_or(&[], |(records, _)| records)
}

/// The records in `bytes`, to be changed in place.
pub fn pods_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    let count = bytes.len() / size_of::<T>();
    pod::slice_from_bytes_mut(bytes, count).map_or(&mut [], |(records, _)| records)
}
