//! `.kpack`: the archive of code objects, one file for each module and target.

mod bounds;
mod codec;
mod entries;
mod error;
mod frame;
mod header;
mod index;
mod limits;
mod reader;
mod toc;
mod writer;

pub(crate) use codec::with_capacity;
pub use codec::{DecodeError, Decoder, Encoded, Encoder};
pub use entries::{Iter, Targets, TocEntry};
pub use error::ArchiveError;
pub use frame::check_frame;
pub(crate) use frame::window;
pub use index::Index;
pub use limits::{MAX_CODE_OBJECT, MAX_KERNELS, MAX_TOC};
pub use reader::Archive;
pub use toc::{Scheme, Toc};
#[cfg(feature = "compression")]
pub(crate) use writer::DEFAULT_LEVEL;
pub use writer::{ArchiveWriter, Written};

/// The first bytes of an archive.
pub const MAGIC: [u8; 4] = *b"KPAK";
/// Size of the header that readers need, in bytes; data may start right after it.
const HEADER_SIZE: u64 = 16;
/// Offset of the data in archives that kpack writes, after padding.
const DATA_OFFSET: u64 = 64;
