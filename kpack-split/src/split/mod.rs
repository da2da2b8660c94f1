//! Device code of one fat binary: the plan of its host binary, and its code objects by target.

mod fat_file;
mod presplit;

pub use fat_file::{BinaryKind, FatFile, file_names, of, read, warn_of_names};
pub use kpack_core::archives::{
    Budget, CompressedArchives, Compression, DebugFiles, DebugInfo, DebugTotals, PackedCode, Spirv,
    Treatment, code_ids, compress, padding, variants,
};
pub use presplit::Presplit;

/// What to do with device code for a target that is not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Unexpected {
    /// Skip it, with a warning
    #[default]
    Drop,
    /// Reject the input
    Error,
    /// Keep it
    Keep,
}
