//! Reads an archive's header and TOC, and locates its code objects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Seek, SeekFrom};

use super::entries::UNKNOWN_SIZE;
use super::error::malformed;
use super::frame::{MAX_FRAME_HEADER, content_size};
use super::header::toc_range;
use super::limits::{MAX_CODE_OBJECT, MAX_FRAMES, MAX_TOC};
use super::toc::Storage;
use super::{ArchiveError, HEADER_SIZE, Targets, Toc, TocEntry, with_capacity};

/// The TOC of an archive, checked against the size of the file. Code objects are not read, so the
/// cost depends on the TOC alone.
#[derive(Debug)]
pub struct Index {
    toc: Toc,
    storage: Storage,
    /// Offset where the data ends.
    toc_offset: u64,
    count: usize,
}

impl Index {
    /// Reads header and TOC, and checks every location in the TOC.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for what is no archive or has a TOC that does not fit it,
    /// [`ArchiveError::Toc`], [`ArchiveError::UnsupportedVersion`], [`ArchiveError::Io`].
    pub fn read<R: Read + Seek>(source: &mut R) -> Result<Self, ArchiveError> {
        let (toc_offset, size) = toc_range(source)?;
        let toc_size = size - toc_offset;
        if toc_size > MAX_TOC {
            return malformed!(
                toc_offset,
                "the TOC has {toc_size} bytes (expected at most {MAX_TOC})"
            );
        }
        source.seek(SeekFrom::Start(toc_offset))?;
        let bytes = read_bytes(source, toc_size)?;
        let (toc, storage) = Toc::read(&bytes, toc_offset)?;
        let count = check_storage(source, toc_offset, &storage)?;
        let mut index = Self { toc, storage, toc_offset, count };
        index.complete_sizes(source)?;
        index.check_entries()?;
        Ok(index)
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        &self.toc
    }

    /// Number of stored code objects; ordinals count from 0.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Offset and size in bytes of the stored (compressed) code object `ordinal`. `None` if there
    /// is no such ordinal, or if finding it needs a walk over the frames before it. Reads at most
    /// four bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for a frame that is not within the data or overlaps the next one,
    /// [`ArchiveError::Io`].
    pub fn place<R: Read + Seek>(
        &self,
        source: &mut R,
        ordinal: u32,
    ) -> Result<Option<(u64, u64)>, ArchiveError> {
        match &self.storage {
            Storage::Blobs(blobs) => Ok(blobs.get(ordinal as usize).copied()),
            Storage::Frames { offset, size, .. } => match self.frame_offset(ordinal) {
                Some(at) => {
                    source.seek(SeekFrom::Start(at))?;
                    let next = ordinal.checked_add(1).and_then(|next| self.frame_offset(next));
                    frame_here(source, ordinal, at, next.unwrap_or(offset + size)).map(Some)
                }
                None => Ok(None),
            },
        }
    }

    /// Offset and size in bytes of every stored (compressed) code object that an entry names, by
    /// ordinal. [Walks](Self::walk) an archive without `frame_offsets`.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub fn places<R: Read + Seek>(
        &self,
        source: &mut R,
    ) -> Result<BTreeMap<u32, (u64, u64)>, ArchiveError> {
        let named: BTreeSet<u32> = self.toc.entries().map(|entry| entry.ordinal).collect();
        let mut walked = Vec::new();
        let mut places = BTreeMap::new();
        for ordinal in named {
            let place = match self.place(source, ordinal)? {
                Some(place) => place,
                None => self.walk(source, &mut walked, ordinal)?,
            };
            places.insert(ordinal, place);
        }
        Ok(places)
    }

    /// Offset and size in bytes of the frame `ordinal`, for an archive without `frame_offsets`.
    /// Continues after the last frame in `walked`, which holds all frames from the first on, and
    /// adds those it passes. Works best with a source that keeps its buffer in
    /// [`Seek::seek_relative`].
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for a frame outside of the data, and for an archive without
    /// frames; [`ArchiveError::Io`].
    pub fn walk<R: Read + Seek>(
        &self,
        source: &mut R,
        walked: &mut Vec<(u64, u64)>,
        ordinal: u32,
    ) -> Result<(u64, u64), ArchiveError> {
        let (Storage::Frames { offset, size, .. }, true) =
            (&self.storage, (ordinal as usize) < self.count)
        else {
            let reason = format!("there is no code object with ordinal {ordinal}");
            return malformed(self.toc_offset, reason);
        };
        let mut at = walked.last().map_or(offset + 4, |(at, size)| at + size);
        if walked.len() <= ordinal as usize {
            source.seek(SeekFrom::Start(at))?;
        }
        while walked.len() <= ordinal as usize {
            let place = frame_here(source, walked.len() as u32, at, offset + size)?;
            source.seek_relative(place.1 as i64)?;
            at = place.0 + place.1;
            walked.push(place);
        }
        Ok(walked[ordinal as usize])
    }

    /// Offset of the size before the frame `ordinal`, which is where the frame before it has to end.
    fn frame_offset(&self, ordinal: u32) -> Option<u64> {
        match &self.storage {
            Storage::Frames { frame_offsets: Some(offsets), .. } => {
                Some(offsets.get(ordinal as usize)? - 4)
            }
            _ => None,
        }
    }

    /// Fills in a missing `original_size` from the stored code object.
    fn complete_sizes<R: Read + Seek>(&mut self, source: &mut R) -> Result<(), ArchiveError> {
        let is_unknown = |entry: &TocEntry| entry.original_size == UNKNOWN_SIZE;
        if !self.toc.entries().any(is_unknown) {
            return Ok(());
        }
        let places = self.places(source)?;
        let entries = self.toc.kernels.values_mut().flat_map(Targets::values_mut);
        for entry in entries.filter(|entry| is_unknown(entry)) {
            let (offset, size) = places[&entry.ordinal];
            entry.original_size = match self.storage {
                Storage::Blobs(_) => size,
                Storage::Frames { .. } => {
                    let mut start = Vec::new();
                    source.seek(SeekFrom::Start(offset))?;
                    source.take(size.min(MAX_FRAME_HEADER)).read_to_end(&mut start)?;
                    content_size(&start).or_else(|reason| malformed(offset, reason))?
                }
            };
        }
        Ok(())
    }

    /// Checks that each entry names a stored code object with a possible size, the same as other
    /// entries give it.
    fn check_entries(&self) -> Result<(), ArchiveError> {
        let (toc, count) = (&self.toc, self.count);
        if let Some(checksums) = toc.checksums.as_ref().filter(|all| all.len() != count) {
            return malformed!(
                self.toc_offset,
                "`blake3` has {} entries for {count} code objects",
                checksums.len()
            );
        }
        // By ordinal, and one more than the size: 0 stands for none.
        let mut sizes = vec![0; count];
        for (name, targets) in &toc.kernels {
            for (target, entry) in targets {
                let TocEntry { ordinal, original_size: size, .. } = *entry;
                let what = match &self.storage {
                    _ if ordinal as usize >= count => {
                        format!("ordinal {ordinal}, but {count} code objects are stored")
                    }
                    _ if size > MAX_CODE_OBJECT => {
                        format!("{size} bytes (expected at most {MAX_CODE_OBJECT})")
                    }
                    Storage::Blobs(blobs) if blobs[ordinal as usize].1 != size => {
                        let stored = blobs[ordinal as usize].1;
                        format!("{size} bytes in its entry, but {stored} are stored")
                    }
                    _ => match std::mem::replace(&mut sizes[ordinal as usize], size + 1) {
                        other if other == 0 || other == size + 1 => continue,
                        other => format!(
                            "{size} bytes, but {} in another entry with ordinal {ordinal}",
                            other - 1
                        ),
                    },
                };
                return malformed!(self.toc_offset, "kernel `{name}` for {target} has {what}");
            }
        }
        Ok(())
    }
}

/// Checks the TOC's locations against the data, which ends at `end`; returns the number of stored
/// code objects.
fn check_storage<R: Read + Seek>(
    source: &mut R,
    end: u64,
    storage: &Storage,
) -> Result<usize, ArchiveError> {
    match storage {
        Storage::Blobs(blobs) => {
            for (ordinal, (offset, size)) in blobs.iter().enumerate() {
                check_range(*offset, *size, end, &format!("code object {ordinal}"))?;
            }
            check_overlaps(blobs)?;
            Ok(blobs.len())
        }
        Storage::Frames { offset, size, frame_offsets } => {
            check_range(*offset, *size, end, "the area of zstd frames")?;
            let (offset, area_end) = (*offset, offset + size);
            if *size < 4 {
                return malformed!(
                    offset,
                    "the area of zstd frames has {size} bytes (expected at least 4, for \
                         their number)"
                );
            }
            source.seek(SeekFrom::Start(offset))?;
            let count = read_u32(source)? as usize;
            // Each is preceded by its size.
            if count as u64 > size / 4 {
                return malformed!(offset, "{count} zstd frames do not fit into {size} bytes");
            }
            if count > MAX_FRAMES {
                return malformed!(offset, "{count} zstd frames (expected at most {MAX_FRAMES})");
            }
            if let Some(offsets) = frame_offsets {
                if offsets.len() != count {
                    return malformed!(
                        offset,
                        "`frame_offsets` has {} entries for {count} zstd frames",
                        offsets.len()
                    );
                }
                let in_area = |frame: &u64| *frame >= offset + 8 && *frame <= area_end;
                if let Some(wrong) = offsets.iter().position(|frame| !in_area(frame)) {
                    return malformed!(
                        offset,
                        "`frame_offsets` has a wrong entry for zstd frame {wrong}"
                    );
                }
                // Room for the size between them. The end of each is checked as it is read.
                let follows = |two: &[u64]| two[1] - 4 >= two[0];
                if let Some(before) = offsets.windows(2).position(|two| !follows(two)) {
                    return malformed!(
                        offset,
                        "`frame_offsets` does not ascend at zstd frame {}",
                        before + 1
                    );
                }
            }
            Ok(count)
        }
    }
}

/// Refuses code objects that share bytes: a small archive could otherwise hold any amount of them.
fn check_overlaps(blobs: &[(u64, u64)]) -> Result<(), ArchiveError> {
    let stored = (0..blobs.len()).filter(|ordinal| blobs[*ordinal].1 > 0);
    let mut by_offset: Vec<usize> = stored.collect();
    // Nearly all archives have them in this order.
    by_offset.sort_by_key(|ordinal| blobs[*ordinal].0);
    let overlap = by_offset.windows(2).find(|two| {
        let (offset, size) = blobs[two[0]];
        offset + size > blobs[two[1]].0
    });
    match overlap {
        Some(two) => {
            malformed!(blobs[two[1]].0, "code object {} overlaps code object {}", two[1], two[0])
        }
        None => Ok(()),
    }
}

/// Offset and size of the frame whose size is stored at `at`, where `source` is, in an area that ends
/// at `end`. Leaves `source` at the start of the frame.
fn frame_here<R: Read>(
    source: &mut R,
    ordinal: u32,
    at: u64,
    end: u64,
) -> Result<(u64, u64), ArchiveError> {
    if at + 4 > end {
        return malformed!(at, "zstd frame {ordinal} is missing");
    }
    let size = u64::from(read_u32(source)?);
    check_range(at + 4, size, end, &format!("zstd frame {ordinal}"))?;
    Ok((at + 4, size))
}

fn check_range(offset: u64, size: u64, end: u64, what: &str) -> Result<(), ArchiveError> {
    let own_end = offset.checked_add(size);
    if offset >= HEADER_SIZE && own_end.is_some_and(|own_end| own_end <= end) {
        return Ok(());
    }
    malformed!(
        offset,
        "{what} has {size:#x} bytes at offset {offset:#x}; expected it within {HEADER_SIZE:#x}..{end:#x}"
    )
}

/// Reads `size` bytes; fails if there is not enough memory.
fn read_bytes<R: Read>(source: &mut R, size: u64) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = with_capacity(size as usize)?;
    source.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == size {
        Ok(bytes)
    } else {
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

fn read_u32<R: Read>(source: &mut R) -> Result<u32, ArchiveError> {
    let mut bytes = [0; 4];
    source.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}
