//! The header of an archive.

use std::io::{Read, Seek, SeekFrom};

use super::error::malformed;
use super::toc::FORMAT_VERSION;
use super::{ArchiveError, HEADER_SIZE, MAGIC};
use crate::{Reason, little_endian};

/// The range of the TOC, which ends at the end of the file.
pub(super) fn toc_range<R: Read + Seek>(source: &mut R) -> Result<(u64, u64), ArchiveError> {
    let size = source.seek(SeekFrom::End(0))?;
    if size < HEADER_SIZE {
        return malformed!(0, "the file has {size} bytes; an archive's header has {HEADER_SIZE}");
    }
    source.seek(SeekFrom::Start(0))?;
    let mut header = [0; HEADER_SIZE as usize];
    source.read_exact(&mut header)?;
    let version = little_endian(&header[4..8]);
    if header[..4] != MAGIC {
        return malformed(
            0,
            Reason::mismatch("", "the magic `KPAK`", format_args!("{:02x?}", &header[..4])),
        );
    }
    if version != u64::from(FORMAT_VERSION) {
        return Err(ArchiveError::UnsupportedVersion { found: version });
    }
    let toc_offset = little_endian(&header[8..16]);
    if toc_offset < HEADER_SIZE || toc_offset >= size {
        let within = format!("{HEADER_SIZE:#x}..{size:#x}");
        let text = format!(
            "truncated or damaged: the TOC's offset is {toc_offset:#x} (expected it within {within})"
        );
        return malformed(8, Reason::from(text).differs(within, format_args!("{toc_offset:#x}")));
    }
    Ok((toc_offset, size))
}
