//! What decompresses a compressed bundle, where the program has it.

use std::io::{self, BufReader, Read, Take};

use super::{BundleError, Method};

#[cfg(feature = "compression")]
use crate::archive::NO_MEMORY;
#[cfg(feature = "compression")]
use zstd::zstd_safe::get_error_name;

/// zstd reads windows of 128 MiB without being asked; clang compresses with up to that.
#[cfg(feature = "compression")]
const WINDOW_LOG: (u32, u32) = (10, 27);

/// Compressed bytes, of which no more are read than there may be.
pub(super) type Source<R> = BufReader<Take<R>>;

#[cfg(feature = "compression")]
pub(super) enum Decompressor<R: Read> {
    Zlib(flate2::bufread::ZlibDecoder<Source<R>>),
    Zstd(zstd::stream::read::Decoder<'static, Source<R>>),
}

#[cfg(feature = "compression")]
impl<R: Read> Decompressor<R> {
    /// For data of `uncompressed_size` bytes.
    pub(super) fn new(
        source: Source<R>,
        method: Method,
        uncompressed_size: u64,
    ) -> Result<Self, BundleError> {
        Ok(match method {
            Method::Zlib => Self::Zlib(flate2::bufread::ZlibDecoder::new(source)),
            Method::Zstd => {
                let log = 64 - uncompressed_size.leading_zeros();
                let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
                decoder.window_log_max(log.clamp(WINDOW_LOG.0, WINDOW_LOG.1))?;
                Self::Zstd(decoder.single_frame())
            }
        })
    }

    /// What was not used of the compressed bytes.
    pub(super) fn into_source(self) -> Source<R> {
        match self {
            Self::Zlib(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
        }
    }
}

#[cfg(feature = "compression")]
impl<R: Read> Read for Decompressor<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Zlib(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer).map_err(|error| {
                // The crate gives the name of what failed only.
                match error.to_string() == get_error_name(NO_MEMORY) {
                    true => io::ErrorKind::OutOfMemory.into(),
                    false => error,
                }
            }),
        }
    }
}

/// There is none.
#[cfg(not(feature = "compression"))]
pub(super) enum Decompressor<R: Read> {
    #[expect(dead_code, reason = "never made")]
    Never(std::convert::Infallible, Source<R>),
}

#[cfg(not(feature = "compression"))]
impl<R: Read> Decompressor<R> {
    pub(super) fn new(_: Source<R>, _: Method, _: u64) -> Result<Self, BundleError> {
        super::malformed(
            0,
            "it is compressed, and this program was built without decompression (feature `compression` of kpack-format)",
        )
    }

    pub(super) fn into_source(self) -> Source<R> {
        match self {
            Self::Never(never, _) => match never {},
        }
    }
}

#[cfg(not(feature = "compression"))]
impl<R: Read> Read for Decompressor<R> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Never(never, _) => match *never {},
        }
    }
}
