//! The checksum in the optional header.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Mutex;

use kpack_core::elf::ReadAt;
use kpack_core::parallel::lock;
use kpack_core::platform::FileExt;
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
        let sum = Sums::new(self.checksum_offset()).checksum(self.source())?;
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
        let sum = Sums::new(at).checksum(&rewrite.of(self.source()))?;
        Ok(Some((at, sum.to_le_bytes().to_vec())))
    }
}

/// The sums of parts of a file that is being written, so that its checksum need not read them back.
#[derive(Debug)]
pub(crate) struct Sums {
    /// The offset of the checksum.
    at: u64,
    parts: Mutex<BTreeMap<u64, Part>>,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    end: u64,
    sum: u64,
}

impl Sums {
    /// None yet, of a file whose checksum is at an offset.
    pub(super) fn new(at: u64) -> Self {
        Self { at, parts: Mutex::default() }
    }

    /// Records bytes that were written at `at`, so that the checksum need not read them back. Call it once for each
    /// range.
    pub(crate) fn add(&self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let sum = sum(at, bytes);
        lock(&self.parts).insert(at, Part { end, sum });
    }

    /// Writes the checksum of the complete file.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let sum = self.checksum(file)?;
        file.write_all_at(&sum.to_le_bytes(), self.at)
    }

    /// The sum of the file's 16-bit words without its checksum, its carries added, and the file's size.
    fn checksum(&self, source: &impl ReadAt) -> io::Result<u32> {
        let size = source.size()?;
        let known = lock(&self.parts);
        let parts = known.iter().map(|(start, part)| (*start, *part));
        let end = (size, Part { end: size, sum: 0 });
        let (mut start, mut total) = (0, 0);
        let mut buffer = Vec::new();
        for (next, part) in parts.chain([end]) {
            while start < next {
                buffer.resize(PIECE.min(next - start) as usize, 0);
                source.read_exact_at(start, &mut buffer)?;
                for own in self.at..self.at + 4 {
                    if let Some(byte) =
                        own.checked_sub(start).and_then(|own| buffer.get_mut(own as usize))
                    {
                        *byte = 0;
                    }
                }
                total += sum(start, &buffer);
                start += buffer.len() as u64;
            }
            total += part.sum;
            start = part.end;
        }
        Ok((folded(total) + size) as u32)
    }
}

/// The sum of the 16-bit words of a part of a file, which begins at the offset `at`.
fn sum(at: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Two words at once: as their carries are added in the end, the sum is the same.
    let words = words.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let sum = folded(words.sum::<u64>() + u64::from(u32::from_le_bytes(last)));
    if at.is_multiple_of(2) {
        sum
    } else {
        // Its words are the second half of one and the first half of the next.
        u64::from((sum as u16).swap_bytes())
    }
}

/// A sum with its carries added.
fn folded(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_parts_are_that_of_the_file() {
        let bytes = Vec::from_iter((0..3001_u32).map(|at| ((at * at) >> 3) as u8));
        let expected = Sums::new(2).checksum(&bytes).unwrap();
        for step in 1..300 {
            let sums = Sums::new(2);
            // Every other part, of odd and even sizes at odd and even offsets.
            for at in (8 + step..bytes.len() - step).step_by(2 * step) {
                sums.add(at as u64, &bytes[at..at + step]);
            }
            assert_eq!(sums.checksum(&bytes).unwrap(), expected, "{step}");
        }
    }
}
