//! Reads compressed bundles, `CCOB`: a header, and a plain bundle compressed as a whole.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use super::bundle::{Bundle, Format, Method};
use super::error::{BundleError, failed, malformed};
use super::source::read_up_to;
use super::table;
use crate::Reason;
use crate::archive::window;
use crate::backend::{BundleReader, ContentHash};
use crate::digest::hex;
use crate::little_endian;

/// Size of the largest header, that of version 3, in bytes.
const MAX_HEADER: u64 = 32;
/// Size of the hash, with which each header ends, in bytes.
const HASH_SIZE: usize = 8;

/// A CCOB header (LLVM, "Clang Offload Bundler", "Compressed Bundle Header").
struct Header {
    version: u16,
    method: Method,
    /// Size of the header in bytes.
    size: u64,
    /// Size of header and compressed data in bytes; version 1 does not store it.
    total_size: Option<u64>,
    uncompressed_size: u64,
    /// The first half of the MD5 of the plain bundle inside.
    hash: [u8; 8],
}

impl Header {
    fn read<R: Read>(source: &mut R, available: u64) -> Result<Self, BundleError> {
        let bytes = read_up_to(source, available.min(MAX_HEADER))?;
        let field = |offset: usize, size: usize| -> Result<u64, BundleError> {
            match bytes.get(offset..offset + size) {
                Some(field) => Ok(little_endian(field)),
                None => malformed(
                    offset as u64,
                    "truncated: the header of the compressed bundle is incomplete",
                ),
            }
        };
        let version = field(4, 2)? as u16;
        let method = match field(6, 2)? {
            0 => Method::Zlib,
            1 => Method::Zstd,
            other => {
                return malformed!(
                    6,
                    "unsupported compression method {other} (expected 0 for zlib or 1 \
                             for zstd)"
                );
            }
        };
        let (size, total_size, uncompressed_size) = match version {
            1 => (20, None, field(8, 4)?),
            2 => (24, Some(field(8, 4)?), field(12, 4)?),
            3 => (32, Some(field(8, 8)?), field(16, 8)?),
            other => {
                return malformed!(
                    4,
                    "unsupported version {other} of the compressed bundle (expected 1 to 3)"
                );
            }
        };
        let hash = field(size - HASH_SIZE, HASH_SIZE)?.to_le_bytes();
        let size = size as u64;
        if let Some(total) = total_size.filter(|total| !(size..=available).contains(total)) {
            return malformed!(
                8,
                "truncated: the bundle's header says {total:#x} bytes, found {available:#x}"
            );
        }
        Ok(Self { version, method, size, total_size, uncompressed_size, hash })
    }
}

/// Reads the table of the bundle at the current position of `source`.
pub(super) fn read<R: Read + Seek>(source: &mut R, available: u64) -> Result<Bundle, BundleError> {
    let start = source.stream_position()?;
    let header = Header::read(source, available)?;
    source.seek(SeekFrom::Start(start + header.size))?;
    let limit = header.total_size.unwrap_or(available);
    let mut stream = Stream::new(&mut *source, &header, limit, Hash::Ignored)?;
    let (entries, _) = table::read(&mut stream, header.uncompressed_size)?;
    let size = match header.total_size {
        Some(total) => total,
        None => header.size + stream.finish()?,
    };
    let format = Format::Compressed {
        version: header.version,
        method: header.method,
        uncompressed_size: header.uncompressed_size,
    };
    Ok(Bundle { format, size, entries })
}

/// What becomes of the hash in a bundle's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    /// It is compared with that of the content.
    Compared,
    /// It is not, because only the table at the start is read.
    Ignored,
}

/// The plain bundle inside, decompressed from start to end.
pub(super) struct Stream<R: Read> {
    decoder: BundleReader<R>,
    /// Decompressed bytes so far.
    at: u64,
    uncompressed_size: u64,
    /// Maximum number of compressed bytes.
    limit: u64,
    /// Whether the compressed data must fill them all.
    exact: bool,
    /// The hash so far, if it is compared.
    hash: Option<ContentHash>,
    expected_hash: [u8; 8],
    /// Where the hash is in the bundle.
    hash_at: u64,
    /// Bytes of memory that the decoder takes.
    pub(super) window: u64,
}

impl<R: Read> Stream<R> {
    fn new(source: R, header: &Header, limit: u64, hash: Hash) -> Result<Self, BundleError> {
        let limit = limit - header.size;
        let mut source = BufReader::with_capacity(64 << 10, source.take(limit));
        let window = match header.method {
            Method::Zlib => 0,
            Method::Zstd => window(source.fill_buf()?, header.uncompressed_size),
        };
        Ok(Self {
            decoder: BundleReader::new(source, header.method, header.uncompressed_size)?,
            at: 0,
            uncompressed_size: header.uncompressed_size,
            limit,
            exact: header.total_size.is_some(),
            hash: (hash == Hash::Compared).then(ContentHash::default),
            expected_hash: header.hash,
            hash_at: header.size - HASH_SIZE as u64,
            window,
        })
    }

    /// Skips to `offset`, which must not be before the last position.
    pub(super) fn skip_to(&mut self, offset: u64) -> Result<(), BundleError> {
        let Some(skip) = offset.checked_sub(self.at) else {
            return malformed!(
                offset,
                "an entry overlaps the one before it, which ends at {:#x}",
                self.at
            );
        };
        let at = self.at;
        io::copy(&mut self.by_ref().take(skip), &mut io::sink()).or_else(failed(at))?;
        Ok(())
    }

    /// Decompresses the rest, compares the hash, and returns the number of compressed bytes.
    pub(super) fn finish(mut self) -> Result<u64, BundleError> {
        io::copy(&mut self, &mut io::sink()).or_else(failed(self.at))?;
        if self.at != self.uncompressed_size {
            return malformed!(
                self.at,
                "decompresses to {} bytes; its header says {}",
                self.at,
                self.uncompressed_size
            );
        }
        let expected = self.expected_hash;
        if let Some(found) = self.hash.map(ContentHash::finish).filter(|found| *found != expected) {
            let what = "damaged: its content does not have the hash that its header says";
            let reason = Reason::mismatch(what, hex(&expected), hex(&found));
            let advice = "; get the file again, for example by reinstalling its package";
            return malformed(self.hash_at, reason.then(advice));
        }
        let source = self.decoder.into_source();
        let unused = source.get_ref().limit() + source.buffer().len() as u64;
        if self.exact && unused > 0 {
            return malformed!(
                self.limit - unused,
                "{unused} unused bytes follow its compressed data"
            );
        }
        Ok(self.limit - unused)
    }
}

impl<R: Read + Seek> Stream<R> {
    /// Opens `bundle`, which starts at the current position of `source`.
    pub(super) fn open(mut source: R, bundle: &Bundle) -> Result<Self, BundleError> {
        let start = source.stream_position()?;
        let header = Header::read(&mut source, bundle.size)?;
        source.seek(SeekFrom::Start(start + header.size))?;
        Self::new(source, &header, bundle.size, Hash::Compared)
    }
}

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(buffer)?;
        self.at += read as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(&buffer[..read]);
        }
        if self.at > self.uncompressed_size {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "decompresses to more than the {} bytes that its header says",
                    self.uncompressed_size
                ),
            ));
        }
        Ok(read)
    }
}

impl<R: Read> std::fmt::Debug for Stream<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("at", &self.at).finish_non_exhaustive()
    }
}
