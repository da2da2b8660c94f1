//! Reads clang offload bundles: plain, compressed (CCOB), and bare code objects in place of a
//! bundle.

mod code_objects;
mod compressed;
mod entry_id;
mod table;
mod write;

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use crate::TargetId;
use crate::code_object::{CodeObject, CodeObjectError};

pub use code_objects::{BundledCode, CodeObjectReader, CodeObjects};
pub use entry_id::{EntryId, code_object_id};
pub use write::{Layout, plain};

/// The first bytes of a plain bundle.
pub const PLAIN_MAGIC: &[u8; 24] = b"__CLANG_OFFLOAD_BUNDLE__";
/// The first bytes of a compressed bundle.
pub const COMPRESSED_MAGIC: &[u8; 4] = b"CCOB";

/// A bundle's table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Its entry ID, which names the target.
    pub id: EntryId,
    /// Offset from the start of the (uncompressed) bundle, in bytes.
    pub offset: u64,
    /// Size in bytes; 0 for the host's entry.
    pub size: u64,
}

/// Why bytes are not a bundle. Offsets are from the start of the bundle.
#[derive(Debug)]
#[non_exhaustive]
pub enum BundleError {
    /// Reading failed.
    Io(std::io::Error),
    /// The bytes are not a bundle, or it is damaged.
    Malformed {
        /// Offset in bytes from the start of the bundle.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Malformed { offset, reason } => {
                write!(f, "at offset {offset:#x} of the bundle: {reason}")
            }
        }
    }
}

crate::wraps_io!(BundleError);

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

    /// Reads the table of the bundle at the current position of `source`, using at most `available`
    /// bytes. Decompresses only as much of a compressed bundle as the table needs; version 1, which
    /// does not store its own size, has to be decompressed to its end.
    ///
    /// # Errors
    /// [`BundleError::Malformed`] if it is not a bundle, or its sizes exceed the available bytes;
    /// [`BundleError::Io`].
    pub fn read<R: Read + Seek>(source: &mut R, available: u64) -> Result<Self, BundleError> {
        let start = source.stream_position()?;
        let mut magic = Vec::new();
        source
            .take(available.min(PLAIN_MAGIC.len() as u64))
            .read_to_end(&mut magic)?;
        source.seek(SeekFrom::Start(start))?;
        if magic == PLAIN_MAGIC {
            let (entries, size) = table::read(&mut source.take(available), available)?;
            return Ok(Self {
                format: Format::Plain,
                size,
                entries,
            });
        }
        if magic.starts_with(COMPRESSED_MAGIC) {
            return compressed::read(source, available);
        }
        if magic.starts_with(&object::elf::ELFMAG) {
            return bare(source, available);
        }
        malformed!(
            0,
            "expected the magic of an offload bundle (`__CLANG_OFFLOAD_BUNDLE__` or `CCOB`) or of an ELF file, found {:02x?}",
            &magic[..magic.len().min(8)]
        )
    }
}

/// Maximum number of bytes allocated before any of them were read.
const TRUSTED_SIZE: u64 = 16 << 20;

/// Reads up to `size` bytes; fewer if the source ends.
fn read_up_to<R: Read>(source: &mut R, size: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append_up_to(source, size, &mut bytes)?;
    Ok(bytes)
}

/// Appends up to `size` bytes and returns their number; fewer if the source ends.
fn append_up_to<R: Read>(source: &mut R, size: u64, out: &mut Vec<u8>) -> std::io::Result<u64> {
    let mut read = 0;
    while read < size {
        let step = TRUSTED_SIZE.min(size - read);
        // Without memory for them, `read_to_end` could end the process.
        out.try_reserve(step as usize)?;
        match source.take(step).read_to_end(out)? {
            0 => break,
            more => read += more as u64,
        }
    }
    Ok(read)
}

pub(crate) fn malformed<T>(offset: u64, reason: impl Into<String>) -> Result<T, BundleError> {
    Err(BundleError::Malformed {
        offset,
        reason: reason.into(),
    })
}

/// The error for a failed decompressor at decompressed offset `at`: damaged data, unless the system
/// failed.
fn failed<T>(at: u64) -> impl Fn(io::Error) -> Result<T, BundleError> {
    move |error| match error.raw_os_error() {
        Some(_) => Err(BundleError::Io(error)),
        None if error.kind() == io::ErrorKind::OutOfMemory => Err(BundleError::Io(error)),
        None => malformed!(at, "cannot be decompressed: {error}"),
    }
}

/// Describes a code object without a bundle as a bundle of one entry.
fn bare<R: Read + Seek>(source: &mut R, available: u64) -> Result<Bundle, BundleError> {
    let code_object = match CodeObject::read(source, available) {
        Ok(code_object) => code_object,
        Err(CodeObjectError::Io(error)) => return Err(error.into()),
        Err(error) => return malformed(0, error.to_string()),
    };
    let Some(target) = code_object.target else {
        return malformed!(
            0x30,
            "a code object whose e_flags, {:#x}, name no processor that this program knows",
            code_object.flags
        );
    };
    let size = code_object.size;
    let entry = Entry {
        id: EntryId::of(target),
        offset: 0,
        size,
    };
    Ok(Bundle {
        format: Format::CodeObject,
        size,
        entries: vec![entry],
    })
}
