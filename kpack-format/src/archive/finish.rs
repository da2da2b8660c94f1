//! Writes the collected archive, in canonical order.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use super::toc::{FORMAT_VERSION, Storage};
use super::writer::{ArchiveWriter, Entered, PIECE, Stored, prefix};
use super::{ArchiveError, DATA_OFFSET, MAGIC, Scheme, Targets, Toc, TocEntry, limits};
use crate::digest::{Blake3, LateStart};

/// The archive that [`ArchiveWriter::finish`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of TOC entries.
    pub kernel_count: u64,
    /// BLAKE3 digest of the file.
    pub checksum: Blake3,
}

impl<S: Read + Write + Seek> ArchiveWriter<S> {
    /// Writes the archive. `out` is written from its current position and not flushed to disk.
    ///
    /// # Errors
    /// [`ArchiveError::TooLarge`], with nothing written; [`ArchiveError::Io`].
    pub fn finish<W: Write>(mut self, mut out: W) -> Result<Written, ArchiveError> {
        let (kernels, order) = self.in_order();
        let (head, toc) = self.head_and_toc(kernels, &order)?;
        out.write_all(&head)?;
        let mut out = Hashing { out, digest: LateStart::new(head.len()) };
        let prefix = prefix(self.scheme);
        for index in order {
            let Stored { offset, size, .. } = self.stored[index];
            self.copy_spool(offset - prefix..offset + size, &mut out)?;
        }
        out.write_all(&toc)?;
        Ok(written(&out.digest, &head, self.kernels.len()))
    }

    /// Whether the spool has the code objects in canonical order.
    pub fn is_in_order(&self) -> bool {
        let mut next = 0;
        let kernels_agree = self.kernels.values().all(|Entered { index, .. }| {
            next += usize::from(*index == next);
            *index < next
        });
        kernels_agree && next == self.stored.len()
    }

    /// Makes the spool the archive that [`finish`](Self::finish) would write, without reading it. It has to be
    /// [in order](Self::is_in_order).
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_in_place(mut self) -> Result<Written, ArchiveError> {
        let (kernels, order) = self.in_order();
        let (head, toc) = self.head_and_toc(kernels, &order)?;
        self.spool.rewind()?;
        self.spool.write_all(&head)?;
        self.spool.seek(SeekFrom::Start(self.spool_end))?;
        self.spool.write_all(&toc)?;
        self.digest.update(&toc);
        Ok(written(&self.digest, &head, self.kernels.len()))
    }

    /// What is before the code objects and after them.
    fn head_and_toc(
        &self,
        kernels: BTreeMap<String, Targets>,
        order: &[usize],
    ) -> Result<(Vec<u8>, Vec<u8>), ArchiveError> {
        let stored = || order.iter().map(|index| &self.stored[*index]);
        let (storage, end) = layout(self.scheme, stored());
        let toc = Toc {
            group_name: self.group_name.clone(),
            gfx_arch_family: self.family.clone(),
            gfx_arches: self.targets.clone(),
            scheme: self.scheme,
            kernels,
            checksums: Some(stored().map(|stored| stored.checksum).collect()),
        };
        let toc = toc.to_bytes(&storage);
        let what = || format!("the table of contents has {} bytes", toc.len());
        limits::check(what, toc.len() as u64, self.max_toc)?;

        let mut head = vec![0; DATA_OFFSET as usize];
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        head[8..16].copy_from_slice(&end.to_le_bytes());
        if self.scheme == Scheme::ZstdPerKernel {
            head.extend((order.len() as u32).to_le_bytes());
        }
        Ok((head, toc))
    }

    /// The TOC's kernels, and the stored code objects by ordinal, in the order of their first
    /// kernels.
    fn in_order(&self) -> (BTreeMap<String, Targets>, Vec<usize>) {
        let mut kernels: BTreeMap<String, Targets> = BTreeMap::new();
        let mut ordinals: HashMap<usize, u32> = HashMap::new();
        let mut order = Vec::new();
        for (kernel, entered) in &self.kernels {
            let index = entered.index;
            let ordinal = *ordinals.entry(index).or_insert_with(|| {
                order.push(index);
                order.len() as u32 - 1
            });
            let entry = TocEntry {
                ordinal,
                original_size: self.stored[index].original_size,
                lacks_size: false,
                entry_id: entered.entry_id.clone(),
                kind: entered.kind.clone(),
                metadata: entered.metadata.clone(),
            };
            let targets = kernels.entry(kernel.name.clone()).or_default();
            targets.insert(self.targets[kernel.target].clone(), entry);
        }
        (kernels, order)
    }

    fn copy_spool(&mut self, range: Range<u64>, out: &mut impl Write) -> Result<(), ArchiveError> {
        let size = range.end - range.start;
        self.spool.seek(SeekFrom::Start(range.start))?;
        let mut spool = BufReader::with_capacity(PIECE, Read::by_ref(&mut self.spool).take(size));
        if io::copy(&mut spool, out)? == size {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
        }
    }
}

/// The offsets of the code objects, and the end of the last.
fn layout<'a>(scheme: Scheme, stored: impl Iterator<Item = &'a Stored>) -> (Storage, u64) {
    let prefix = prefix(scheme);
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

fn written(digest: &LateStart, head: &[u8], kernels: usize) -> Written {
    let (size, kernel_count) = (digest.size(), kernels as u64);
    Written { size, kernel_count, checksum: digest.finish(head) }
}

/// Hashes what is written.
pub(super) struct Hashing<W> {
    pub(super) out: W,
    pub(super) digest: LateStart,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
