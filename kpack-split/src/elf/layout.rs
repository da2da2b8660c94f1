//! The layout of a host binary: what stays, what moves, and what is cut out.
//!
//! The program header table stays at the start of the file, where every tool expects it. It grows
//! by at most one entry, because the segment around the device code is split in two. The sections
//! right after the table make room. They are found through program headers and dynamic tags, so
//! they can move to the former place of the device code. `docs/elf-layout.md` explains this in
//! full.

use std::fmt;
use std::ops::Range;

use kpack_format::marker::Marker;
use object::LittleEndian as LE;
use object::elf;

use super::dynamic::Dynamic;
use super::edits::{self, Edits};
use super::headers::{SECTION_ENTRY, SEGMENT_ENTRY, Section, Segment};
use super::image::Image;
use super::records::FAT_SECTION;
use super::refuse;
use super::room::{self, Moved, Room};
use super::section_table::{self, SectionTable};
use super::wrappers::FatBinary;
use super::{ElfError, ReadAt};

/// Smallest supported page size, in bytes.
const MIN_PAGE: u64 = 4096;

/// How to make a host binary from a fat one. A plain value: it can be printed, checked and refused
/// before any byte changes.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) geometry: Geometry,
    pub(crate) wrapper_count: usize,
    /// Addresses of wrappers of objects that were split before the link; they have their own
    /// markers.
    pub(crate) split_before: Vec<u64>,
    /// Size of the input in bytes.
    pub(crate) input_size: u64,
    /// End of the input's kept bytes; the tail replaces everything after it.
    pub(crate) kept_end: u64,
    /// The new program headers.
    pub(crate) segments: Vec<Segment>,
    /// The new section headers.
    pub(crate) sections: Vec<Section>,
    /// Changed bytes by output offset.
    pub(crate) edits: Vec<(u64, Vec<u8>)>,
    /// Offset of the tail in the output: section names and section headers.
    pub(crate) tail_offset: u64,
    pub(crate) tail: Vec<u8>,
}

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

    /// Input file offset of an address in the kept part of the device code's range.
    pub(crate) fn kept_offset(&self, address: u64) -> u64 {
        self.fat_offset + (address - self.fat.start)
    }

    /// Output offset of an input offset.
    pub(crate) fn output_offset(&self, offset: u64) -> u64 {
        match &self.cut {
            Some(cut) if offset >= cut.end => offset - (cut.end - cut.start),
            Some(cut) if offset > cut.start => cut.start,
            _ => offset,
        }
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
        let dynamic = Dynamic::read(image)?;
        let geometry = Geometry::new(image, &dynamic, fat, marker)?;
        check_overlaps(image, &geometry)?;

        let table = SectionTable::new(image, &geometry)?;
        let segments = new_segments(image, &geometry)?;

        let mut edits = Edits::default();
        edits::wrappers_and_relocations(image, &dynamic, fat, &geometry, &mut edits)?;
        edits::dynamic_tags(&dynamic, &geometry, &mut edits);
        edits::symbols(image, &geometry, &table, &mut edits)?;
        edits::move_block(image, &geometry, &mut edits)?;
        edits::device_code(&geometry, marker, &mut edits);

        let kept_end = section_table::kept_end(image, &geometry);
        if kept_end == image.size {
            // The old tables stay in the middle of the file; overwrite the stale copy.
            let size = SECTION_ENTRY * image.sections.len() as u64;
            edits.zero(image.header.e_shoff.get(LE), size);
        }
        let names_offset = geometry.output_offset(kept_end);
        let (sections, tail, headers_at) = table.finish(names_offset);

        let mut header = image.header;
        header.e_phnum.set(LE, segments.len() as u16);
        header.e_shoff.set(LE, names_offset + headers_at);
        header.e_shnum.set(LE, sections.len() as u16);
        header
            .e_shstrndx
            .set(LE, elf::SymbolSection(table.names_index() as u16));
        edits.write(0, object::pod::bytes_of(&header).to_vec());
        let mut table_bytes = Vec::new();
        segments
            .iter()
            .for_each(|segment| segment.write(&mut table_bytes));
        edits.write(image.header.e_phoff.get(LE), table_bytes);

        Ok(Self {
            wrapper_count: fat.wrappers.len() + fat.split_before.len(),
            split_before: fat.split_before.iter().map(|w| w.address).collect(),
            input_size: image.size,
            kept_end,
            segments,
            sections,
            edits: edits.into_output(&geometry),
            tail_offset: names_offset,
            tail,
            geometry,
        })
    }

    /// Replaces the planned marker. Drops code IDs that do not fit.
    pub(crate) fn set_marker(&mut self, marker: &Marker) -> Result<(), ElfError> {
        let planned = self.geometry.marker.end - self.geometry.marker.start;
        let Some(bytes) = marker.to_bytes_within(planned as usize) else {
            refuse!("its marker does not fit the planned {planned} bytes");
        };
        self.add(vec![(self.geometry.fat_offset, bytes)]);
        Ok(())
    }

    /// Adds changes by input offset, for the wrappers and markers of objects that were split before
    /// the link. These are in data and in sections that do not move.
    pub(crate) fn add(&mut self, edits: Vec<(u64, Vec<u8>)>) {
        for (offset, bytes) in edits {
            let offset = self.geometry.output_offset(offset);
            self.edits.push((offset, bytes));
        }
    }

    /// Size of the host binary in bytes.
    pub fn output_size(&self) -> u64 {
        self.tail_offset + self.tail.len() as u64
    }
}

impl Geometry {
    fn new<S: ReadAt>(
        image: &Image<S>,
        dynamic: &Dynamic,
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
        let Some((load, segment)) = image.load_of(&fat.addresses) else {
            refuse!("`{FAT_SECTION}` is in no PT_LOAD");
        };
        let page = page_size(image);
        let follows = segment.file_backed_end() > end;
        let this = Self {
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
        };

        // If no page can be freed, write the marker, zero the rest, and move nothing.
        if freed(marker_end, end, page, follows).is_none() {
            return Ok(this);
        }
        let mut split = this.clone();
        let mut content_end = marker_end;
        if follows {
            match room::make(image, dynamic, marker_end)? {
                Room::Moved(moved) => {
                    content_end = moved.to + moved.size();
                    split.marker_section.end = moved.to;
                    split.grown = room::growth(image);
                    split.moved = Some(moved);
                }
                Room::Instead(index) => {
                    // The rest of `.hip_fatbin` comes after the marker, within the segment.
                    content_end += 1;
                    split.marker_section.end = marker_end;
                    split.given_up = Some(index);
                }
            }
        }
        let Some((kept, cut_size)) = freed(content_end, end, page, follows) else {
            return Ok(this);
        };
        split.kept = kept;
        let cut_start = fat.offset + (kept - start);
        split.cut = Some(cut_start..cut_start + cut_size);
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
fn page_size<S>(image: &Image<S>) -> u64 {
    image
        .segments
        .iter()
        .filter(|s| s.is_load())
        .map(|s| s.align)
        .fold(MIN_PAGE, u64::max)
}

/// Refuses files in which the cut would overlap the bytes of another section or segment.
fn check_overlaps<S>(image: &Image<S>, geometry: &Geometry) -> Result<(), ElfError> {
    let fat_size = geometry.fat.end - geometry.fat.start;
    let fat_bytes = geometry.fat_offset..geometry.fat_offset + fat_size;
    let overlaps = |offset: u64, end: u64| offset < fat_bytes.end && fat_bytes.start < end;
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
        let harmless = index == geometry.load || segment.kind == elf::PT_GNU_RELRO;
        if !harmless && segment.filesz > 0 && overlaps(segment.offset, segment.file_end()) {
            refuse!(
                "program header {index} ({:?}) shares bytes of the file with `{FAT_SECTION}`",
                segment.kind
            );
        }
    }
    check_relro(image, geometry)?;
    let table = image.header.e_shoff.get(LE);
    if overlaps(table, table + SECTION_ENTRY * image.sections.len() as u64) {
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
        if segment.kind == elf::PT_PHDR {
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

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let geometry = &self.geometry;
        let range = |r: &Range<u64>| format!("{:#x}..{:#x}", r.start, r.end);
        writeln!(
            f,
            "{} bytes -> {} bytes",
            self.input_size,
            self.output_size()
        )?;
        writeln!(
            f,
            "device code at {}, {} wrappers",
            range(&geometry.fat),
            self.wrapper_count
        )?;
        writeln!(f, "marker at {}", range(&geometry.marker))?;
        if let Some(moved) = &geometry.moved {
            writeln!(f, "moved from {} to {:#x}", range(&moved.from), moved.to)?;
        }
        match &geometry.cut {
            Some(cut) => writeln!(f, "file offsets {} are cut", range(cut))?,
            None => writeln!(f, "nothing is cut: the device code does not free a page")?,
        }
        writeln!(f, "program headers:")?;
        for s in &self.segments {
            writeln!(
                f,
                "  {:<16} offset {:#x} address {:#x} file {:#x} memory {:#x} align {:#x}",
                s.kind.to_string(),
                s.offset,
                s.vaddr,
                s.filesz,
                s.memsz,
                s.align
            )?;
        }
        writeln!(f, "sections:")?;
        for s in &self.sections {
            writeln!(
                f,
                "  {:<24} {:<14} address {:#x} offset {:#x} size {:#x}",
                s.name,
                s.kind.to_string(),
                s.addr,
                s.offset,
                s.size
            )?;
        }
        Ok(())
    }
}
