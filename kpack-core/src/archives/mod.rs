//! Reads device code: the bundles of a file, and their code objects by target.

mod budget;
pub mod code_ids;
mod compress;
mod content;
mod debug_info;
pub mod debug_sections;
mod device_code;
pub mod padding;
mod spirv;
mod storage;
pub mod variants;

pub use budget::{Budget, Permit};
pub use compress::{CompressedArchives, Compression, compress};
pub use content::{LARGE_CODE_OBJECT, UncompressedCode};
pub use debug_info::{DebugFiles, DebugTotals, Treatment, debug_advice};
pub use device_code::{KeptBundle, PackedCode};
pub use spirv::Spirv;
pub use storage::{DebugInfo, Storage};
