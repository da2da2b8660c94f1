//! Writes the collected archive, in canonical order.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Seek, SeekFrom, Write};

use super::toc::{FORMAT_VERSION, Storage};
use super::writer::{ArchiveWriter, Stored};
use super::{ArchiveError, DATA_OFFSET, MAGIC, Scheme, Targets, Toc, TocEntry, limits};
use crate::digest::{Hasher, Sha256};

/// The archive that [`ArchiveWriter::finish`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of TOC entries.
    pub kernel_count: u64,
    /// SHA-256 of the file.
    pub checksum: Sha256,
}

impl<S: Read + Write + Seek> ArchiveWriter<S> {
    /// Writes the archive. `out` is written from its current position and not flushed to disk.
    ///
    /// # Errors
    /// [`ArchiveError::TooLarge`], with nothing written; [`ArchiveError::Io`].
    pub fn finish<W: Write>(mut self, out: W) -> Result<Written, ArchiveError> {
        let (kernels, order) = self.in_order();
        let (storage, end) = layout(self.scheme, order.iter().map(|index| &self.stored[*index]));
        let checksums = order.iter().map(|index| self.stored[*index].checksum);
        let toc = Toc {
            group_name: self.group_name.clone(),
            gfx_arch_family: self.target.clone(),
            gfx_arches: vec![self.target.clone()],
            scheme: self.scheme,
            kernels,
            checksums: Some(checksums.collect()),
        };
        let toc = toc.to_bytes(&storage);
        let what = || format!("the table of contents has {} bytes", toc.len());
        limits::check(what, toc.len() as u64, self.max_toc)?;

        let mut out = Hashing {
            out,
            hasher: Hasher::default(),
            size: 0,
        };
        let mut header = [0; DATA_OFFSET as usize];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&end.to_le_bytes());
        out.write_all(&header)?;
        self.write_stored(&order, &mut out)?;
        out.write_all(&toc)?;
        Ok(Written {
            size: out.size,
            kernel_count: self.kernels.len() as u64,
            checksum: out.hasher.finish(),
        })
    }

    /// The TOC's kernels, and the stored code objects by ordinal, in the order of their first
    /// kernels.
    fn in_order(&self) -> (BTreeMap<String, Targets>, Vec<usize>) {
        let mut kernels: BTreeMap<String, Targets> = BTreeMap::new();
        let mut ordinals: HashMap<usize, u32> = HashMap::new();
        let mut order = Vec::new();
        for (kernel, index) in &self.kernels {
            let ordinal = *ordinals.entry(*index).or_insert_with(|| {
                order.push(*index);
                order.len() as u32 - 1
            });
            let entry = TocEntry {
                ordinal,
                original_size: self.stored[*index].original_size,
            };
            let targets = kernels.entry(kernel.name.clone()).or_default();
            targets.insert(self.target.clone(), entry);
        }
        (kernels, order)
    }

    fn write_stored(&mut self, order: &[usize], out: &mut impl Write) -> Result<(), ArchiveError> {
        let is_framed = self.scheme == Scheme::ZstdPerKernel;
        if is_framed {
            out.write_all(&(order.len() as u32).to_le_bytes())?;
        }
        for index in order {
            let Stored { offset, size, .. } = self.stored[*index];
            if is_framed {
                out.write_all(&(size as u32).to_le_bytes())?;
            }
            self.spool.seek(SeekFrom::Start(offset))?;
            if io::copy(&mut Read::by_ref(&mut self.spool).take(size), out)? != size {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }
}

/// The offsets of the code objects, and the end of the last.
fn layout<'a>(scheme: Scheme, stored: impl Iterator<Item = &'a Stored>) -> (Storage, u64) {
    // The number of frames and each frame's size take four bytes.
    let prefix = match scheme {
        Scheme::None => 0,
        Scheme::ZstdPerKernel => 4,
    };
    let mut end = DATA_OFFSET + prefix;
    let places = stored.map(|stored| {
        let offset = end + prefix;
        end = offset + stored.size;
        (offset, stored.size)
    });
    let places: Vec<(u64, u64)> = places.collect();
    let storage = match scheme {
        Scheme::None => Storage::Blobs(places),
        Scheme::ZstdPerKernel => Storage::Frames {
            offset: DATA_OFFSET,
            size: end - DATA_OFFSET,
            frame_offsets: Some(places.into_iter().map(|(offset, _)| offset).collect()),
        },
    };
    (storage, end)
}

/// Hashes what is written.
struct Hashing<W> {
    out: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
