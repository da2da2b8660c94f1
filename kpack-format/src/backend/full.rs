//! The feature `compression`: Zstandard and zlib.

use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::{mem, panic};

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
            code => DecodeError::in_frame(get_error_name(code)),
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

/// The hash in a compressed bundle's header, of the plain bundle inside: the first half of its MD5. A large content is
/// hashed on another thread, because MD5 takes as long as decompressing.
#[derive(Default)]
pub(crate) struct ContentHash {
    /// Of what was hashed here.
    hasher: Md5,
    /// Bytes so far.
    size: usize,
    beside: Option<Beside>,
}

/// A thread that hashes what follows.
struct Beside {
    pieces: SyncSender<Vec<u8>>,
    /// What was not sent yet.
    piece: Vec<u8>,
    thread: JoinHandle<Md5>,
}

/// Less is hashed before a thread would have started.
const HASHED_HERE: usize = 1 << 20;
/// Bytes that are hashed at a time: they stay in a processor's cache.
const HASHED_PIECE: usize = 64 << 10;
/// The most pieces that wait.
const WAITING: usize = 16;

impl ContentHash {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.size = self.size.saturating_add(bytes.len());
        if self.beside.is_none() && self.size > HASHED_HERE {
            self.beside = Beside::start(&self.hasher);
        }
        match &mut self.beside {
            Some(beside) => beside.add(bytes),
            None => self.hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> [u8; 8] {
        let hasher = match self.beside {
            Some(beside) => beside.finish(),
            None => self.hasher,
        };
        let mut half = [0; 8];
        half.copy_from_slice(&hasher.finalize()[..8]);
        half
    }
}

impl Beside {
    /// `None` if the system has no room for another thread; it is tried again with the next bytes.
    fn start(hasher: &Md5) -> Option<Self> {
        let (pieces, received) = mpsc::sync_channel::<Vec<u8>>(WAITING);
        let mut hasher = hasher.clone();
        let hash = move || {
            received.iter().for_each(|piece| hasher.update(piece));
            hasher
        };
        let thread = thread::Builder::new().spawn(hash).ok()?;
        Some(Self { pieces, piece: Vec::with_capacity(HASHED_PIECE), thread })
    }

    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = HASHED_PIECE - self.piece.len();
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = rest;
            if self.piece.len() == HASHED_PIECE {
                self.send(Vec::with_capacity(HASHED_PIECE));
            }
        }
    }

    /// The thread ends only when there is nothing more to send.
    fn send(&mut self, next: Vec<u8>) {
        let _ = self.pieces.send(mem::replace(&mut self.piece, next));
    }

    fn finish(mut self) -> Md5 {
        self.send(Vec::new());
        drop(self.pieces);
        self.thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
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
        while let Some(context) = self.context.as_mut().filter(|_| out.pos() == 0) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_any_size_has_the_hash_of_its_bytes() {
        let bytes = Vec::from_iter((0..3 * HASHED_HERE).map(|at| (at % 251) as u8));
        for size in
            [0, 1, HASHED_HERE, HASHED_HERE + 1, 2 * HASHED_HERE + HASHED_PIECE, bytes.len() - 7]
        {
            for piece in [1000, HASHED_PIECE, 5 << 20] {
                let mut hash = ContentHash::default();
                bytes[..size].chunks(piece).for_each(|piece| hash.update(piece));
                assert_eq!(hash.beside.is_some(), size > HASHED_HERE, "{size} bytes");
                let expected = &Md5::digest(&bytes[..size])[..8];
                assert_eq!(hash.finish(), expected, "{size} bytes, {piece} at once");
            }
        }
        // A run that ends early leaves nothing behind.
        let mut hash = ContentHash::default();
        hash.update(&bytes);
        let thread = hash.beside.take().map(|beside| beside.thread);
        assert!(thread.is_some_and(|thread| thread.join().is_ok()));
    }
}
