//! Clang offload bundles: plain, compressed (CCOB), and the bare code object that can stand where
//! a bundle could.

mod compressed;
mod decompressor;
mod entry_id;
mod table;
mod write;

use std::fmt;
use std::io::{Read, Seek, SeekFrom};

use crate::TargetId;
use crate::archive::with_capacity;
use crate::code_object::{CodeObject, CodeObjectError};

pub use entry_id::EntryId;
pub use write::plain;

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

/// Why bytes are no bundle. Offsets are from the start of the bundle.
#[derive(Debug)]
#[non_exhaustive]
pub enum BundleError {
    /// Reading failed.
    Io(std::io::Error),
    /// The bytes are not a bundle; says where, what was expected and what was found.
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

impl std::error::Error for BundleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<std::io::Error> for BundleError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Bundle {
    /// Reads the table of the bundle at the current position of `source`, of which `available`
    /// bytes may be used. Of a compressed bundle only as much is decompressed as the table needs;
    /// of one of version 1, which does not store its own size, everything.
    ///
    /// # Errors
    /// [`BundleError::Malformed`] for what is no bundle, or has sizes that do not fit what is
    /// there; [`BundleError::Io`].
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
        malformed(
            0,
            format!(
                "expected the magic of an offload bundle (`__CLANG_OFFLOAD_BUNDLE__` or `CCOB`) or of an ELF file, found {:02x?}",
                &magic[..magic.len().min(8)]
            ),
        )
    }

    /// The device code of this bundle, entry by entry in order of offset. `source` is at the
    /// start of the bundle, as it was for [`Bundle::read`]. Holds one code object at a time (or a part
    /// of one, with [`CodeObjects::next_entry`]), and a decompression window; `wanted` says which
    /// entries are to be returned.
    ///
    /// After the last entry of a compressed bundle the rest is decompressed too, so that an error
    /// anywhere in it is found.
    ///
    /// # Errors
    /// [`BundleError::Io`] where the source cannot be read; the iterator gives what else is wrong,
    /// and ends behind it.
    pub fn code_objects<R: Read + Seek>(
        &self,
        mut source: R,
        wanted: impl Fn(&TargetId) -> bool,
    ) -> Result<CodeObjects<R>, BundleError> {
        let start = source.stream_position()?;
        let used = self.entries.iter().filter(|entry| entry.size > 0);
        let used = used.filter_map(|entry| Some((entry.id.target()?, entry.offset, entry.size)));
        let mut used: Vec<_> = used.filter(|(target, ..)| wanted(target)).collect();
        used.sort_by_key(|(_, offset, size)| (*offset, *size));
        let mut entries: Vec<Range> = Vec::new();
        for (target, offset, size) in used {
            match entries.last_mut() {
                Some(last) if (last.offset, last.size) == (offset, size) => {
                    last.targets.push(target.clone());
                }
                _ => entries.push(Range {
                    targets: vec![target.clone()],
                    offset,
                    size,
                }),
            }
        }
        let content = match self.format {
            Format::Plain | Format::CodeObject => Content::Plain { source, start },
            Format::Compressed { .. } => {
                Content::Compressed(Box::new(compressed::Stream::open(source, self)?))
            }
        };
        Ok(CodeObjects {
            entries: entries.into_iter(),
            content: Some(content),
            shared: None,
        })
    }
}

/// Where a code object is, and the targets whose entries say so.
#[derive(Debug)]
struct Range {
    targets: Vec<TargetId>,
    offset: u64,
    size: u64,
}

/// Where code objects are read from.
#[derive(Debug)]
enum Content<R: Read> {
    Plain { source: R, start: u64 },
    Compressed(Box<compressed::Stream<R>>),
}

/// The code objects of a bundle.
#[derive(Debug)]
pub struct CodeObjects<R: Read> {
    entries: std::vec::IntoIter<Range>,
    /// `None` behind the end or an error.
    content: Option<Content<R>>,
    /// A code object that was read, and the further targets that it is for.
    shared: Option<(std::vec::IntoIter<TargetId>, Vec<u8>)>,
}

impl<R: Read + Seek> CodeObjects<R> {
    /// The next code object, to be read in parts or as a whole; what is not read of it is skipped.
    ///
    /// # Errors
    /// [`BundleError`], also for damage behind the last one.
    pub fn next_entry(&mut self) -> Result<Option<CodeObjectReader<'_, R>>, BundleError> {
        let Some(range) = self.entries.next() else {
            return match self.content.take() {
                Some(Content::Compressed(stream)) => stream.finish().map(|_| None),
                _ => Ok(None),
            };
        };
        match &mut self.content {
            None => return Ok(None),
            Some(Content::Plain { source, start }) => {
                source.seek(SeekFrom::Start(*start + range.offset))?;
            }
            Some(Content::Compressed(stream)) => stream.skip_to(range.offset)?,
        }
        Ok(self.content.as_mut().map(|content| CodeObjectReader {
            range,
            left: None,
            content,
        }))
    }

    fn read(&mut self) -> Result<Option<DeviceCode>, BundleError> {
        if let Some((targets, bytes)) = &mut self.shared
            && let Some(target) = targets.next()
        {
            let bytes = bytes.clone();
            return Ok(Some(DeviceCode { target, bytes }));
        }
        self.shared = None;
        let Some(entry) = self.next_entry()? else {
            return Ok(None);
        };
        let mut targets = entry.targets().to_vec().into_iter();
        let bytes = entry.read()?;
        let Some(target) = targets.next() else {
            return Ok(None);
        };
        if targets.len() > 0 {
            self.shared = Some((targets, bytes.clone()));
        }
        Ok(Some(DeviceCode { target, bytes }))
    }
}

impl<R: Read + Seek> Iterator for CodeObjects<R> {
    type Item = Result<DeviceCode, BundleError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read();
        if result.is_err() {
            self.content = None;
            self.entries = Vec::new().into_iter();
        }
        result.transpose()
    }
}

/// One code object of a bundle.
#[derive(Debug)]
pub struct CodeObjectReader<'a, R: Read> {
    range: Range,
    /// Bytes that are not read yet; `None` before the first.
    left: Option<u64>,
    content: &'a mut Content<R>,
}

impl<R: Read> CodeObjectReader<'_, R> {
    /// What it was compiled for, from the entry's ID; several where their entries name the same bytes.
    pub fn targets(&self) -> &[TargetId] {
        &self.range.targets
    }

    /// Its offset from the start of the (uncompressed) bundle, in bytes.
    pub fn offset(&self) -> u64 {
        self.range.offset
    }

    /// Its size in bytes, as the entry declares it.
    pub fn size(&self) -> u64 {
        self.range.size
    }

    /// Appends up to `most` bytes; tells how many. There are no more when it is 0.
    ///
    /// # Errors
    /// [`BundleError`], also where the bundle ends before the code object does.
    pub fn append(&mut self, out: &mut Vec<u8>, most: u64) -> Result<u64, BundleError> {
        let (offset, size) = (self.range.offset, self.range.size);
        let left = self.left.get_or_insert(size);
        let wanted = most.min(*left);
        let read = match &mut *self.content {
            Content::Plain { source, .. } => source.take(wanted).read_to_end(out)?,
            Content::Compressed(stream) => {
                let read = stream.as_mut().take(wanted).read_to_end(out);
                read.or_else(compressed::failed(offset))?
            }
        };
        *left -= read as u64;
        if (read as u64) < wanted {
            let after = size - *left;
            return malformed(
                offset,
                format!("an entry of {size} bytes ends after {after}"),
            );
        }
        Ok(wanted)
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn read(mut self) -> Result<Vec<u8>, BundleError> {
        let mut bytes = with_capacity(self.size().min(TRUSTED_SIZE) as usize)?;
        self.append(&mut bytes, u64::MAX)?;
        Ok(bytes)
    }
}

/// How much is reserved on a bundle's word alone, in bytes.
const TRUSTED_SIZE: u64 = 16 << 20;

/// Up to `size` bytes; fewer where the source ends.
fn read_exactly<R: Read>(source: &mut R, size: u64) -> Result<Vec<u8>, std::io::Error> {
    let mut bytes = with_capacity(size.min(TRUSTED_SIZE) as usize)?;
    source.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn malformed<T>(offset: u64, reason: impl Into<String>) -> Result<T, BundleError> {
    Err(BundleError::Malformed {
        offset,
        reason: reason.into(),
    })
}

/// A code object with no bundle around it, as a bundle of one entry.
fn bare<R: Read + Seek>(source: &mut R, available: u64) -> Result<Bundle, BundleError> {
    let code_object = match CodeObject::read(source, available) {
        Ok(code_object) => code_object,
        Err(CodeObjectError::Io(error)) => return Err(error.into()),
        Err(error) => return malformed(0, error.to_string()),
    };
    let Some(target) = code_object.target else {
        return malformed(
            0x30,
            format!(
                "a code object whose e_flags, {:#x}, name no processor that this program knows",
                code_object.flags
            ),
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

/// A code object taken out of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCode {
    /// What it was compiled for, from the entry's ID (or, of a bare code object, its own header).
    pub target: TargetId,
    /// The code object.
    pub bytes: Vec<u8>,
}
