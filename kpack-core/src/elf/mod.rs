//! The parts that relocatable objects and linked files have in common.

mod error;
mod read_at;
mod records;

pub use error::{BinaryError, reason, refuse, unsupported};
pub use read_at::{ReadAt, find_content, read_range};
pub use records::{
    DeviceSection, FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, VERSION, WRAPPER_SECTION,
    WRAPPER_SIZE, Wrapper, pods, pods_mut,
};
