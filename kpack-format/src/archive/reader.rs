//! Reading archives.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use super::index::malformed;
use super::{ArchiveError, DecodeError, Decoder, Index, Scheme, Toc, TocEntry};
use crate::digest::sha256;

/// An archive open for reading: its TOC, and code objects on demand.
#[derive(Debug)]
pub struct Archive<R> {
    source: R,
    index: Index,
    /// Offset and size of each stored code object that an entry names, by ordinal.
    stored: BTreeMap<u32, (u64, u64)>,
    decoder: Decoder,
}

impl<R: Read + Seek> Archive<R> {
    /// Reads header and TOC, and checks every place that the TOC names.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for what is no archive or has a TOC that does not fit it,
    /// [`ArchiveError::Toc`], [`ArchiveError::UnsupportedVersion`], [`ArchiveError::Io`].
    pub fn open(mut source: R) -> Result<Self, ArchiveError> {
        let index = Index::read(&mut source)?;
        let stored = index.places(&mut source)?;
        Ok(Self {
            source,
            index,
            stored,
            decoder: Decoder::default(),
        })
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        self.index.toc()
    }

    /// How many kernels it has: names, each with its targets.
    pub fn kernel_count(&self) -> u64 {
        let kernels = self.toc().kernels.values();
        kernels.map(|targets| targets.len() as u64).sum()
    }

    /// How many code objects are stored; ordinals are smaller.
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
            None => malformed(0, format!("no kernel has ordinal {ordinal}")),
        }
    }

    /// The code object of `kernel` for `target`, decompressed; its size, and its checksum where
    /// the archive tells one, are verified.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchKernel`], [`ArchiveError::Decompression`],
    /// [`ArchiveError::Malformed`], [`ArchiveError::Io`].
    pub fn read(&mut self, kernel: &str, target: &str) -> Result<Vec<u8>, ArchiveError> {
        let entry = self.toc().entry(kernel, target)?.clone();
        self.read_entry(kernel, target, &entry)
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
                result.map_err(|error| match error {
                    DecodeError::OutOfMemory => ArchiveError::Io(io::ErrorKind::OutOfMemory.into()),
                    DecodeError::NoCompression => ArchiveError::NoCompression,
                    DecodeError::Damaged(reason) => ArchiveError::Decompression {
                        offset,
                        reason: format!("kernel `{kernel}` for {target}: {reason}"),
                    },
                })?
            }
        };
        let checksums = self.toc().checksums.as_ref();
        if let Some(expected) = checksums.and_then(|all| all.get(entry.ordinal as usize)) {
            let found = sha256(&bytes);
            if found[..] != expected[..] {
                return malformed(
                    offset,
                    format!(
                        "kernel `{kernel}` for {target} is damaged: its SHA-256 is {}, expected {}",
                        hex(&found),
                        hex(expected)
                    ),
                );
            }
        }
        Ok(bytes)
    }

    /// What is stored, as it is.
    pub(super) fn stored_bytes(&mut self, ordinal: u32) -> Result<Vec<u8>, ArchiveError> {
        let (offset, size) = self.stored(ordinal)?;
        self.source.seek(SeekFrom::Start(offset))?;
        let mut bytes = vec![0; size as usize];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
