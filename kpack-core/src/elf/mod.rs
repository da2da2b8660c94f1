//! The parts that relocatable objects and linked files have in common.

mod error;
mod read_at;
mod records;

pub use error::{ElfError, refuse, unsupported};
pub use read_at::ReadAt;
pub use read_at::find_content;
pub use records::{
    FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, VERSION, WRAPPER_SECTION, WRAPPER_SIZE, Wrapper,
    pods, pods_mut,
};
