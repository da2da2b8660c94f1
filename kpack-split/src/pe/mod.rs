//! Splits one DLL or program for Windows: reads it, finds its device code, plans the host binary, and applies the
//! plan. `PeJoinPlan` is the reverse.
//!
//! `Image` (headers) → `DeviceCode` (wrappers and bundles) → `PePlan` (the layout, pure data) → `PePlan::apply` (the
//! rewrite, checked afterwards).

mod check;
mod checksum;
mod facts;
mod former;
mod image;
mod imports;
mod join;
mod layout;
mod memory;
mod plan;
mod relocations;
mod wrappers;

pub use check::sound as check_loaded;
pub(crate) use checksum::Sums;
pub(crate) use facts::{build_marks, data, facts};
pub use image::{CODE_SECTIONS, Image, MARKER_SECTION, Section, WRAPPER_SECTIONS};
pub use imports::ImportedDll;
pub use join::PeJoinPlan;
pub use memory::compare;
pub use plan::PePlan;
