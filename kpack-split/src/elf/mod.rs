//! Splits one linked ELF file: reads it, finds its device code, plans the host binary, and applies
//! the plan. `ElfJoinPlan` is the reverse.
//!
//! `Image` (headers) → `DeviceCode` (wrappers and bundles) → `ElfPlan` (the layout, pure data)
//! → `ElfPlan::apply` (the rewrite, checked afterwards).

mod check;
mod dynamic;
mod facts;
mod former;
mod headers;
mod image;
mod in_data;
mod join;
mod layout;
mod memory;
mod plan;
mod room;
pub mod run_path;
mod section_table;
mod wrappers;

pub use self::{image::Image, join::ElfJoinPlan, memory::compare, plan::ElfPlan};
pub use crate::device_code::{
    DeviceCode, FatBinary, KeptMarker, NewCode, NoDeviceCode, SplitWrapper,
};
pub use check::{code_left, loaded as check_loaded};
pub use dynamic::{Dynamic, Relocation, Relocations, is_address};
pub(crate) use facts::{build_marks, data, facts};
pub use headers::{Section, Segment};
pub use image::Machine;
pub use in_data::DataBundles;
pub(crate) use in_data::bundles_in_data;
use kpack_core::elf as records;
pub use kpack_core::elf::{BinaryError, FAT_SECTION, ReadAt, WRAPPER_SECTION, Wrapper, pods};
pub(crate) use kpack_core::elf::{refuse, unsupported};
