//! Compression of single code objects.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};

use super::error::NO_COMPRESSION;
use super::frame::check_frame;
use super::{ArchiveError, Scheme};
use crate::Blake3;
use crate::backend::{Compressor, Decompressor, frame_reader};

/// Compresses code objects, one after another. Each thread has its own.
pub struct Encoder(Option<Compressor>);

/// A code object as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The stored bytes.
    pub bytes: Vec<u8>,
    /// Size of the code object in bytes.
    pub original_size: u64,
    /// BLAKE3 digest of the code object.
    pub checksum: Blake3,
}

impl Encoder {
    /// An encoder for this scheme and, if the scheme has levels, this Zstandard level (zstd's
    /// default is 3).
    ///
    /// # Errors
    /// An invalid level; [`ArchiveError::NoCompression`].
    pub fn new(scheme: Scheme, level: i32) -> Result<Self, ArchiveError> {
        Ok(Self(match scheme {
            Scheme::None => None,
            Scheme::ZstdPerKernel => Some(Compressor::new(level)?),
        }))
    }

    /// Compresses one code object whose BLAKE3 digest is `checksum`. The same bytes give the same result.
    ///
    /// # Errors
    /// Too little memory.
    pub fn encode(
        &mut self,
        code_object: &[u8],
        checksum: Blake3,
    ) -> Result<Encoded, ArchiveError> {
        let bytes = match &mut self.0 {
            Some(compressor) => compressor.compress(code_object)?,
            None => {
                let mut bytes = with_capacity(code_object.len())?;
                bytes.extend_from_slice(code_object);
                bytes
            }
        };
        Ok(Encoded { bytes, original_size: code_object.len() as u64, checksum })
    }

    /// Compresses a code object of `size` bytes from `source` into `out`, holding only a window of
    /// it. The same bytes give the same result, though not that of [`encode`](Self::encode).
    ///
    /// # Errors
    /// A failed read or write, too little memory, or another size.
    pub fn encode_stream<W: Write>(
        &mut self,
        source: &mut impl Read,
        size: u64,
        mut out: W,
    ) -> Result<(), ArchiveError> {
        match &mut self.0 {
            Some(compressor) => compressor.compress_stream(source, size, out)?,
            None if io::copy(source, &mut out)? != size => {
                return Err(ArchiveError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            None => {}
        }
        Ok(())
    }
}

/// Allocates `size` bytes; without enough memory, returns an error instead of ending the process.
pub(crate) fn with_capacity(size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size)?;
    Ok(bytes)
}

/// Why a code object cannot be decompressed.
#[derive(Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// Too little memory.
    OutOfMemory,
    /// The program was built without zstd.
    NoCompression,
    /// The frame is damaged; the text says how.
    Damaged(String),
    /// The frame could not be read.
    Io(io::Error),
}

/// What zstd says if a frame's content does not match the checksum in it.
const WRONG_CHECKSUM: &str = "Restored data doesn't match checksum";

impl DecodeError {
    /// Zstd says `error` about a frame.
    pub(crate) fn in_frame(error: impl fmt::Display) -> Self {
        Self::Damaged(match error.to_string() {
            text if text == WRONG_CHECKSUM => "its content does not match its checksum".to_owned(),
            text => format!("the frame cannot be decompressed: {text}"),
        })
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("not enough memory to decompress it"),
            Self::NoCompression => f.write_str(NO_COMPRESSION),
            Self::Damaged(reason) => f.write_str(reason),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decompresses code objects, one after another. Each thread has its own.
#[derive(Default)]
pub struct Decoder(Decompressor);

impl Decoder {
    /// Decompresses the Zstandard frame that fills `frame` into a code object of `original_size`
    /// bytes.
    ///
    /// # Errors
    /// [`DecodeError`]. Nothing is allocated for a frame that cannot hold that much.
    pub fn decode(&mut self, frame: &[u8], original_size: u64) -> Result<Vec<u8>, DecodeError> {
        check_frame(frame, original_size).map_err(DecodeError::Damaged)?;
        let size = usize::try_from(original_size).ok();
        let mut bytes =
            size.and_then(|size| with_capacity(size).ok()).ok_or(DecodeError::OutOfMemory)?;
        let size = self.0.decompress(frame, &mut bytes)?;
        check_size(size as u64, original_size)?;
        Ok(bytes)
    }
}

fn check_size(found: u64, original_size: u64) -> Result<(), DecodeError> {
    if found == original_size {
        Ok(())
    } else {
        Err(DecodeError::Damaged(format!(
            "the frame holds {found} bytes; the TOC says {original_size}"
        )))
    }
}

/// Decompresses the frame that fills `frame` in parts, passing each to `take` until that returns false.
///
/// # Errors
/// [`DecodeError`], also for a frame with a window above 128 MiB, zstd's default limit.
pub(super) fn decode_in_parts(
    frame: &[u8],
    original_size: u64,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<(), DecodeError> {
    check_frame(frame, original_size).map_err(DecodeError::Damaged)?;
    let size = frame_parts(frame, take)?;
    check_size(size, original_size)
}

/// Like [`decode_in_parts`], for a frame that fills `stored` and is not held in memory either.
pub(super) fn decode_stream(
    stored: impl Read,
    original_size: u64,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<(), DecodeError> {
    let (mut goes_on, mut taken) = (true, 0);
    let mut take = |part: &[u8]| {
        // Frames of a few bytes can expand without end.
        taken += part.len() as u64;
        goes_on = taken <= original_size && take(part);
        goes_on
    };
    let mut stored = BufReader::with_capacity(128 << 10, stored);
    let size = frame_parts(&mut stored, &mut take)?;
    check_size(size, original_size)?;
    if !goes_on {
        return Ok(());
    }
    let rest = io::copy(&mut stored, &mut io::sink()).map_err(DecodeError::Io)?;
    if rest > 0 {
        return Err(DecodeError::Damaged(format!("{rest} bytes follow its frame")));
    }
    Ok(())
}

fn frame_parts(
    frame: impl BufRead,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<u64, DecodeError> {
    in_parts(frame_reader(frame)?, take).map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => DecodeError::OutOfMemory,
        // The decompressor's own errors have no number.
        _ if error.raw_os_error().is_some() => DecodeError::Io(error),
        _ => DecodeError::in_frame(error),
    })
}

/// Reads `source` to its end, or until `take` returns false; returns the number of bytes read.
pub(super) fn in_parts(
    mut source: impl Read,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(read) => {
                size += read as u64;
                if !take(&buffer[..read]) {
                    return Ok(size);
                }
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

#[cfg(all(test, feature = "compression"))]
mod tests {
    use super::*;

    /// Zeros, without a content size in the frame.
    fn frame(size: usize) -> Vec<u8> {
        zstd::encode_all(&*vec![0; size], 3).unwrap()
    }

    #[test]
    fn a_frame_that_expands_to_more_than_its_entry_says_is_cut_off() {
        let mut taken = 0;
        let mut take = |part: &[u8]| {
            taken += part.len();
            true
        };
        let decoded = decode_stream(&*frame(100 << 20), 300 << 10, &mut take);
        assert!(matches!(decoded, Err(DecodeError::Damaged(_))), "{decoded:?}");
        assert!(taken <= 300 << 10, "{taken}");
    }

    #[test]
    fn a_device_that_fails_is_no_damage() {
        struct Failing;

        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(5))
            }
        }

        let frame = frame(1 << 20);
        for whole in [frame.len() / 2, frame.len()] {
            let stored = frame[..whole].chain(Failing);
            let decoded = decode_stream(stored, 1 << 20, &mut |_| true);
            assert!(matches!(decoded, Err(DecodeError::Io(_))), "{decoded:?}");
        }
    }
}
