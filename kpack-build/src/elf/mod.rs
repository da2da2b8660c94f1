//! One linked ELF file: read, find its device code, plan the host binary, apply the plan.
//!
//! [`Image`] (headers) → [`DeviceCode`] (wrappers and bundles) → [`Plan`] (the layout, pure data)
//! → [`Plan::apply`] (the rewrite, checked afterwards).

mod check;
mod compare;
mod dynamic;
mod edits;
mod error;
mod headers;
mod image;
mod layout;
mod read_at;
mod rewrite;
mod room;
mod section_table;
mod wrappers;

pub use compare::compare;
pub use error::ElfError;
pub use image::Image;
pub(crate) use image::{pods, pods_mut};
pub use layout::Plan;
pub use read_at::ReadAt;
pub(crate) use wrappers::FAT_SECTION;
pub use wrappers::{DeviceCode, FatBinary, NoDeviceCode, SplitBinary, SplitWrapper, Wrapper};
pub(crate) use wrappers::{
    MAGIC_FAT, MAGIC_SPLIT, POINTER, VERSION, WRAPPER_SECTION, WRAPPER_SIZE,
};
