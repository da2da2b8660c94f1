//! What a joined binary was before its device code was put back.
//!
//! The last bytes of a joined binary's `.hip_fatbin` are a record of the headers that the join changed.
//! Taking the code out restores them, so the result is the binary that was joined, byte for byte. Tools
//! keep the contents of sections, and so the record. But they may move sections, and then the record does
//! not fit; the headers are guessed from the sections.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::headers::{Section, Segment};
use super::image::{Image, LIMIT, MAX_ALIGN};
use super::{BinaryError, ReadAt};

/// The last word of a record: `kpkjoin1`.
const MAGIC: u64 = u64::from_le_bytes(*b"kpkjoin1");
/// The words of a record, without those of zeroed sections.
const WORDS: usize = 13;
/// The most words of a record. Few sections have zeroed memory.
const MOST_WORDS: u64 = 1 << 12;

/// The headers of a split binary that a join changes. Offsets are relative to the start of the segment
/// that holds the device code, or to where the join put bytes into the file if that had no content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Former {
    /// The end of the segment's content in the file.
    pub(super) kept: u64,
    /// Bytes that the join put before the segment's own.
    pub(super) lead: u64,
    /// The offset of the segment.
    pub(super) segment: u64,
    /// The end of the segment in memory.
    pub(super) memory: u64,
    /// Type, addresses, alignment, offset and index of the emptied `.hip_fatbin`.
    pub(super) kind: elf::SectionType,
    pub(super) addresses: Range<u64>,
    pub(super) align: u64,
    pub(super) offset: u64,
    pub(super) index: usize,
    /// The size of the marker's section.
    pub(super) marker_size: u64,
    /// The offset of each section of zeroed memory that the segment now reads from the file.
    pub(super) zeroed: Vec<u64>,
}

impl Former {
    /// The record in the section `code`, if it has one.
    pub(super) fn read<S: ReadAt>(
        image: &Image<S>,
        code: &Section,
    ) -> Result<Option<Self>, BinaryError> {
        let (end, size) = match record_size(image, code)? {
            0 => (code.offset, size_before(image, code.offset)?),
            size => (code.file_end(), size),
        };
        if size == 0 {
            return Ok(None);
        }
        let bytes = image.bytes(end - size, size, "the record of a join")?;
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let [
            kept,
            lead,
            segment,
            memory,
            start,
            length,
            align,
            offset,
            index,
            marker_size,
            kind,
            zeroed @ ..,
        ] = &words[..words.len() - 2]
        else {
            return Ok(None);
        };
        Ok(start.checked_add(*length).map(|end| Self {
            kept: *kept,
            lead: *lead,
            segment: *segment,
            memory: *memory,
            kind: elf::SectionType(*kind as u32),
            addresses: *start..end,
            align: *align,
            offset: *offset,
            index: usize::try_from(*index).unwrap_or(usize::MAX),
            marker_size: *marker_size,
            zeroed: zeroed.to_vec(),
        }))
    }

    /// The record, with its length and magic at its end.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let start = self.addresses.start;
        let fixed = [
            self.kept,
            self.lead,
            self.segment,
            self.memory,
            start,
            self.addresses.end - start,
            self.align,
            self.offset,
            self.index as u64,
            self.marker_size,
            u64::from(self.kind.0),
        ];
        let end = [self.size() / 8, MAGIC];
        let words = fixed.iter().chain(&self.zeroed).chain(&end);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The size of the record in bytes.
    pub(super) fn size(&self) -> u64 {
        8 * (WORDS + self.zeroed.len()) as u64
    }

    /// Whether it fits the joined binary `image`: a tool may have moved sections meanwhile.
    pub(super) fn fits<S>(&self, image: &Image<S>, load: usize, fat: usize, own: usize) -> bool {
        let segment = &image.segments[load];
        let (code, marker) = (&image.sections[fat], &image.sections[own]);
        let in_file = segment.file_backed_end();
        let is_inside =
            (segment.vaddr..=in_file).contains(&self.kept) && self.is_lead_free(image, segment);
        let memory = self.kept..=segment.vaddr + segment.memsz;
        let marker_end = marker.addr.saturating_add(self.marker_size);
        let others = || {
            let sections = image.sections.iter().enumerate();
            let others = sections.filter(|(index, s)| *index != fat && s.is_alloc() && s.size > 0);
            others.filter(|(_, s)| s.occupies_memory())
        };
        let touches =
            |range: &Range<u64>, s: &Section| s.addr < range.end && range.start < s.addr_end();
        let lost = self.kept..code.addr_end();
        let is_lost = |s: &Section| s.has_bytes() && touches(&lost, s);
        // A tool may have trimmed the segment that the empty section was in.
        let is_mapped = image.segments.iter().any(|s| {
            let end = s.vaddr.saturating_add(s.memsz);
            // ROCm's tool leaves the page before its segment in the one before that.
            let start = self.addresses.start.max(self.kept.min(self.addresses.end));
            s.is_load() && s.vaddr <= start && self.addresses.end <= end
        });
        let is_in_file = image.segments.iter().any(|s| {
            let Range { start, end } = self.addresses;
            s.is_load() && s.vaddr <= start && end <= s.file_backed_end()
        });
        let are_offsets_inside = || {
            let cut = self.cut(image, load);
            let size = image.size - (cut.end - cut.start);
            let base = self.base(segment, &cut);
            let start = base.wrapping_add(self.segment);
            let mut offsets = self.zeroed.iter().chain([&self.offset, &self.segment]);
            // The marker is before the cut, or after everything else.
            let is_after = marker.offset >= cut.end;
            let marker_offset = marker.offset - if is_after { cut.end - cut.start } else { 0 };
            (start ^ segment.vaddr) & (segment.align.max(1) - 1) == 0
                && (self.kept == segment.vaddr || start == segment.offset)
                && offsets.all(|relative| base.wrapping_add(*relative) <= size)
                && marker_offset.saturating_add(self.marker_size) <= size
        };
        is_inside
            && are_offsets_inside()
            && (is_mapped || self.addresses.is_empty())
            && (self.kind == elf::SHT_NOBITS || self.addresses.is_empty() || is_in_file)
            && memory.contains(&self.memory)
            && marker_end <= LIMIT
            && self.addresses.end <= LIMIT
            && self.align <= MAX_ALIGN
            && (self.align == 0 || self.align.is_power_of_two())
            && !others().any(|(index, s)| {
                index != own && touches(&(marker.addr..marker_end), s)
                    || touches(&self.addresses, s)
                        && (index != own || self.addresses.start < marker_end)
                    || is_lost(s)
            })
    }

    /// What offsets are relative to, if `cut` is cut out.
    pub(super) fn base(&self, segment: &Segment, cut: &Range<u64>) -> u64 {
        if self.kept > segment.vaddr { segment.offset } else { cut.start }
    }

    /// Whether nothing is where the join put bytes before those of the segment.
    fn is_lead_free<S>(&self, image: &Image<S>, segment: &Segment) -> bool {
        let Some(start) = segment.offset.checked_sub(self.lead) else {
            return false;
        };
        let is_content = |offset: u64, end: u64| offset < segment.offset && start < end;
        let sections = image.sections.iter().filter(|s| s.has_bytes() && s.size > 0);
        let segments = image.segments.iter().filter(|s| s.filesz > 0);
        let table = image.table();
        let mut contents = sections
            .map(|s| s.offset..s.file_end())
            .chain(segments.map(|s| s.offset..s.file_end()))
            .chain([table, 0..size_of::<elf::FileHeader64<LE>>() as u64]);
        self.lead == 0
            || self.kept == segment.vaddr && !contents.any(|s| is_content(s.start, s.end))
    }

    /// The file offsets to cut out of the joined binary `image`. A multiple of the page size, so the rest
    /// keeps its offset within a page.
    pub(super) fn cut<S>(&self, image: &Image<S>, load: usize) -> Range<u64> {
        let segment = &image.segments[load];
        let in_file = segment.file_backed_end();
        let start = segment.offset + (self.kept - segment.vaddr) - self.lead;
        let sections = image.sections.iter().filter(|s| s.has_bytes());
        let segments = image.segments.iter().filter(|s| s.filesz > 0);
        let later = sections
            .map(|s| s.offset)
            .chain(segments.map(|s| s.offset))
            .chain([image.table().start, image.size])
            .filter(|offset| *offset >= segment.file_end());
        // What is in no section may come right after the device code.
        let room = later.min().unwrap_or(image.size) - start;
        let page = image.page_size();
        let used = self.lead + (in_file - self.kept);
        let size = used.next_multiple_of(page).min(room - room % page);
        start..start + size
    }

    /// What the headers may have been.
    pub(super) fn guess<S: ReadAt>(
        image: &Image<S>,
        load: usize,
        fat: usize,
        own: usize,
        marker: &Range<u64>,
    ) -> Result<Self, BinaryError> {
        let segment = &image.segments[load];
        let (code, marked) = (&image.sections[fat], &image.sections[own]);
        if code.addr == segment.vaddr {
            return Ok(Self::guess_emptied(image, load, fat, own));
        }
        let memory_end = segment.vaddr + segment.memsz;
        let in_file = segment.file_backed_end();
        let occupied = image.occupied(fat, own, marker);
        let of_segment = occupied.iter().filter(|range| range.start >= segment.vaddr);
        let before = of_segment.clone().filter(|range| range.end <= code.addr);
        let content_end = before.map(|range| range.end).fold(segment.vaddr, u64::max);
        let is_freed = (segment.vaddr..code.addr).contains(&marked.addr);
        let is_zeroed = code.addr_end() < in_file;
        let in_sections = image
            .sections
            .iter()
            .filter(|s| {
                s.occupies_memory() && s.has_bytes() && (segment.vaddr..code.addr).contains(&s.addr)
            })
            .map(Section::addr_end);
        let kept = match (is_zeroed, is_freed) {
            (true, _) => in_file,
            (_, true) => content_end.next_multiple_of(image.page_size()).min(code.addr),
            _ => in_sections.fold(segment.vaddr, u64::max),
        };
        let memory = if memory_end > in_file || is_zeroed {
            memory_end
        } else if is_freed {
            kept
        } else {
            content_end.max(kept)
        };
        // Padding, if nothing moved to it.
        let is_between =
            occupied.iter().any(|range| range.start >= marked.addr_end() && range.end <= code.addr);
        let marker_end = match (is_freed && !is_between, is_zeroed) {
            (true, true) => code.addr_end(),
            (true, false) => kept,
            _ => marked.addr_end(),
        };
        let next =
            occupied.iter().map(|range| range.start).filter(|start| *start >= code.addr).min();
        let addresses = if is_freed && !is_zeroed && memory > kept {
            kept..next.unwrap_or(memory).min(memory).max(kept)
        } else {
            marker_end..marker_end
        };
        let sections = image.sections.iter().enumerate();
        let mut before = sections
            .filter(|(index, s)| *index != fat && s.is_alloc() && s.addr < addresses.start)
            .map(|(index, _)| index - usize::from(index > fat));
        Ok(Self {
            kept,
            memory,
            kind: elf::SHT_NOBITS,
            align: if addresses.start.is_multiple_of(code.align.max(1)) { code.align } else { 1 },
            offset: if addresses.start < segment.vaddr {
                (marked.offset + (marker_end - marked.addr)).wrapping_sub(segment.offset)
            } else {
                addresses.start - segment.vaddr
            },
            index: before.next_back().map_or(0, |last| last + 1),
            addresses,
            marker_size: marker_end - marked.addr,
            zeroed: Vec::new(),
            lead: 0,
            segment: 0,
        })
    }

    /// What the headers may have been if the segment had nothing but the addresses of the device code.
    fn guess_emptied<S>(image: &Image<S>, load: usize, fat: usize, own: usize) -> Self {
        let segment = &image.segments[load];
        let code = &image.sections[fat];
        let page = image.page_size();
        let next = image.segments[load + 1..]
            .iter()
            .find(|s| s.is_load() && s.filesz > 0)
            .map_or(segment.offset, |next| next.offset);
        let mut former = Self {
            kept: segment.vaddr,
            lead: segment.offset.wrapping_sub(next) % page,
            segment: 0,
            memory: segment.vaddr + segment.memsz,
            kind: elf::SHT_NOBITS,
            addresses: code.addr..segment.vaddr + segment.memsz,
            align: code.align,
            offset: 0,
            index: fat,
            marker_size: image.sections[own].size,
            zeroed: Vec::new(),
        };
        if !former.is_lead_free(image, segment) {
            former.lead = 0;
        }
        // The last offset before the cut that fits the address.
        let start = former.cut(image, load).start;
        former.segment = (start.wrapping_sub(segment.vaddr) % page).wrapping_neg();
        former.offset = former.segment;
        former
    }
}

/// The size of the record of a join at the end of the section `code`, or 0.
pub(super) fn record_size<S: ReadAt>(image: &Image<S>, code: &Section) -> Result<u64, BinaryError> {
    if !code.has_bytes() {
        return Ok(0);
    }
    let size = size_before(image, code.file_end())?;
    Ok(if size <= code.size { size } else { 0 })
}

/// The size of the record of a join that ends at an offset of the file, or 0.
fn size_before<S: ReadAt>(image: &Image<S>, offset: u64) -> Result<u64, BinaryError> {
    let Some(start) = offset.checked_sub(16) else {
        return Ok(0);
    };
    let end = image.bytes(start, 16, "the record of a join")?;
    let (words, magic) = (word(&end[..8]), word(&end[8..]));
    let is_record = magic == MAGIC && (WORDS as u64..MOST_WORDS).contains(&words);
    Ok(if is_record && 8 * words <= offset { 8 * words } else { 0 })
}

/// The sections of zeroed memory, and the empty ones, at `addresses` of a segment, in order.
pub(super) fn zeroed<S>(
    image: &Image<S>,
    load: usize,
    addresses: Range<u64>,
    fat: usize,
) -> Vec<usize> {
    let segment = &image.segments[load];
    let is_zeroed = |index: &usize| {
        let section = &image.sections[*index];
        let is_there = section.addr >= segment.vaddr && addresses.contains(&section.addr);
        *index != fat
            && section.is_alloc()
            && is_there
            && (!section.has_bytes() || section.size == 0)
    };
    (0..image.sections.len()).filter(is_zeroed).collect()
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
