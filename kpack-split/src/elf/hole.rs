//! Where device code can be put back into a split binary.
//!
//! First choice are the addresses that splitting freed. They come after the marker, in the segment that
//! held the device code or right after it. Tools that run on a split binary may move sections and trim
//! the segment, so the addresses are not recomputed from the split: they are the largest range after the
//! marker that nothing occupies. Code that does not fit there goes after everything else: the last
//! segment grows over its zeroed memory (`.bss`) and the code.

use std::ops::Range;

use kpack_format::marker;
use object::elf;

use super::headers::{Section, Segment};
use super::image::{Image, LIMIT};
use super::layout::{check_overlaps, page_size};
use super::plan::Gap;
use super::records::FAT_SECTION;
use super::refuse;
use super::{ElfError, ReadAt};

/// What clang aligns bundles and code objects to, and the runtime maps, in bytes.
pub(crate) const BUNDLE_ALIGN: u64 = 4096;

/// At most so much zeroed memory becomes zeroes in a file, in bytes.
const MOST_ZEROES: u64 = 1 << 30;

/// A place for device code, at the end of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the PT_LOAD.
    pub(crate) load: usize,
    /// The free addresses. The start is aligned.
    pub(crate) free: Range<u64>,
    /// The end of what is kept of the segment in the file.
    pub(crate) kept: u64,
    /// The end of what is kept of it in memory.
    pub(crate) memory: u64,
    /// The file offsets to cut out: device code that was put back. Without any, the range is empty, and
    /// new device code goes there.
    pub(crate) cut: Range<u64>,
}

/// The places for device code in a split binary, or in one whose device code was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Index of `.hip_fatbin`.
    pub(crate) fat: usize,
    /// Index of the `.rocm_kpack_ref` with the marker.
    pub(crate) marker: usize,
    /// The addresses that splitting freed, then those after everything else, where that is possible.
    pub(crate) places: Vec<Place>,
    /// The index of the place with device code.
    pub(crate) used: Option<usize>,
}

impl Hole {
    /// Finds the places in `image`. `marker` is the marker's addresses with the room that it needs.
    /// `None` if the file never had device code: its objects were split before the link.
    pub(crate) fn find<S: ReadAt>(
        image: &Image<S>,
        marker: &Range<u64>,
    ) -> Result<Option<Self>, ElfError> {
        let Some((fat, code)) = image.section(FAT_SECTION)? else {
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
        let gap = largest_gap(&occupied(image, fat, own, marker), marker.end, limit);
        let content_end = gap.start;
        let mut places = vec![Place::new(segment, load, gap)];
        places.extend(Place::last(image, load, fat));
        let mut used = None;
        if code.has_bytes() {
            let Range { start, end } = code.addr..code.addr_end();
            let holds = |place: &Place| place.free.start <= start && end <= place.free.end;
            let Some(index) = places.iter().position(holds) else {
                refuse!(
                    "its device code, at {start:#x}..{end:#x}, is not where `kpack join` puts it; install the unsplit binary"
                );
            };
            let place = &mut places[index];
            check_overlaps(image, &(code.offset..code.file_end()), place.load)?;
            let kept = match index {
                0 => content_end.next_multiple_of(page_size(image)),
                _ => own_end(image, place.load, fat).0,
            };
            place.cut_out(image, kept);
            used = Some(index);
        }
        if used != Some(0) {
            check_padding(image, &places[0].free, segment)?;
        }
        Ok(Some(Self {
            fat,
            marker: own,
            places,
            used,
        }))
    }
}

impl Place {
    /// The free addresses after a segment's content, or within it.
    fn new(segment: &Segment, load: usize, gap: Range<u64>) -> Self {
        Self {
            load,
            free: gap.start.next_multiple_of(BUNDLE_ALIGN)..gap.end,
            kept: segment.file_backed_end(),
            memory: segment.vaddr + segment.memsz,
            cut: segment.file_end()..segment.file_end(),
        }
    }

    /// The place after everything else in memory. There is none if the last segment is that of the
    /// marker, `of_marker`, or if growing it would tear something else in the file. Where several
    /// sections have markers, nothing would tell which one belongs to the code.
    fn last<S>(image: &Image<S>, of_marker: usize, fat: usize) -> Option<Self> {
        let load = image.segments.iter().rposition(Segment::is_load)?;
        let (kept, memory) = own_end(image, load, fat);
        let segment = &image.segments[load];
        let at = segment.offset + (kept - segment.vaddr);
        let mut others = image.sections.iter().enumerate().filter(|s| s.0 != fat);
        let is_torn = others.any(|(_, s)| s.has_bytes() && s.offset < at && at < s.file_end());
        let is_marker = |s: &&Section| s.name == marker::SECTION_NAME;
        let markers = image.sections.iter().filter(is_marker).count();
        let can_grow = segment.filesz > 0 && memory - kept <= MOST_ZEROES && !is_torn;
        (load != of_marker && markers == 1 && can_grow).then(|| Self {
            memory,
            ..Self::new(segment, load, memory..LIMIT)
        })
    }

    /// Whether the free addresses are in the file, and have content of the segment after them.
    pub(crate) fn is_in_file(&self, segment: &Segment) -> bool {
        self.free.end <= segment.file_backed_end()
    }

    /// The gap in the file for device code that ends at address `end`, or for none.
    pub(crate) fn gap<S>(&self, image: &Image<S>, end: Option<u64>) -> Gap {
        let room = end.map_or(0, |end| end.saturating_sub(self.kept));
        Gap {
            cut: self.cut.clone(),
            room: room.next_multiple_of(page_size(image)),
        }
    }

    /// Finds what can be cut out of a file with device code here. What is before address `kept` stays.
    fn cut_out<S: ReadAt>(&mut self, image: &Image<S>, kept: u64) {
        let segment = &image.segments[self.load];
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
            .chain([image.table().start, image.size])
            .filter(|offset| *offset >= segment.file_end());
        let next = later.min().unwrap_or(image.size);
        let page = page_size(image);
        // What is in no section may come right after the device code.
        let room = (in_file - kept).next_multiple_of(page);
        let size = room.min((next - start) - (next - start) % page);
        if size > 0 {
            if self.memory == in_file {
                self.memory = kept;
            }
            self.kept = kept;
            self.cut = start..start + size;
        }
    }
}

/// The ends of a segment in the file and in memory, without device code.
fn own_end<S>(image: &Image<S>, load: usize, fat: usize) -> (u64, u64) {
    let segment = &image.segments[load];
    let code = &image.sections[fat];
    let memory_end = segment.vaddr + segment.memsz;
    if !code.has_bytes() || !(segment.vaddr..memory_end).contains(&code.addr) {
        return (segment.file_backed_end(), memory_end);
    }
    let of_segment = |addr: u64| (segment.vaddr..code.addr).contains(&addr);
    let sections = image.sections.iter();
    let sections = sections.filter(|s| s.occupies_memory() && of_segment(s.addr));
    let segments = image.segments.iter();
    let segments = segments.filter(|s| is_content(s) && of_segment(s.vaddr));
    let in_file = sections.clone().filter(|s| s.has_bytes());
    let in_file = in_file.map(Section::addr_end);
    let in_file = in_file.chain(segments.map(Segment::file_backed_end));
    let kept = in_file.fold(segment.vaddr, u64::max);
    (kept, sections.map(Section::addr_end).fold(kept, u64::max))
}

/// Refuses to overwrite anything but zeroes. Padding before the free addresses is in the file.
fn check_padding<S: ReadAt>(
    image: &Image<S>,
    free: &Range<u64>,
    segment: &Segment,
) -> Result<(), ElfError> {
    let end = free.end.min(segment.file_backed_end());
    if free.start >= end {
        return Ok(());
    }
    let bytes = image.memory(free.start..end, "the place of the device code")?;
    if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
        refuse!(
            "address {:#x}, where its device code was, is not zero",
            free.start + at as u64
        );
    }
    Ok(())
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

/// Whether a program header names content of its own.
fn is_content(segment: &Segment) -> bool {
    let is_range = matches!(segment.kind, elf::PT_LOAD | elf::PT_GNU_RELRO | elf::PT_TLS);
    segment.filesz > 0 && !is_range
}

/// The address ranges that are in use, in order, without device code.
fn occupied<S>(image: &Image<S>, fat: usize, own: usize, marker: &Range<u64>) -> Vec<Range<u64>> {
    let sections = image.sections.iter().enumerate();
    let sections = sections.filter(|(index, s)| *index != fat && s.occupies_memory());
    let sections = sections.map(|(index, s)| match index == own {
        // The rest of its section is padding.
        true => s.addr..marker.end.min(s.addr_end()),
        false => s.addr..s.addr_end(),
    });
    let segments = image.segments.iter().filter(|s| is_content(s));
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
