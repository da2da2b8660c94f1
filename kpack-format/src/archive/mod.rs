//! `.kpack`: the archive of code objects, one file for each module and target.

mod codec;
mod frame;
mod index;
mod reader;
mod toc;
mod writer;

pub use codec::{DecodeError, Decoder, Encoded, Encoder};
pub use frame::check_frame;
pub use index::{Index, MAX_CODE_OBJECT};
pub use reader::Archive;
pub use toc::{Scheme, Toc, TocEntry};
pub use writer::{ArchiveWriter, Written};

/// The first bytes of an archive.
pub const MAGIC: [u8; 4] = *b"KPAK";
/// Where data starts: the size of the header, in bytes.
const DATA_OFFSET: u64 = 64;

/// Why bytes are no archive, or why one could not be written. Offsets are from the start of the
/// file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes are not an archive; says where, what was expected and what was found.
    #[error("at offset {offset:#x} of the archive: {reason}")]
    Malformed {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
    /// The TOC is no MessagePack map with a TOC's keys and types; says why.
    #[error("at offset {offset:#x} of the archive: the TOC cannot be read: {reason}")]
    Toc {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
    /// A stored code object does not decompress to what the TOC says.
    #[error("at offset {offset:#x} of the archive: {reason}")]
    Decompression {
        /// Offset in bytes from the start of the file.
        offset: u64,
        /// Which kernel, and what is wrong.
        reason: String,
    },
    /// A version of the format that this library does not read.
    #[error("archive format version {found}; this program reads version 1")]
    UnsupportedVersion {
        /// The version in the header or the TOC.
        found: u64,
    },
    /// The kernel is there already, with another code object.
    #[error("kernel `{kernel}` for {target} is there already, with another code object")]
    Conflict {
        /// Kernel name.
        kernel: String,
        /// Target ID.
        target: String,
    },
    /// More than a frame's size can say.
    #[error("kernel `{kernel}` has {size} bytes compressed; a frame has less than 4 GiB")]
    TooLarge {
        /// Kernel name.
        kernel: String,
        /// Compressed size in bytes.
        size: u64,
    },
    /// No such kernel for that target.
    #[error("the archive has no kernel `{kernel}` for {target}")]
    NoSuchKernel {
        /// Kernel name.
        kernel: String,
        /// Target ID.
        target: String,
    },
}
