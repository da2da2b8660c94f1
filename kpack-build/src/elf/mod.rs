//! One linked ELF file: read, find its device code, plan the host binary, apply the plan.
//!
//! `Image` (headers) → `DeviceCode` (wrappers and bundles) → `Plan` (the layout, pure data)
//! → `Plan::apply` (the rewrite, checked afterwards).

#[cfg(feature = "install")]
mod check;
#[cfg(feature = "install")]
mod compare;
#[cfg(feature = "install")]
mod dynamic;
#[cfg(feature = "install")]
mod edits;
mod error;
#[cfg(feature = "install")]
mod headers;
#[cfg(feature = "install")]
mod image;
#[cfg(feature = "install")]
mod layout;
mod read_at;
mod records;
#[cfg(feature = "install")]
mod rewrite;
#[cfg(feature = "install")]
mod room;
#[cfg(feature = "install")]
mod section_table;
#[cfg(feature = "install")]
mod wrappers;

#[cfg(feature = "install")]
pub use self::{
    compare::compare,
    image::Image,
    layout::Plan,
    wrappers::{DeviceCode, FatBinary, NoDeviceCode, SplitBinary, SplitWrapper},
};
#[cfg(feature = "install")]
pub(crate) use dynamic::{Dynamic, Relocations, is_address};
pub use error::ElfError;
pub(crate) use error::refuse;
#[cfg(feature = "install")]
pub(crate) use headers::Section;
pub use read_at::ReadAt;
pub use records::Wrapper;
pub(crate) use records::{
    FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, VERSION, WRAPPER_SECTION, WRAPPER_SIZE, pods,
    pods_mut,
};
