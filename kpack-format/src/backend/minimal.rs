//! Replaces `full.rs` without the feature `compression`, for build scripts, where compiling
//! Zstandard takes too long. Compressed data is refused.

use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::marker::PhantomData;

use crate::archive::{ArchiveError, DecodeError};
use crate::offload_bundle::{BundleError, Method};

pub(crate) struct Compressor(Infallible);

impl Compressor {
    pub(crate) fn new(_level: i32) -> Result<Self, ArchiveError> {
        Err(ArchiveError::NoCompression)
    }

    pub(crate) fn compress(&mut self, _: &[u8]) -> io::Result<Vec<u8>> {
        match self.0 {}
    }

    pub(crate) fn compress_stream(
        &mut self,
        _: &mut impl Read,
        _: u64,
        _: impl Write,
    ) -> io::Result<()> {
        match self.0 {}
    }
}

#[derive(Default)]
pub(crate) struct Decompressor;

impl Decompressor {
    pub(crate) fn decompress(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<usize, DecodeError> {
        Err(DecodeError::NoCompression)
    }
}

pub(crate) fn frame_reader(_: impl BufRead) -> Result<io::Empty, DecodeError> {
    Err(DecodeError::NoCompression)
}

pub(crate) struct BundleReader<R>(Infallible, PhantomData<R>);

impl<R: Read> BundleReader<R> {
    pub(crate) fn new(_: BufReader<Take<R>>, _: Method, _: u64) -> Result<Self, BundleError> {
        crate::offload_bundle::malformed(0, ArchiveError::NoCompression.to_string())
    }

    pub(crate) fn into_source(self) -> BufReader<Take<R>> {
        match self.0 {}
    }
}

impl<R> Read for BundleReader<R> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

/// Nothing is hashed, because nothing can be decompressed.
#[derive(Default)]
pub(crate) struct ContentHash(());

impl ContentHash {
    pub(crate) fn update(&mut self, _: &[u8]) {}

    pub(crate) fn finish(self) -> [u8; 8] {
        [0; 8]
    }
}

pub(crate) struct BundleWriter<W>(Infallible, PhantomData<W>);

impl<W: Write> BundleWriter<W> {
    pub(crate) fn new(_: W, _: Method, _: u64, _: bool) -> io::Result<Self> {
        Err(io::Error::other(ArchiveError::NoCompression))
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        match self.0 {}
    }
}

impl<W> Write for BundleWriter<W> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}
