//! The addresses that splitting freed: where device code can be put back.
//!
//! They come after the marker, in the segment that held the device code or right after it. Tools that
//! run on a split binary may move sections and trim the segment, so the addresses are not recomputed
//! from the split: they are the largest range after the marker that nothing occupies.

use std::ops::Range;

use kpack_format::marker;
use object::elf;

use super::headers::{Section, Segment};
use super::image::Image;
use super::layout::page_size;
use super::plan::Gap;
use super::records::FAT_SECTION;
use super::refuse;
use super::{ElfError, ReadAt};

/// What clang aligns bundles and code objects to, and the runtime maps, in bytes.
pub(crate) const BUNDLE_ALIGN: u64 = 4096;

/// The freed addresses of a split binary, or of one whose device code was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Index of the PT_LOAD that holds the marker.
    pub(crate) load: usize,
    /// Index of `.hip_fatbin`.
    pub(crate) fat: usize,
    /// Index of the `.rocm_kpack_ref` with the marker.
    pub(crate) marker: usize,
    /// The free addresses. The start is aligned.
    pub(crate) free: Range<u64>,
    /// The end of what is kept in the file before the free addresses.
    pub(crate) kept: u64,
    /// File offsets of device code that was put back, if any, as far as they can be cut out; empty at
    /// the place for new device code otherwise.
    pub(crate) cut: Range<u64>,
}

impl Hole {
    /// Finds the free addresses after `marker`, the marker's addresses with the room that it needs.
    /// `None` if the file never had device code: its objects were split before the link.
    pub(crate) fn find<S: ReadAt>(
        image: &Image<S>,
        marker: &Range<u64>,
    ) -> Result<Option<Self>, ElfError> {
        let Some((fat, fat_section)) = image.section(FAT_SECTION)? else {
            return Ok(None);
        };
        let Some((load, segment)) = image.load_of(&(marker.start..marker.start + 1)) else {
            refuse!("its marker is not in the file");
        };
        let Some(own) = image.sections.iter().position(|s| is_of_marker(s, marker)) else {
            refuse!(
                "its marker, at address {:#x}, is not in a section `{}`",
                marker.start,
                marker::SECTION_NAME
            );
        };
        let limit = limit(image, load, segment);
        let Range { start, end } =
            largest_gap(&occupied(image, fat, own, marker), marker.end, limit);
        let free = start.next_multiple_of(BUNDLE_ALIGN)..end;
        let in_file = segment.file_backed_end();
        let mut hole = Self {
            load,
            fat,
            marker: own,
            free,
            kept: in_file,
            cut: segment.file_end()..segment.file_end(),
        };
        if fat_section.has_bytes() {
            hole.find_cut(image, segment, start);
        } else {
            hole.check_padding(image, segment)?;
        }
        Ok(Some(hole))
    }

    /// Whether the free addresses are in the file, and have content of the segment after them.
    pub(crate) fn is_in_file(&self, segment: &Segment) -> bool {
        self.free.end <= segment.file_backed_end()
    }

    /// The gap in the file for device code that ends at address `end`.
    pub(crate) fn gap<S>(&self, image: &Image<S>, end: u64) -> Gap {
        let room = end.saturating_sub(self.kept);
        Gap {
            cut: self.cut.clone(),
            room: room.next_multiple_of(page_size(image)),
        }
    }

    /// Finds what can be cut out of a file with device code. `content_end` is the address where the
    /// content before it ends.
    fn find_cut<S: ReadAt>(&mut self, image: &Image<S>, segment: &Segment, content_end: u64) {
        let page = page_size(image);
        let kept = content_end.next_multiple_of(page);
        let in_file = segment.file_backed_end();
        if self.free.end < in_file || kept >= in_file {
            return;
        }
        let start = segment.offset + (kept - segment.vaddr);
        let sections = image.sections.iter().filter(|s| s.has_bytes());
        let segments = image.segments.iter().filter(|s| s.filesz > 0);
        let later = sections
            .map(|s| s.offset)
            .chain(segments.map(|s| s.offset))
            .chain([image.table_offset(), image.size])
            .filter(|offset| *offset >= segment.file_end());
        let next = later.min().unwrap_or(image.size);
        let size = (next - start) - (next - start) % page;
        if size > 0 {
            self.kept = kept;
            self.cut = start..start + size;
        }
    }

    /// Refuses to overwrite anything but zeroes. Padding before the hole is in the file.
    fn check_padding<S: ReadAt>(
        &self,
        image: &Image<S>,
        segment: &Segment,
    ) -> Result<(), ElfError> {
        let end = self.free.end.min(segment.file_backed_end());
        if self.free.start >= end {
            return Ok(());
        }
        let bytes = image.memory(self.free.start..end, "the place of the device code")?;
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            refuse!(
                "address {:#x}, where its device code was, is not zero",
                self.free.start + at as u64
            );
        }
        Ok(())
    }
}

/// Whether it is the section that the marker begins in.
fn is_of_marker(section: &Section, marker: &Range<u64>) -> bool {
    section.name == marker::SECTION_NAME
        && section.is_alloc()
        && section.has_bytes()
        && (section.addr..section.addr_end()).contains(&marker.start)
}

/// Where the addresses end that belonged to the segment before the split: at the next one, which
/// maps whole pages, or where its own memory ends.
fn limit<S>(image: &Image<S>, load: usize, segment: &Segment) -> u64 {
    let own_end = segment.vaddr + segment.memsz;
    if segment.memsz > segment.filesz {
        return own_end;
    }
    let mut later = image.segments[load + 1..].iter().filter(|s| s.is_load());
    later.next().map_or(own_end, |next| {
        let page = page_size(image);
        (next.vaddr - next.vaddr % page).max(own_end)
    })
}

/// The address ranges that are in use, in order, without device code.
fn occupied<S>(image: &Image<S>, fat: usize, own: usize, marker: &Range<u64>) -> Vec<Range<u64>> {
    let sections = image.sections.iter().enumerate().filter(|(index, s)| {
        // Thread-local memory without content has no addresses of its own.
        let is_tls = s.flags.0 & elf::SHF_TLS.0 != 0 && s.kind == elf::SHT_NOBITS;
        *index != fat && s.is_alloc() && s.size > 0 && !is_tls
    });
    let sections = sections.map(|(index, s)| match index == own {
        // The rest of its section is padding.
        true => s.addr..marker.end.min(s.addr_end()),
        false => s.addr..s.addr_end(),
    });
    let is_content = |s: &&Segment| {
        s.filesz > 0 && !s.is_load() && s.kind != elf::PT_GNU_RELRO && s.kind != elf::PT_TLS
    };
    let segments = image.segments.iter().filter(is_content);
    let segments = segments.map(|s| s.vaddr..s.file_backed_end());
    let mut ranges: Vec<Range<u64>> = sections.chain(segments).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges
}

/// The largest range between `start` and `limit` that no range of `occupied` touches.
fn largest_gap(occupied: &[Range<u64>], start: u64, limit: u64) -> Range<u64> {
    let mut largest = start..start;
    let mut at = start;
    let after = occupied.iter().filter(|range| range.end > start);
    for range in after.cloned().chain(std::iter::once(limit..u64::MAX)) {
        let free = at..range.start.min(limit);
        if free.end > free.start && free.end - free.start > largest.end - largest.start {
            largest = free;
        }
        at = at.max(range.end);
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::largest_gap;

    #[test]
    fn the_largest_gap_is_after_the_start_and_before_the_limit() {
        let occupied = [0..0x100, 0x120..0x200, 0x180..0x300, 0x1000..0x1100];
        assert_eq!(largest_gap(&occupied, 0x100, 0x1200), 0x300..0x1000);
        assert_eq!(largest_gap(&occupied, 0x100, 0x310), 0x100..0x120);
        assert_eq!(largest_gap(&occupied, 0x100, 0x2000), 0x1100..0x2000);
        assert_eq!(largest_gap(&occupied, 0x130, 0x250), 0x130..0x130);
    }
}
