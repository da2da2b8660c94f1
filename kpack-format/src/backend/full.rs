//! The feature `compression`: Zstandard and zlib.

use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use md5::{Digest, Md5};
use zstd::bulk;
use zstd::stream::read;
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};
use zstd::zstd_safe::{compress_bound, get_error_name};

use crate::archive::{ArchiveError, DEFAULT_LEVEL, DecodeError, with_capacity};
use crate::offload_bundle::{BundleError, Method};

/// Returned by zstd if memory cannot be allocated (`ZSTD_error_memory_allocation`).
const NO_MEMORY: usize = 64usize.wrapping_neg();

/// By default, zstd accepts windows of up to 128 MiB, the largest that clang uses.
const WINDOW_LOG: (u32, u32) = (10, 27);

/// Level 3 with tables that stay in a processor's cache. For librocsparse, this takes 7% less time, and the
/// archives have 0.6% more bytes.
const SMALLER_TABLES: [CParameter; 2] = [CParameter::HashLog(16), CParameter::ChainLog(15)];

/// Bytes that are read, hashed and compressed at a time: they stay in a processor's cache.
const PART: usize = 256 << 10;

/// Compresses frames, one after another.
pub(crate) struct Compressor {
    compressor: bulk::Compressor<'static>,
    /// Room for a frame, which is usually much smaller.
    frame: Vec<u8>,
}

impl Compressor {
    pub(crate) fn new(level: i32) -> Result<Self, ArchiveError> {
        let mut compressor = bulk::Compressor::new(level)?;
        if level == DEFAULT_LEVEL {
            for parameter in SMALLER_TABLES {
                compressor.set_parameter(parameter)?;
            }
        }
        // Readers that do not compute digests still notice damage.
        compressor.include_checksum(true)?;
        Ok(Self { compressor, frame: Vec::new() })
    }

    pub(crate) fn compress(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.frame.clear();
        self.frame.try_reserve(compress_bound(bytes.len()))?;
        self.compressor.compress_to_buffer(bytes, &mut self.frame)?;
        let mut frame = with_capacity(self.frame.len())?;
        frame.extend_from_slice(&self.frame);
        Ok(frame)
    }

    /// Compresses the `size` bytes of `source` into `out`, holding a window of them.
    pub(crate) fn compress_stream(
        &mut self,
        source: &mut impl Read,
        size: u64,
        mut out: impl Write,
    ) -> io::Result<()> {
        let failed = |code| io::Error::other(get_error_name(code));
        let context = self.compressor.context_mut();
        let started = context.reset(ResetDirective::SessionOnly);
        let started = started.and_then(|_| context.set_pledged_src_size(Some(size)));
        started.map_err(failed)?;
        let mut frame = with_capacity(CCtx::out_size())?;
        let mut part = vec![0; PART];
        loop {
            let read = match source.read(&mut part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let mut input = InBuffer::around(&part[..read]);
            loop {
                frame.clear();
                let mut output = OutBuffer::around(&mut frame);
                let left = match read {
                    0 => context.end_stream(&mut output).map_err(failed)?,
                    _ => {
                        let compressed = context.compress_stream(&mut output, &mut input);
                        compressed.map_err(failed)?;
                        read - input.pos()
                    }
                };
                out.write_all(output.as_slice())?;
                if left == 0 {
                    break;
                }
            }
            if read == 0 {
                return Ok(());
            }
        }
    }
}

/// Decompresses frames, one after another. Its memory is allocated for the first one.
#[derive(Default)]
pub(crate) struct Decompressor(Option<DCtx<'static>>);

impl Decompressor {
    /// Decompresses `frame` into `out`; returns the size.
    pub(crate) fn decompress(
        &mut self,
        frame: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, DecodeError> {
        let context = match &mut self.0 {
            Some(context) => context,
            empty => empty.insert(DCtx::try_create().ok_or(DecodeError::OutOfMemory)?),
        };
        context.decompress(out, frame).map_err(|code| match code {
            NO_MEMORY => DecodeError::OutOfMemory,
            code => DecodeError::Damaged(format!(
                "the frame cannot be decompressed: {}",
                get_error_name(code)
            )),
        })
    }
}

/// The contents of the frame at the start of `frame`.
pub(crate) fn frame_reader(frame: impl BufRead) -> Result<impl Read, DecodeError> {
    let decoder = read::Decoder::with_buffer(frame);
    let decoder = decoder.map_err(|_| DecodeError::OutOfMemory)?;
    Ok(decoder.single_frame())
}

/// The contents of a compressed bundle.
pub(crate) enum BundleReader<R: Read> {
    Zlib(flate2::bufread::ZlibDecoder<BufReader<Take<R>>>),
    Zstd(FrameReader<BufReader<Take<R>>>),
}

impl<R: Read> BundleReader<R> {
    /// For contents of `uncompressed_size` bytes.
    pub(crate) fn new(
        source: BufReader<Take<R>>,
        method: Method,
        uncompressed_size: u64,
    ) -> Result<Self, BundleError> {
        Ok(match method {
            Method::Zlib => Self::Zlib(flate2::bufread::ZlibDecoder::new(source)),
            Method::Zstd => {
                let log = 64 - uncompressed_size.leading_zeros();
                let log = log.clamp(WINDOW_LOG.0, WINDOW_LOG.1);
                Self::Zstd(FrameReader::new(source, log)?)
            }
        })
    }

    /// The source, with the unused compressed bytes.
    pub(crate) fn into_source(self) -> BufReader<Take<R>> {
        match self {
            Self::Zlib(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.source,
        }
    }
}

impl<R: Read> Read for BundleReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Zlib(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

/// The hash in a compressed bundle's header, of the plain bundle inside: the first half of its MD5.
#[derive(Default)]
pub(crate) struct ContentHash(Md5);

impl ContentHash {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> [u8; 8] {
        let mut half = [0; 8];
        half.copy_from_slice(&self.0.finalize()[..8]);
        half
    }
}

/// Compresses the contents of a bundle.
pub(crate) enum BundleWriter<W: Write> {
    Zlib(flate2::write::ZlibEncoder<W>),
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> BundleWriter<W> {
    /// For contents of `size` bytes. With `long_matches`, zstd finds repetitions in all of a bundle of up to 128 MiB, as
    /// clang lets it; that takes as much memory.
    pub(crate) fn new(out: W, method: Method, size: u64, long_matches: bool) -> io::Result<Self> {
        Ok(match method {
            Method::Zlib => Self::Zlib(flate2::write::ZlibEncoder::new(out, Default::default())),
            Method::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(out, DEFAULT_LEVEL)?;
                if long_matches {
                    let window = (64 - size.leading_zeros()).clamp(WINDOW_LOG.0, WINDOW_LOG.1);
                    encoder.long_distance_matching(true)?;
                    encoder.window_log(window)?;
                }
                encoder.set_pledged_src_size(Some(size))?;
                Self::Zstd(encoder)
            }
        })
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Self::Zlib(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for BundleWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Zlib(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Zlib(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// An empty frame with a window of 36 MiB. zstd keeps the memory for the next frame, whose window may be
/// smaller. glibc gives blocks of more than 32 MiB back to the system when they are freed; after smaller
/// ones, it keeps as much again for itself, in each thread.
const EMPTY_FRAME: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x79, 0x01, 0x00, 0x00];

/// Decompressors with windows of at most so many bytes, as a power of two, are used again.
const IDLE_WINDOW_LOG: u32 = 25;

/// A decompressor that nobody uses. A binary has hundreds of bundles, and new memory for each costs more
/// than a few per cent of the time.
static IDLE: Mutex<Option<DCtx<'static>>> = Mutex::new(None);

/// The contents of the frame at the start of `source`.
pub(crate) struct FrameReader<R> {
    /// `None` after the end of the frame.
    context: Option<DCtx<'static>>,
    /// The largest window, as a power of two.
    window_log: u32,
    source: R,
}

impl<R: BufRead> FrameReader<R> {
    fn new(source: R, window_log: u32) -> io::Result<Self> {
        let idle = idle_context().take();
        let context = idle.or_else(DCtx::try_create);
        let mut context = context.ok_or(io::ErrorKind::OutOfMemory)?;
        let mut input = InBuffer::around(&EMPTY_FRAME[..]);
        let mut nothing = OutBuffer::around(&mut [][..]);
        context
            .reset(ResetDirective::SessionAndParameters)
            .and_then(|_| context.decompress_stream(&mut nothing, &mut input))
            .and_then(|_| context.set_parameter(DParameter::WindowLogMax(window_log)))
            .map_err(frame_error)?;
        Ok(Self { context: Some(context), window_log, source })
    }
}

impl<R: BufRead> Read for FrameReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut out = OutBuffer::around(buffer);
        while let Some(context) = &mut self.context
            && out.pos() == 0
        {
            let mut input = InBuffer::around(self.source.fill_buf()?);
            let is_empty = input.src.is_empty();
            let left = context.decompress_stream(&mut out, &mut input);
            let left = left.map_err(frame_error)?;
            let read = input.pos();
            self.source.consume(read);
            if left == 0 {
                let context = self.context.take();
                if self.window_log <= IDLE_WINDOW_LOG {
                    *idle_context() = context;
                }
            } else if is_empty && out.pos() == 0 {
                let kind = io::ErrorKind::UnexpectedEof;
                return Err(io::Error::new(kind, "incomplete frame"));
            }
        }
        Ok(out.pos())
    }
}

fn idle_context() -> MutexGuard<'static, Option<DCtx<'static>>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn frame_error(code: usize) -> io::Error {
    match code {
        NO_MEMORY => io::ErrorKind::OutOfMemory.into(),
        code => io::Error::other(get_error_name(code)),
    }
}
