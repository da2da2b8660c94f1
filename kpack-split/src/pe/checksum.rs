//! The checksum in the optional header.

use std::io;

use kpack_core::elf::ReadAt;
use object::LittleEndian as LE;

use super::image::Image;
use crate::rewrite::{Edits, Gaps, Rewrite};

/// Bytes read at a time, so few that they stay in the processor's cache.
const PIECE: u64 = 256 << 10;

impl<S: ReadAt> Image<S> {
    /// The checksum in the header and that of the file, if they differ; a header may have none.
    pub fn stale_checksum(&self) -> io::Result<Option<(u32, u32)>> {
        let stored = self.optional.check_sum.get(LE);
        if stored == 0 {
            return Ok(None);
        }
        let sum = checksum(self.source(), self.checksum_offset())?;
        Ok((stored != sum).then_some((stored, sum)))
    }

    /// The checksum of the file with `edits`, and its offset; nothing if the header has none.
    pub(crate) fn checksum_with(
        &self,
        edits: &[(u64, Vec<u8>)],
    ) -> io::Result<Option<(u64, Vec<u8>)>> {
        if self.optional.check_sum.get(LE) == 0 {
            return Ok(None);
        }
        let mut rewrite = Rewrite::new(Gaps::new([]), Edits::default(), self.size, Vec::new());
        rewrite.add(edits.to_vec());
        let at = self.checksum_offset();
        let sum = checksum(&rewrite.of(self.source()), at)?;
        Ok(Some((at, sum.to_le_bytes().to_vec())))
    }
}

/// The checksum of a file whose own checksum is at the offset `at`: the sum of its 16-bit words without that one, its
/// carries added, and the file's size.
pub(super) fn checksum(source: &impl ReadAt, at: u64) -> io::Result<u32> {
    let size = source.size()?;
    let mut sum: u64 = 0;
    let mut buffer = Vec::new();
    for start in (0..size).step_by(PIECE as usize) {
        buffer.resize(PIECE.min(size - start) as usize, 0);
        source.read_exact_at(start, &mut buffer)?;
        for own in at..at + 4 {
            if let Some(byte) = own
                .checked_sub(start)
                .and_then(|own| buffer.get_mut(own as usize))
            {
                *byte = 0;
            }
        }
        buffer.resize(buffer.len().next_multiple_of(4), 0);
        // Two words at once: as their carries are added in the end, the sum is the same.
        let words = buffer.as_chunks::<4>().0.iter();
        sum += words
            .map(|word| u64::from(u32::from_le_bytes(*word)))
            .sum::<u64>();
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    Ok((sum + size) as u32)
}
