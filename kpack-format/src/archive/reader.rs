//! Reading archives.

use std::io::{Read, Seek, SeekFrom};

use super::toc::{FORMAT_VERSION, Storage};
use crate::digest::sha256;

use super::{ArchiveError, DATA_OFFSET, MAGIC, Scheme, Toc, TocEntry, codec};

/// The largest TOC that is read or written, in bytes: room for some hundred thousand kernels.
pub(super) const MAX_TOC: u64 = 16 << 20;

/// An archive open for reading: its TOC, and code objects on demand.
#[derive(Debug)]
pub struct Archive<R> {
    source: R,
    toc: Toc,
    /// Offset and size of each stored code object, by ordinal.
    stored: Vec<(u64, u64)>,
}

impl<R: Read + Seek> Archive<R> {
    /// Reads header and TOC, and checks every place that the TOC names.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for what is no archive or has a TOC that does not fit it,
    /// [`ArchiveError::UnsupportedVersion`], [`ArchiveError::Io`].
    pub fn open(mut source: R) -> Result<Self, ArchiveError> {
        let size = source.seek(SeekFrom::End(0))?;
        if size < DATA_OFFSET {
            return malformed(
                0,
                format!("the file has {size} bytes; an archive's header has {DATA_OFFSET}"),
            );
        }
        source.seek(SeekFrom::Start(0))?;
        let mut header = [0; 16];
        source.read_exact(&mut header)?;
        let version = word(&header[4..8]);
        if header[..4] != MAGIC {
            return malformed(
                0,
                format!("expected the magic `KPAK`, found {:02x?}", &header[..4]),
            );
        }
        if version != u64::from(FORMAT_VERSION) {
            return Err(ArchiveError::UnsupportedVersion { found: version });
        }
        let toc_offset = word(&header[8..16]);
        if toc_offset < DATA_OFFSET || toc_offset >= size {
            return malformed(
                8,
                format!(
                    "the TOC's offset is {toc_offset:#x}, but the file's data is at {DATA_OFFSET:#x}..{size:#x}: is it cut off?"
                ),
            );
        }
        let toc_size = size - toc_offset;
        if toc_size > MAX_TOC {
            return malformed(
                toc_offset,
                format!("the TOC has {toc_size} bytes; at most {MAX_TOC} are read"),
            );
        }
        source.seek(SeekFrom::Start(toc_offset))?;
        let mut bytes = vec![0; toc_size as usize];
        source.read_exact(&mut bytes)?;
        let (toc, storage) = Toc::read(&bytes, toc_offset)?;
        let stored = places(&mut source, toc_offset, storage)?;
        check_entries(&toc, &stored, toc_offset)?;
        Ok(Self {
            source,
            toc,
            stored,
        })
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        &self.toc
    }

    /// Offset and size of the stored (compressed) code object `ordinal`, in bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`] for an ordinal that the archive has not.
    pub fn stored(&mut self, ordinal: u32) -> Result<(u64, u64), ArchiveError> {
        match self.stored.get(ordinal as usize) {
            Some(place) => Ok(*place),
            None => malformed(
                0,
                format!(
                    "ordinal {ordinal}; {} code objects are stored",
                    self.stored.len()
                ),
            ),
        }
    }

    /// The code object of `kernel` for `target`, decompressed; its size, and its checksum where
    /// the archive tells one, are verified.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchKernel`], [`ArchiveError::Malformed`], [`ArchiveError::Io`].
    pub fn read(&mut self, kernel: &str, target: &str) -> Result<Vec<u8>, ArchiveError> {
        let targets = self.toc.kernels.get(kernel);
        let Some(entry) = targets.and_then(|targets| targets.get(target)).cloned() else {
            return Err(ArchiveError::NoSuchKernel {
                kernel: kernel.to_owned(),
                target: target.to_owned(),
            });
        };
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
        let bytes = match self.toc.scheme {
            Scheme::None => stored,
            Scheme::ZstdPerKernel => {
                codec::decompress(&stored, entry.original_size).or_else(|reason| {
                    malformed(offset, format!("kernel `{kernel}` for {target}: {reason}"))
                })?
            }
        };
        let checksums = self.toc.checksums.as_ref();
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

pub(super) fn malformed<T>(offset: u64, reason: String) -> Result<T, ArchiveError> {
    Err(ArchiveError::Malformed { offset, reason })
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where each code object is, checked against the data, which ends at `end`.
fn places<R: Read + Seek>(
    source: &mut R,
    end: u64,
    storage: Storage,
) -> Result<Vec<(u64, u64)>, ArchiveError> {
    match storage {
        Storage::Blobs(blobs) => {
            for (ordinal, (offset, size)) in blobs.iter().enumerate() {
                check_range(*offset, *size, end, &format!("code object {ordinal}"))?;
            }
            Ok(blobs)
        }
        Storage::Frames {
            offset,
            size,
            frame_offsets,
        } => {
            check_range(offset, size, end, "the area of zstd frames")?;
            let area_end = offset + size;
            let Some(mut at) = offset.checked_add(4).filter(|at| *at <= area_end) else {
                return malformed(
                    offset,
                    format!(
                        "the area of zstd frames has {size} bytes; it begins with 4 bytes of their number"
                    ),
                );
            };
            let count = read_u32(source, offset)?;
            // Each has its size in front.
            if u64::from(count) > size / 4 {
                return malformed(
                    offset,
                    format!(
                        "{count} zstd frames are announced, for which {size} bytes are too few"
                    ),
                );
            }
            if let Some(offsets) = &frame_offsets
                && offsets.len() != count as usize
            {
                return malformed(
                    offset,
                    format!(
                        "`frame_offsets` has {} entries for {count} zstd frames",
                        offsets.len()
                    ),
                );
            }
            let mut frames = Vec::with_capacity(count as usize);
            for ordinal in 0..count as usize {
                if let Some(offsets) = &frame_offsets {
                    let in_area = |frame: &u64| *frame >= offset + 8 && *frame <= area_end;
                    let frame = offsets.get(ordinal).copied().filter(in_area);
                    let Some(frame) = frame else {
                        return malformed(
                            offset,
                            format!("`frame_offsets` has a wrong entry for zstd frame {ordinal}"),
                        );
                    };
                    at = frame - 4;
                }
                if at + 4 > area_end {
                    return malformed(at, format!("zstd frame {ordinal} of {count} is not there"));
                }
                let frame_size = u64::from(read_u32(source, at)?);
                check_range(
                    at + 4,
                    frame_size,
                    area_end,
                    &format!("zstd frame {ordinal}"),
                )?;
                frames.push((at + 4, frame_size));
                at += 4 + frame_size;
            }
            Ok(frames)
        }
    }
}

fn check_range(offset: u64, size: u64, end: u64, what: &str) -> Result<(), ArchiveError> {
    if offset >= DATA_OFFSET
        && offset
            .checked_add(size)
            .is_some_and(|own_end| own_end <= end)
    {
        return Ok(());
    }
    malformed(
        offset,
        format!(
            "{what} has {size:#x} bytes at offset {offset:#x}; expected it within {DATA_OFFSET:#x}..{end:#x}"
        ),
    )
}

fn read_u32<R: Read + Seek>(source: &mut R, offset: u64) -> Result<u32, ArchiveError> {
    let mut bytes = [0; 4];
    source.seek(SeekFrom::Start(offset))?;
    source.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Checks that each entry names a stored code object of fitting size.
fn check_entries(toc: &Toc, stored: &[(u64, u64)], toc_offset: u64) -> Result<(), ArchiveError> {
    let count = stored.len();
    if let Some(checksums) = toc.checksums.as_ref().filter(|all| all.len() != count) {
        return malformed(
            toc_offset,
            format!(
                "`checksums` has {} entries for {count} code objects",
                checksums.len()
            ),
        );
    }
    for (name, targets) in &toc.kernels {
        for (target, entry) in targets {
            let Some((_, size)) = stored.get(entry.ordinal as usize) else {
                return malformed(
                    toc_offset,
                    format!(
                        "kernel `{name}` for {target} has ordinal {}, but {count} code objects are stored",
                        entry.ordinal
                    ),
                );
            };
            if toc.scheme == Scheme::None && *size != entry.original_size {
                return malformed(
                    toc_offset,
                    format!(
                        "kernel `{name}` for {target} has {} bytes by its entry and {size} as stored",
                        entry.original_size
                    ),
                );
            }
        }
    }
    Ok(())
}
