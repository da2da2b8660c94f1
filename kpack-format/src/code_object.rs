//! What an AMDGPU code object says of itself: target and extent.

use std::io::{Read, Seek};

use crate::TargetId;

/// The facts of a code object that its ELF header tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeObject {
    /// What it was compiled for. `None` for a processor that this version does not know.
    pub target: Option<TargetId>,
    /// `e_flags` as they are.
    pub flags: u32,
    /// The code object version's ELF ABI version (`e_ident[EI_ABIVERSION]`): 2 for v4, 3 for v5.
    pub abi_version: u8,
    /// How many bytes the ELF file occupies, from its headers.
    pub size: u64,
}

/// Why bytes are no AMDGPU code object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeObjectError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes are not a code object; the text says what was expected and what was found.
    #[error("not an AMDGPU code object: {0}")]
    Malformed(String),
}

impl CodeObject {
    /// Reads the headers of the code object at the current position of `source`, of which
    /// `available` bytes may be used.
    pub fn read<R: Read + Seek>(source: &mut R, available: u64) -> Result<Self, CodeObjectError> {
        let _ = (source, available);
        todo!()
    }
}
