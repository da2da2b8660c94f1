//! Compression of single code objects.

use std::io::Read;

use zstd::bulk::Compressor;
use zstd::stream::read::Decoder;

use super::{ArchiveError, Scheme};
use crate::Sha256;

/// How much is reserved for a code object on its archive's word alone, in bytes.
const TRUSTED_SIZE: u64 = 16 << 20;
/// The smallest and the largest window that a frame is decompressed with, as powers of two (RFC
/// 8878 recommends 8 MiB to all; zstd reads 128 MiB without being asked).
const WINDOW_LOG: (u32, u32) = (10, 27);

/// Compresses code objects, one after the other. One for each thread.
pub struct Encoder {
    compressor: Option<Compressor<'static>>,
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
    /// A level that zstd does not know.
    pub fn new(scheme: Scheme, level: i32) -> Result<Self, ArchiveError> {
        let compressor = match scheme {
            Scheme::None => None,
            Scheme::ZstdPerKernel => Some(Compressor::new(level)?),
        };
        Ok(Self { compressor })
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
        let bytes = match &mut self.compressor {
            None => code_object.to_vec(),
            Some(compressor) => compressor.compress(code_object)?,
        };
        Ok(Encoded {
            bytes,
            original_size: code_object.len() as u64,
            checksum,
        })
    }
}

/// Decompresses the frame that fills `frame`; the text says what is wrong.
pub(super) fn decompress(frame: &[u8], original_size: u64) -> Result<Vec<u8>, String> {
    let window_log = (64 - original_size.leading_zeros()).clamp(WINDOW_LOG.0, WINDOW_LOG.1);
    let decoder = Decoder::with_buffer(frame).and_then(|mut decoder| {
        decoder.window_log_max(window_log)?;
        Ok(decoder.single_frame())
    });
    let mut decoder = decoder.map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(original_size.min(TRUSTED_SIZE) as usize);
    // One byte more than there should be, so that too many are noticed.
    let limit = original_size.saturating_add(1);
    let read = decoder.by_ref().take(limit).read_to_end(&mut bytes);
    read.map_err(|error| format!("its frame cannot be decompressed: {error}"))?;
    if bytes.len() as u64 != original_size {
        let more = if bytes.len() as u64 > original_size {
            "more"
        } else {
            "fewer"
        };
        return Err(format!(
            "its frame holds {more} than the {original_size} bytes that the TOC says"
        ));
    }
    let rest = decoder.finish();
    if !rest.is_empty() {
        return Err(format!("{} bytes follow its frame", rest.len()));
    }
    Ok(bytes)
}
