//! Reads archives.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use super::codec::{decode_in_parts, decode_stream, in_parts, with_capacity};
use super::error::malformed;
use super::{ArchiveError, DecodeError, Decoder, Index, Scheme, Toc, TocEntry};
use crate::Reason;
use crate::digest::{Blake3, Hasher, blake3};

/// A larger stored code object, in bytes, is not held in memory to verify it.
const LARGE: u64 = 2 << 20;

/// An open archive: its TOC, and code objects on demand.
#[derive(Debug)]
pub struct Archive<R> {
    source: R,
    index: Arc<Index>,
    /// Offset and size of each stored code object that an entry names, by ordinal.
    stored: Arc<BTreeMap<u32, (u64, u64)>>,
    decoder: Decoder,
}

impl<R> Archive<R> {
    /// The same archive with its own reader, so that several threads can read it, or its file can be closed. `source` is the
    /// same file, or `()`.
    pub fn share<S>(&self, source: S) -> Archive<S> {
        Archive {
            source,
            index: Arc::clone(&self.index),
            stored: Arc::clone(&self.stored),
            decoder: Decoder::default(),
        }
    }

    /// What it is read from.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        self.index.toc()
    }

    /// Number of entries: a kernel counts once for each target.
    pub fn kernel_count(&self) -> u64 {
        let kernels = self.toc().kernels.values();
        kernels.map(|targets| targets.len() as u64).sum()
    }
}

impl<R: Read + Seek> Archive<R> {
    /// Reads header and TOC, and checks every location in the TOC.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for what is no archive or has a TOC that does not fit it,
    /// [`ArchiveError::Toc`], [`ArchiveError::UnsupportedVersion`], [`ArchiveError::Io`].
    pub fn open(mut source: R) -> Result<Self, ArchiveError> {
        let index = Index::read(&mut source)?;
        let stored = index.places(&mut source)?;
        Ok(Self {
            source,
            index: Arc::new(index),
            stored: Arc::new(stored),
            decoder: Decoder::default(),
        })
    }

    /// Number of stored code objects; ordinals count from 0.
    pub fn count(&self) -> usize {
        self.index.count()
    }

    /// Offset and size of the stored (compressed) code object `ordinal`, in bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for an ordinal that no entry names.
    pub fn stored(&mut self, ordinal: u32) -> Result<(u64, u64), ArchiveError> {
        match self.stored.get(&ordinal) {
            Some(place) => Ok(*place),
            None => malformed!(0, "no kernel has ordinal {ordinal}"),
        }
    }

    /// Reads and decompresses the code object of `kernel` for `target`. Verifies its size, and its
    /// checksum if the archive has one.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchKernel`], [`ArchiveError::Decompression`],
    /// [`ArchiveError::Malformed`], [`ArchiveError::Io`].
    pub fn read(&mut self, kernel: &str, target: &str) -> Result<Vec<u8>, ArchiveError> {
        let entry = self.toc().entry(kernel, target)?.clone();
        self.read_entry(kernel, target, &entry)
    }

    /// Verifies the code object of `kernel` for `target` as [`read`](Self::read) does, holding only
    /// part of it. Returns its first bytes, at most `size`.
    ///
    /// # Errors
    /// As [`read`](Self::read), also for a Zstandard window of more than 128 MiB.
    pub fn read_head(
        &mut self,
        kernel: &str,
        target: &str,
        size: usize,
    ) -> Result<Vec<u8>, ArchiveError> {
        let entry = self.toc().entry(kernel, target)?.clone();
        let mut head = Vec::new();
        self.digest(kernel, target, &entry, &mut |part| {
            let missing = size - head.len();
            head.extend_from_slice(&part[..part.len().min(missing)]);
            Ok(())
        })?;
        Ok(head)
    }

    /// Verifies the code object of `kernel` for `target` as [`read`](Self::read) does, and passes it to
    /// `take` in parts. It is verified only when this returns. An error of `take` ends it. Returns its BLAKE3 digest.
    ///
    /// # Errors
    /// As [`read_head`](Self::read_head), and those of `take`.
    pub fn read_parts(
        &mut self,
        kernel: &str,
        target: &str,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Blake3, ArchiveError> {
        let entry = self.toc().entry(kernel, target)?.clone();
        self.digest(kernel, target, &entry, take)
    }

    /// Verifies the code object of `kernel` for `target` as [`read`](Self::read) does, holding only part of
    /// it. Returns its size and BLAKE3 digest.
    ///
    /// # Errors
    /// As [`read_head`](Self::read_head).
    pub fn read_digest(
        &mut self,
        kernel: &str,
        target: &str,
    ) -> Result<(u64, Blake3), ArchiveError> {
        let entry = self.toc().entry(kernel, target)?.clone();
        let digest = self.digest(kernel, target, &entry, &mut |_| Ok(()))?;
        Ok((entry.original_size, digest))
    }

    /// Verifies a code object and returns its BLAKE3 digest, passing it to `take` in parts.
    pub(super) fn digest(
        &mut self,
        kernel: &str,
        target: &str,
        entry: &TocEntry,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Blake3, ArchiveError> {
        let (offset, size) = self.stored(entry.ordinal)?;
        let mut hasher = Hasher::default();
        let mut refused = None;
        let mut take = |part: &[u8]| {
            hasher.update(part);
            let taken = take(part);
            refused = taken.err();
            refused.is_none()
        };
        match self.toc().scheme {
            Scheme::None => {
                self.source.seek(SeekFrom::Start(offset))?;
                let read = in_parts((&mut self.source).take(size), &mut take)?;
                if read < size && refused.is_none() {
                    return Err(ArchiveError::Io(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Scheme::ZstdPerKernel => {
                let decoded = if size > LARGE {
                    self.source.seek(SeekFrom::Start(offset))?;
                    let stored = (&mut self.source).take(size);
                    decode_stream(stored, entry.original_size, &mut take)
                } else {
                    let stored = self.stored_bytes(entry.ordinal)?;
                    decode_in_parts(&stored, entry.original_size, &mut take)
                };
                if refused.is_none() {
                    decoded.map_err(|error| undecoded(error, offset, kernel, target))?;
                }
            }
        }
        if let Some(error) = refused {
            return Err(ArchiveError::Io(error));
        }
        let found = hasher.finish();
        self.toc().check(kernel, target, entry, offset, &found)?;
        Ok(found)
    }

    pub(super) fn read_entry(
        &mut self,
        kernel: &str,
        target: &str,
        entry: &TocEntry,
    ) -> Result<Vec<u8>, ArchiveError> {
        let (offset, _) = self.stored(entry.ordinal)?;
        let stored = self.stored_bytes(entry.ordinal)?;
        let bytes = match self.toc().scheme {
            Scheme::None => stored,
            Scheme::ZstdPerKernel => {
                let size = entry.original_size;
                let result = self.decoder.decode(&stored, size);
                result.map_err(|error| undecoded(error, offset, kernel, target))?
            }
        };
        if self.toc().checksums.is_some() {
            let found = blake3(&bytes);
            self.toc().check(kernel, target, entry, offset, &found)?;
        }
        Ok(bytes)
    }

    /// The stored bytes, not decompressed.
    pub(super) fn stored_bytes(&mut self, ordinal: u32) -> Result<Vec<u8>, ArchiveError> {
        let (offset, size) = self.stored(ordinal)?;
        self.source.seek(SeekFrom::Start(offset))?;
        let mut bytes = with_capacity(size as usize)?;
        bytes.resize(size as usize, 0);
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn undecoded(error: DecodeError, offset: u64, kernel: &str, target: &str) -> ArchiveError {
    match error {
        DecodeError::OutOfMemory => ArchiveError::Io(io::ErrorKind::OutOfMemory.into()),
        DecodeError::NoCompression => ArchiveError::NoCompression,
        DecodeError::Io(error) => ArchiveError::Io(error),
        DecodeError::Damaged(reason) => ArchiveError::Decompression {
            offset,
            reason: Reason::from(format!("kernel `{kernel}` for {target}: {reason}"))
                .kernel(kernel)
                .target(target),
        },
    }
}
