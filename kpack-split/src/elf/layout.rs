//! The layout of a host binary: what stays, what moves, and what is cut out.
//!
//! The program header table stays at the start of the file, where every tool expects it. It grows
//! by at most one entry, because the segment around the device code is split in two. The sections
//! right after the table make room. They are found through program headers and dynamic tags, so
//! they can move to the former place of the device code. `docs/elf-layout.md` explains this.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::Dynamic;
use super::edits::{self, Edits};
use super::headers::{SEGMENT_ENTRY, Segment};
use super::image::Image;
use super::join;
use super::plan::{Gap, Gaps, Parts, Plan, PlannedWrapper};
use super::records::FAT_SECTION;
use super::room::{self, Moved, Room};
use super::section_table::SectionTable;
use super::wrappers::FatBinary;
use super::{ElfError, ReadAt, check, refuse};

/// Smallest supported page size, in bytes.
const MIN_PAGE: u64 = 4096;

/// Positions in the host binary: addresses, unless marked as offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Index of the PT_LOAD that holds the device code.
    pub(crate) load: usize,
    /// The former device code, and its file offset.
    pub(crate) fat: Range<u64>,
    pub(crate) fat_offset: u64,
    /// The marker, without the padding after it.
    pub(crate) marker: Range<u64>,
    /// Section `.rocm_kpack_ref`: marker and padding.
    pub(crate) marker_section: Range<u64>,
    /// The sections that make room for a program header.
    pub(crate) moved: Option<Moved>,
    /// Index of the PT_PHDR whose program header table entry is reused.
    pub(crate) given_up: Option<usize>,
    /// The range into which the program header table grows.
    pub(crate) grown: Range<u64>,
    /// End of the kept bytes: from here on `.hip_fatbin` is NOBITS.
    pub(crate) kept: u64,
    /// The rest of `.hip_fatbin`, NOBITS.
    pub(crate) nobits: Range<u64>,
    /// Start of the segment's second part, if anything follows the device code in it.
    pub(crate) resume: Option<u64>,
    /// File offsets to cut out. The length is a multiple of every segment's alignment.
    pub(crate) cut: Option<Range<u64>>,
}

impl Geometry {
    /// The new address for the old `address`, if its content moves.
    pub(crate) fn map(&self, address: u64) -> Option<u64> {
        self.moved.as_ref().and_then(|moved| moved.map(address))
    }

    /// Input file offset of an address in the kept part of the device code's range, or of the marker.
    pub(crate) fn kept_offset(&self, address: u64) -> u64 {
        self.fat_offset + address - self.fat.start
    }

    /// What the host binary's file leaves out.
    pub(crate) fn gaps(&self) -> Gaps {
        Gaps::new(self.cut.iter().cloned().map(Gap::cut))
    }

    /// Output offset of an input offset.
    pub(crate) fn output_offset(&self, offset: u64) -> u64 {
        self.gaps().output_offset(offset)
    }
}

impl Plan {
    /// Plans the host binary of `image`, replacing the device code `fat` by `marker` (at most 64
    /// KiB).
    pub fn new<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        marker: &[u8],
    ) -> Result<Self, ElfError> {
        image.validate()?;
        check::sound(image)?;
        if let Some(kept) = &fat.joined {
            return join::take_out(image, fat, kept, marker);
        }
        let dynamic = Dynamic::read(image)?;
        let geometry = Geometry::new(image, &dynamic, fat, marker)?;
        check_overlaps(image, &fat.section(), geometry.load)?;
        check_relro(image, &geometry)?;

        let table = SectionTable::new(image, &geometry)?;
        let segments = new_segments(image, &geometry)?;
        let wrappers = planned_wrappers(fat, &geometry);

        let mut edits = Edits::default();
        edits::wrappers_and_relocations(image, &dynamic, &wrappers, &geometry, &mut edits)?;
        edits::dynamic_tags(&dynamic, &geometry, &mut edits);
        edits::symbols(image, &geometry, &table, &mut edits)?;
        edits::move_block(image, &geometry, &mut edits)?;
        edits::device_code(&geometry, marker, &mut edits);

        let parts = Parts {
            wrappers,
            marker_offset: geometry.kept_offset(geometry.marker.start),
            marker: geometry.marker.clone(),
            gaps: geometry.gaps(),
            segments,
            table,
            edits,
        };
        Self::assemble(image, parts)
    }
}

/// The wrappers of the host binary, in order of address. Those of objects that were split before
/// the link keep their own markers.
fn planned_wrappers(fat: &FatBinary, geometry: &Geometry) -> Vec<PlannedWrapper> {
    let marker = Some(geometry.marker.start);
    let own = fat.wrappers.iter();
    let own = own.map(|w| PlannedWrapper::split(w.address, marker, w.co_index));
    let before = fat.split_before.iter();
    let before = before.map(|w| PlannedWrapper::split(w.address, None, w.position));
    let mut wrappers: Vec<PlannedWrapper> = own.chain(before).collect();
    wrappers.sort_by_key(|wrapper| wrapper.address);
    wrappers
}

impl Geometry {
    fn new<S: ReadAt>(
        image: &Image<S>,
        dynamic: &Dynamic,
        fat: &FatBinary,
        marker: &[u8],
    ) -> Result<Self, ElfError> {
        let in_place = Self::in_place(image, fat, marker)?;
        let segment = &image.segments[in_place.load];
        let end = fat.addresses.end;
        let page = page_size(image);
        let follows = segment.file_backed_end() > end;
        let mut content_end = in_place.marker.end;
        if freed(content_end, end, page, follows).is_none() {
            return Ok(in_place);
        }
        let mut split = in_place.clone();
        if follows {
            content_end = split.make_room(image, dynamic)?;
        }
        let Some((kept, size)) = freed(content_end, end, page, follows) else {
            return Ok(in_place);
        };
        let cut = split.kept_offset(kept);
        split.kept = kept;
        split.cut = Some(cut..cut + size);
        if follows {
            let next = image.sections.iter().filter(|s| {
                s.is_alloc() && s.size > 0 && s.addr >= end && s.addr < segment.file_backed_end()
            });
            split.resume = Some(next.map(|s| s.addr).min().unwrap_or(end));
            split.nobits = split.marker_section.end..split.marker_section.end;
        } else {
            split.marker_section.end = kept;
            split.nobits = kept..end;
        }
        Ok(split)
    }

    /// If no page can be freed: the marker is written, the rest zeroed, and nothing moves.
    fn in_place<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        marker: &[u8],
    ) -> Result<Self, ElfError> {
        let Range { start, end } = fat.addresses;
        let marker_end = start + marker.len() as u64;
        if marker_end > end {
            refuse!(
                "`{FAT_SECTION}` has {} bytes; the marker that replaces it needs {}",
                end - start,
                marker.len()
            );
        }
        let Some((load, _)) = image.load_of(&fat.addresses) else {
            refuse!("`{FAT_SECTION}` is in no PT_LOAD");
        };
        Ok(Self {
            load,
            fat: start..end,
            fat_offset: fat.offset,
            marker: start..marker_end,
            marker_section: start..end,
            moved: None,
            given_up: None,
            grown: 0..0,
            kept: end,
            nobits: end..end,
            resume: None,
            cut: None,
        })
    }

    /// Makes room for one more program header; gives the end of what is kept.
    fn make_room<S: ReadAt>(
        &mut self,
        image: &Image<S>,
        dynamic: &Dynamic,
    ) -> Result<u64, ElfError> {
        let marker_end = self.marker.end;
        match room::make(image, dynamic, marker_end)? {
            Room::Moved(moved) => {
                let end = moved.to + moved.size();
                self.marker_section.end = moved.to;
                self.grown = room::growth(image);
                self.moved = Some(moved);
                Ok(end)
            }
            Room::Instead(index) => {
                self.marker_section.end = marker_end;
                self.given_up = Some(index);
                // The rest of `.hip_fatbin` comes after the marker, within the segment.
                Ok(marker_end + 1)
            }
        }
    }

    /// The addresses that are no longer mapped, if any.
    pub(crate) fn unmapped(&self) -> Option<Range<u64>> {
        self.cut.as_ref()?;
        Some(self.kept..self.resume?)
    }
}

/// If the content ends at `content_end`: the end of the kept bytes, and the number of bytes freed
/// after it; `None` if less than a page.
fn freed(content_end: u64, end: u64, page: u64, follows: bool) -> Option<(u64, u64)> {
    let kept = content_end.checked_next_multiple_of(page)?;
    // The rest of the segment must keep its offset within a page.
    let limit = if follows { end - end % page } else { end };
    let size = limit.checked_sub(kept)?;
    let size = size - size % page;
    (size > 0).then_some((kept, size))
}

/// The largest alignment of a PT_LOAD. The cut must be a multiple of it, so that later offsets and
/// addresses stay congruent.
pub(super) fn page_size<S>(image: &Image<S>) -> u64 {
    image
        .segments
        .iter()
        .filter(|s| s.is_load())
        .map(|s| s.align)
        .fold(MIN_PAGE, u64::max)
}

/// Refuses files in which device code, at the file offsets `fat` of segment `load`, shares bytes with
/// another section or segment.
pub(super) fn check_overlaps<S>(
    image: &Image<S>,
    fat: &Range<u64>,
    load: usize,
) -> Result<(), ElfError> {
    let overlaps = |offset: u64, end: u64| offset < fat.end && fat.start < end;
    for section in &image.sections {
        if section.has_bytes()
            && section.name != FAT_SECTION
            && overlaps(section.offset, section.file_end())
        {
            refuse!(
                "section `{}` shares bytes of the file with `{FAT_SECTION}`",
                section.name
            );
        }
    }
    for (index, segment) in image.segments.iter().enumerate() {
        let harmless = index == load || segment.kind == elf::PT_GNU_RELRO;
        if !harmless && segment.filesz > 0 && overlaps(segment.offset, segment.file_end()) {
            refuse!(
                "program header {index} ({:?}) shares bytes of the file with `{FAT_SECTION}`",
                segment.kind
            );
        }
    }
    let table = image.table();
    if overlaps(table.start, table.end) {
        refuse!("the section header table shares bytes of the file with `{FAT_SECTION}`");
    }
    Ok(())
}

/// Refuses device code in the range that is read-only after relocation. The dynamic loader protects
/// this range as a whole and fails if part of it is not mapped. It supports only one PT_GNU_RELRO.
fn check_relro<S>(image: &Image<S>, geometry: &Geometry) -> Result<(), ElfError> {
    let Some(hole) = geometry.unmapped() else {
        return Ok(());
    };
    let relro = image.segments.iter().find(|s| {
        let end = s.vaddr.saturating_add(s.memsz);
        s.kind == elf::PT_GNU_RELRO && s.vaddr < hole.end && hole.start < end
    });
    if let Some(relro) = relro {
        refuse!(
            "`{FAT_SECTION}` is within PT_GNU_RELRO, at addresses {:#x}..{:#x}, which can only be protected as a whole; change the linker script that puts it there, or link with `-z norelro`",
            relro.vaddr,
            relro.vaddr.saturating_add(relro.memsz)
        );
    }
    Ok(())
}

fn new_segments<S: ReadAt>(
    image: &Image<S>,
    geometry: &Geometry,
) -> Result<Vec<Segment>, ElfError> {
    let added = u64::from(geometry.resume.is_some()) - u64::from(geometry.given_up.is_some());
    let count = image.segments.len() as u64 + added;
    let table_offset = image.header.e_phoff.get(LE);
    let table_end = table_offset + count * SEGMENT_ENTRY;
    let mut segments = Vec::with_capacity(count as usize);
    for (index, old) in image.segments.iter().enumerate() {
        let mut segment = *old;
        if Some(index) == geometry.given_up {
            continue;
        }
        if index == geometry.load {
            segments.extend(split_segment(image, old, geometry));
            continue;
        }
        // Gold leaves it empty if no PT_LOAD has the table.
        if segment.kind == elf::PT_PHDR && segment.filesz > 0 {
            segment.filesz = count * SEGMENT_ENTRY;
            segment.memsz = segment.filesz;
        } else if let Some(to) = geometry
            .map(segment.vaddr)
            .filter(|_| !old.is_load() && old.memsz > 0)
        {
            segment.paddr = segment.paddr.wrapping_add(to.wrapping_sub(old.vaddr));
            segment.vaddr = to;
            segment.offset = geometry.kept_offset(to);
        } else {
            let end = geometry.output_offset(old.file_end());
            segment.offset = geometry.output_offset(old.offset);
            segment.filesz = end - segment.offset;
        }
        segments.push(segment);
    }
    // The segment that maps the ELF header also maps the table. If nothing followed the table in
    // it, the segment grows with the table.
    let holder = segments
        .iter()
        .position(|s| s.is_load() && s.offset <= table_offset && table_offset < s.file_end());
    if let Some(holder) = holder {
        let missing = table_end.saturating_sub(segments[holder].file_end());
        let free = segments[holder].filesz == segments[holder].memsz;
        if missing > 0 && !free {
            refuse!(
                "there is no room for another program header after the table at {table_offset:#x}"
            );
        }
        segments[holder].filesz += missing;
        segments[holder].memsz += missing;
    }
    Ok(segments)
}

/// Splits the segment around the device code into one part or two.
fn split_segment<S>(image: &Image<S>, old: &Segment, geometry: &Geometry) -> Vec<Segment> {
    if geometry.cut.is_none() {
        return vec![*old];
    }
    let mut first = *old;
    first.filesz = geometry.kept - old.vaddr;
    let Some(resume) = geometry.resume else {
        return vec![first];
    };
    let mut second = *old;
    second.trim_start(resume - old.vaddr);
    second.offset = geometry.output_offset(second.offset);
    // The range between the parts is not mapped.
    first.memsz = first.filesz;
    // Linkers set PF_X exactly on segments with executable sections, and checkers expect that.
    let executable = |addresses: Range<u64>| {
        image.sections.iter().any(|s| {
            s.is_alloc()
                && s.flags.0 & elf::SHF_EXECINSTR.0 != 0
                && addresses.contains(&s.addr)
                && s.size > 0
        })
    };
    if executable(old.vaddr..old.vaddr + old.memsz) {
        for part in [&mut first, &mut second] {
            if !executable(part.vaddr..part.vaddr + part.memsz) {
                part.flags.0 &= !elf::PF_X.0;
            }
        }
    }
    vec![first, second]
}
