//! Device code of one fat binary: the plan of its host binary, and its code objects by target.

mod fat_file;
mod presplit;

use clap::ValueEnum;

pub(crate) use fat_file::{BinaryKind, FatFile, of, read};
pub(crate) use kpack_core::archives::{
    Budget, Compression, PackedCode, code_ids, compress, padding,
};
pub(crate) use presplit::Presplit;

/// How to treat device code for a target that is not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Unexpected {
    /// Skip it, with a warning
    #[default]
    Drop,
    /// Reject the input
    Error,
    /// Keep it
    Keep,
}
