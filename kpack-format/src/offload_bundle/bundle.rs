//! A bundle's table of contents.

use std::fmt;

use super::entry_id::EntryId;
use crate::TargetId;

/// The first bytes of a plain bundle.
pub const PLAIN_MAGIC: &[u8; 24] = b"__CLANG_OFFLOAD_BUNDLE__";
/// The first bytes of a compressed bundle.
pub const COMPRESSED_MAGIC: &[u8; 4] = b"CCOB";

/// A bundle's table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bundle {
    /// How it is stored.
    pub format: Format,
    /// Size in the source in bytes, with the header and without the padding after the bundle.
    pub size: u64,
    /// Its entries, in table order.
    pub entries: Vec<Entry>,
}

/// How a bundle is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Uncompressed.
    Plain,
    /// CCOB.
    Compressed {
        /// Header version, 1 to 3.
        version: u16,
        /// Compression method.
        method: Method,
        /// Declared size of the plain bundle inside, in bytes.
        uncompressed_size: u64,
    },
    /// A single code object with no bundle around it.
    CodeObject,
}

impl Format {
    /// Whether the code objects are in the file as they are.
    pub fn is_in_place(self) -> bool {
        self.uncompressed_size().is_none()
    }

    /// Declared size of the plain bundle in a compressed one, in bytes.
    pub fn uncompressed_size(self) -> Option<u64> {
        match self {
            Self::Compressed { uncompressed_size, .. } => Some(uncompressed_size),
            Self::Plain | Self::CodeObject => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::CodeObject => f.write_str("code object"),
            Self::Compressed { version, method: Method::Zlib, .. } => {
                write!(f, "CCOB {version}, zlib")
            }
            Self::Compressed { version, method: Method::Zstd, .. } => {
                write!(f, "CCOB {version}, zstd")
            }
        }
    }
}

/// Compression method of a CCOB bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// zlib (RFC 1950).
    Zlib,
    /// Zstandard (RFC 8878).
    Zstd,
}

/// One entry of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its entry ID, which names the target.
    pub id: EntryId,
    /// Offset from the start of the (uncompressed) bundle, in bytes.
    pub offset: u64,
    /// Size in bytes; 0 for the host's entry.
    pub size: u64,
}

impl Entry {
    /// Whether it has SPIR-V code.
    pub fn is_spirv(&self) -> bool {
        self.size > 0 && self.id.target().is_some_and(TargetId::is_spirv)
    }
}

impl Bundle {
    /// Whether an entry has SPIR-V code.
    pub fn has_spirv(&self) -> bool {
        self.entries.iter().any(Entry::is_spirv)
    }
}
