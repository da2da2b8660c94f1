//! Compression of single code objects.

use std::fmt;
use std::io::{self, Read, Write};

use super::frame::check_frame;
use super::{ArchiveError, Scheme};
use crate::Sha256;

#[cfg(feature = "compression")]
use zstd::{
    bulk::Compressor,
    zstd_safe::{DCtx, WriteBuf, compress_bound},
};

/// What a program says that has no zstd.
pub(super) const NO_COMPRESSION: &str = "it is compressed, and this program was built without Zstandard (feature `compression` of kpack-format)";

/// Compresses code objects, one after the other. One for each thread.
pub struct Encoder {
    /// With the level.
    #[cfg(feature = "compression")]
    compressor: Option<(i32, Compressor<'static>)>,
}

/// A code object as it will be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// What goes into the archive.
    pub bytes: Vec<u8>,
    /// Size of the code object in bytes.
    pub original_size: u64,
    /// SHA-256 of the code object.
    pub checksum: Sha256,
}

impl Encoder {
    /// For the given scheme, and Zstandard level where it applies (3 is zstd's own default).
    ///
    /// # Errors
    /// A level that zstd does not know; [`ArchiveError::NoCompression`].
    #[cfg(feature = "compression")]
    pub fn new(scheme: Scheme, level: i32) -> Result<Self, ArchiveError> {
        let compressor = match scheme {
            Scheme::None => None,
            Scheme::ZstdPerKernel => {
                let mut compressor = Compressor::new(level)?;
                // Readers that have no time for SHA-256 notice damage all the same.
                compressor.include_checksum(true)?;
                Some((level, compressor))
            }
        };
        Ok(Self { compressor })
    }

    /// For the given scheme, which can only be that without compression.
    ///
    /// # Errors
    /// [`ArchiveError::NoCompression`].
    #[cfg(not(feature = "compression"))]
    pub fn new(scheme: Scheme, _level: i32) -> Result<Self, ArchiveError> {
        match scheme {
            Scheme::None => Ok(Self {}),
            Scheme::ZstdPerKernel => Err(ArchiveError::NoCompression),
        }
    }

    /// Compresses one code object whose SHA-256 is `checksum`. The same bytes give the same result.
    ///
    /// # Errors
    /// Too little memory.
    pub fn encode(
        &mut self,
        code_object: &[u8],
        checksum: Sha256,
    ) -> Result<Encoded, ArchiveError> {
        let encoded = |bytes| Encoded {
            bytes,
            original_size: code_object.len() as u64,
            checksum,
        };
        #[cfg(feature = "compression")]
        if let Some((_, compressor)) = &mut self.compressor {
            let mut bytes = with_capacity(compress_bound(code_object.len()))?;
            compressor.compress_to_buffer(code_object, &mut bytes)?;
            return Ok(encoded(bytes));
        }
        let mut bytes = with_capacity(code_object.len())?;
        bytes.extend_from_slice(code_object);
        Ok(encoded(bytes))
    }
}

/// Room for `size` bytes; an error, and not the end of the process, where there is none.
pub(crate) fn with_capacity(size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size)?;
    Ok(bytes)
}

impl Encoder {
    /// Compresses the `size` bytes of a code object in `source` into `out`, which never holds more than
    /// a window of it. The same bytes give the same result, though not that of
    /// [`encode`](Self::encode).
    ///
    /// # Errors
    /// Reading, writing, too little memory, and another size.
    pub fn encode_stream<W: Write>(
        &self,
        source: &mut impl Read,
        size: u64,
        mut out: W,
    ) -> Result<(), ArchiveError> {
        #[cfg(feature = "compression")]
        if let Some((level, _)) = &self.compressor {
            let mut encoder = zstd::stream::write::Encoder::new(out, *level)?;
            encoder.include_checksum(true)?;
            encoder.set_pledged_src_size(Some(size))?;
            io::copy(source, &mut encoder)?;
            encoder.finish()?;
            return Ok(());
        }
        let _ = size;
        io::copy(source, &mut out)?;
        Ok(())
    }
}

/// Why a frame gives no code object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// Too little memory.
    OutOfMemory,
    /// The program has no zstd.
    NoCompression,
    /// What is wrong with the frame.
    Damaged(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("not enough memory to decompress it"),
            Self::NoCompression => f.write_str(NO_COMPRESSION),
            Self::Damaged(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for DecodeError {}

/// What zstd returns where memory cannot be allocated (`ZSTD_error_memory_allocation`).
#[cfg(feature = "compression")]
pub(crate) const NO_MEMORY: usize = 64usize.wrapping_neg();

/// Decompresses code objects, one after the other. One for each thread.
///
/// Its memory is allocated when the first frame comes.
#[derive(Default)]
pub struct Decoder(#[cfg(feature = "compression")] Option<DCtx<'static>>);

impl Decoder {
    /// Nothing: the program has no zstd.
    ///
    /// # Errors
    /// [`DecodeError`].
    #[cfg(not(feature = "compression"))]
    pub fn decode(&mut self, frame: &[u8], original_size: u64) -> Result<Vec<u8>, DecodeError> {
        check_frame(frame, original_size).map_err(DecodeError::Damaged)?;
        Err(DecodeError::NoCompression)
    }

    /// The code object of `original_size` bytes in the Zstandard frame that fills `frame`.
    ///
    /// # Errors
    /// [`DecodeError`]. Nothing is allocated for a frame that cannot hold as much.
    #[cfg(feature = "compression")]
    pub fn decode(&mut self, frame: &[u8], original_size: u64) -> Result<Vec<u8>, DecodeError> {
        check_frame(frame, original_size).map_err(DecodeError::Damaged)?;
        let size = usize::try_from(original_size).ok();
        let mut bytes = size
            .and_then(|size| with_capacity(size).ok())
            .ok_or(DecodeError::OutOfMemory)?;
        self.decode_into(frame, original_size, &mut bytes)?;
        Ok(bytes)
    }

    /// Decompresses a frame into `out`, which has room for `original_size` bytes. What
    /// [`check_frame`] finds is not looked for again.
    ///
    /// # Errors
    /// [`DecodeError`]; `out` then has nothing of use.
    #[cfg(feature = "compression")]
    pub fn decode_into<B: WriteBuf + ?Sized>(
        &mut self,
        frame: &[u8],
        original_size: u64,
        out: &mut B,
    ) -> Result<(), DecodeError> {
        let context = match &mut self.0 {
            Some(context) => context,
            empty => empty.insert(DCtx::try_create().ok_or(DecodeError::OutOfMemory)?),
        };
        match context.decompress(out, frame) {
            Ok(size) if size as u64 == original_size => Ok(()),
            Ok(size) => Err(DecodeError::Damaged(format!(
                "its frame holds {size} bytes; the TOC says {original_size}"
            ))),
            Err(NO_MEMORY) => Err(DecodeError::OutOfMemory),
            Err(code) => Err(DecodeError::Damaged(format!(
                "its frame cannot be decompressed: {}",
                zstd::zstd_safe::get_error_name(code)
            ))),
        }
    }
}

/// Decompresses a frame that fills `frame` in parts, which go to `take`, without holding all of it.
///
/// # Errors
/// [`DecodeError`], also for a frame whose window is larger than what zstd takes unasked, 128 MiB.
pub(super) fn decode_in_parts(
    frame: &[u8],
    original_size: u64,
    take: &mut dyn FnMut(&[u8]),
) -> Result<(), DecodeError> {
    check_frame(frame, original_size).map_err(DecodeError::Damaged)?;
    #[cfg(feature = "compression")]
    {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::OutOfMemory => DecodeError::OutOfMemory,
            _ => DecodeError::Damaged(format!("its frame cannot be decompressed: {error}")),
        };
        let decoder = zstd::stream::read::Decoder::with_buffer(frame).map_err(failed)?;
        let size = in_parts(decoder.single_frame(), take).map_err(failed)?;
        match size == original_size {
            true => Ok(()),
            false => Err(DecodeError::Damaged(format!(
                "its frame holds {size} bytes; the TOC says {original_size}"
            ))),
        }
    }
    #[cfg(not(feature = "compression"))]
    {
        let _ = take;
        Err(DecodeError::NoCompression)
    }
}

/// Reads `source` to its end; tells how many bytes there were.
pub(super) fn in_parts(mut source: impl Read, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(read) => {
                take(&buffer[..read]);
                size += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoder")
    }
}
