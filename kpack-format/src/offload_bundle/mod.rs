//! Reads clang offload bundles: plain, compressed (CCOB), and bare code objects in place of a
//! bundle.

mod bundle;
mod code_objects;
mod compress;
mod compressed;
mod entry_id;
mod error;
mod source;
mod table;
mod write;

use std::io::{Read, Seek, SeekFrom};

use crate::Reason;
use crate::code_object::{CodeObject, CodeObjectError};

pub use bundle::{Bundle, COMPRESSED_MAGIC, Entry, Format, Method, PLAIN_MAGIC};
pub use code_objects::{BundledCode, CodeObjectReader, CodeObjects};
pub use compress::Compressed;
pub use entry_id::{EntryId, code_object_id};
pub use error::BundleError;
pub(crate) use error::malformed;
pub use write::{HOST_ENTRY, Layout, plain};

impl Bundle {
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
        source.take(available.min(PLAIN_MAGIC.len() as u64)).read_to_end(&mut magic)?;
        source.seek(SeekFrom::Start(start))?;
        if magic == PLAIN_MAGIC {
            let (entries, size) = table::read(&mut source.take(available), available)?;
            return Ok(Self { format: Format::Plain, size, entries });
        }
        if magic.starts_with(COMPRESSED_MAGIC) {
            return compressed::read(source, available);
        }
        if magic.starts_with(&object::elf::ELFMAG) {
            return bare(source, available);
        }
        let expected = "the magic of an offload bundle (`__CLANG_OFFLOAD_BUNDLE__` or `CCOB`) or of an ELF file";
        let found = format!("{:02x?}", &magic[..magic.len().min(8)]);
        malformed(0, Reason::mismatch("", expected, found))
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
    let entry = Entry { id: EntryId::of(target), offset: 0, size };
    Ok(Bundle { format: Format::CodeObject, size, entries: vec![entry] })
}
