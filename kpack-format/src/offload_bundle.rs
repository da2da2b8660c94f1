//! Clang offload bundles: plain, compressed (CCOB), and the bare code object that can stand where
//! a bundle could.

use std::fmt;
use std::io::{Read, Seek};

use crate::TargetId;

/// The first bytes of a plain bundle.
pub const PLAIN_MAGIC: &[u8; 24] = b"__CLANG_OFFLOAD_BUNDLE__";
/// The first bytes of a compressed bundle.
pub const COMPRESSED_MAGIC: &[u8; 4] = b"CCOB";

/// A bundle's table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// How it is stored.
    pub format: Format,
    /// How many bytes of the source it occupies, header included and padding behind it excluded.
    pub size: u64,
    /// Its entries, in the order of the table.
    pub entries: Vec<Entry>,
}

/// How a bundle is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As it is.
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

/// Compression method of a CCOB bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// zlib (RFC 1950).
    Zlib,
    /// Zstandard (RFC 8878).
    Zstd,
}

/// One entry of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// For whom it is.
    pub id: EntryId,
    /// Offset from the start of the (uncompressed) bundle, in bytes.
    pub offset: u64,
    /// Size in bytes; 0 for the host's entry.
    pub size: u64,
}

/// A bundle entry ID, such as `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryId {
    text: String,
    target: Option<TargetId>,
}

impl EntryId {
    /// The GPU target, or `None` for the host's entry. SPIR-V is the target `amdgcnspirv`.
    pub fn target(&self) -> Option<&TargetId> {
        self.target.as_ref()
    }

    /// The ID as it stands in the bundle.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why bytes are no bundle. Offsets are from the start of the bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes are not a bundle; says where, what was expected and what was found.
    #[error("at offset {offset:#x} of the bundle: {reason}")]
    Malformed {
        /// Offset in bytes from the start of the bundle.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
}

impl Bundle {
    /// Reads the table of the bundle at the current position of `source`, of which `available`
    /// bytes may be used. Of a compressed bundle only as much is decompressed as the table needs.
    pub fn read<R: Read + Seek>(source: &mut R, available: u64) -> Result<Self, BundleError> {
        let _ = (source, available);
        todo!()
    }

    /// The device code of this bundle, entry by entry in order of offset. `source` is at the
    /// start of the bundle, as it was for [`Bundle::read`]. Holds one code object at a time, and
    /// a decompression window; `wanted` says which entries are to be returned.
    ///
    /// After the last entry of a compressed bundle the rest is decompressed too, so that an error
    /// anywhere in it is found.
    pub fn code_objects<R: Read + Seek>(
        &self,
        source: R,
        wanted: impl Fn(&TargetId) -> bool,
    ) -> Result<impl Iterator<Item = Result<DeviceCode, BundleError>>, BundleError> {
        let _ = (source, wanted);
        todo!() as Result<std::iter::Empty<_>, _>
    }
}

/// A code object taken out of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCode {
    /// What it was compiled for, from the entry's ID (or, of a bare code object, its own header).
    pub target: TargetId,
    /// The code object.
    pub bytes: Vec<u8>,
}
