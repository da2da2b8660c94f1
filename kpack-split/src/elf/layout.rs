//! The layout of a host binary: what stays, what moves, and what is cut out.
//!
//! The program header table stays at the start of the file, where every tool expects it. It grows
//! by at most one entry, because the segment around the device code is split in two. The sections
//! right after the table make room. They are found through program headers and dynamic tags, so
//! they can move to the former place of the device code. `docs/dev/elf-layout.md` explains this.

use std::ops::Range;

use kpack_format::marker;
use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{DYNAMIC_ENTRY, Dynamic, is_address};
use super::headers::{SEGMENT_ENTRY, Section, Segment};
use super::image::Image;
use super::join::{self, ElfJoinPlan};
use super::plan::{ElfPlan, Parts, Relocated, offset_of, redirect};
use super::records::FAT_SECTION;
use super::room::{self, Moved, Room};
use super::section_table::SectionTable;

use super::{BinaryError, ReadAt, check, refuse, unsupported};
use crate::device_code::{
    BUNDLE_ALIGN, FatBinary, NewCode, PlannedWrapper, bundle_align, place_bundles, planned_wrappers,
};
use crate::rewrite::{Edits, Gap, Gaps};

/// What takes the place of the device code.
#[derive(Clone, Copy)]
enum Replacement<'a> {
    /// A marker.
    Marker(&'a [u8]),
    /// Smaller bundles, of these sizes.
    Bundles(&'a [u64]),
}

/// Bundles in the place of larger ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bundles {
    /// `.hip_fatbin`. Its end is that of the kept bytes.
    pub(crate) section: Range<u64>,
    /// The address of each bundle.
    pub(crate) starts: Vec<u64>,
    /// The end of the last one.
    end: u64,
}

impl Bundles {
    /// Bundles of these `sizes` after an address.
    fn after(address: u64, sizes: &[u64], align: u64) -> Self {
        let (starts, end) = place_bundles(address, sizes, align);
        let first = starts.first().copied().unwrap_or(address);
        Self { section: first..end, starts, end }
    }
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
    /// The bundles that take the place of the device code, if no marker does.
    pub(crate) bundles: Option<Bundles>,
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

    /// What the host binary's file leaves out. Room for new bundles takes the place of old ones, so that these are
    /// not read.
    pub(crate) fn gaps(&self) -> Gaps {
        let Some(Bundles { section, .. }) = &self.bundles else {
            return Gaps::new(self.cut.iter().cloned().map(Gap::cut));
        };
        let kept_end = self.kept_offset(section.end);
        let end = self.cut.as_ref().map_or(kept_end, |cut| cut.end);
        let room = section.end - section.start;
        Gaps::new([Gap { cut: self.kept_offset(section.start)..end, room }])
    }

    /// Where what replaces the device code begins that is not written with the plan: bundles, or nothing.
    fn written(&self) -> u64 {
        self.bundles.as_ref().map_or(self.kept, |bundles| bundles.section.start)
    }

    /// Output offset of an input offset.
    pub(crate) fn output_offset(&self, offset: u64) -> u64 {
        self.gaps().output_offset(offset)
    }
}

impl ElfPlan {
    /// Plans the host binary of `image`, replacing the device code `fat` by `marker` (at most 64
    /// KiB).
    pub fn new<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        marker: &[u8],
    ) -> Result<Self, BinaryError> {
        image.validate()?;
        check::sound(image)?;
        if let Some(kept) = &fat.joined {
            return join::take_out(image, fat, kept, marker);
        }
        let dynamic = Dynamic::read(image)?;
        let geometry = Geometry::new(image, &dynamic, fat, Replacement::Marker(marker))?;
        let wrappers = planned_wrappers(fat, geometry.marker.start);
        Self::replacing(image, &dynamic, fat, &geometry, wrappers, marker)
    }

    /// The plan of these positions, with `wrappers` as they become.
    fn replacing<S: ReadAt>(
        image: &Image<S>,
        dynamic: &Dynamic,
        fat: &FatBinary,
        geometry: &Geometry,
        wrappers: Vec<PlannedWrapper>,
        marker: &[u8],
    ) -> Result<Self, BinaryError> {
        // The table grows, and only at the start of the file is it known what may make room.
        let headers = image.header.e_phoff.get(LE);
        if geometry.output_offset(headers) != headers {
            unsupported!(
                at headers;
                "the program headers are at offset {headers:#x}, after the device code (expected at the start of the file, where linkers put them); run kpack before the tool that moved them"
            );
        }
        check::overlaps(image, &fat.section(), geometry.load)?;
        check_relro(image, geometry)?;

        let table = section_table(image, geometry)?;
        let segments = new_segments(image, geometry)?;

        let mut edits = Edits::default();
        wrappers_and_relocations(image, dynamic, &wrappers, geometry, &mut edits)?;
        dynamic_tags(dynamic, geometry, &mut edits);
        symbols(image, (geometry, fat, &wrappers), &table, &mut edits)?;
        move_block(image, geometry, &mut edits)?;
        device_code(geometry, marker, &mut edits);

        let parts = Parts {
            input: image.over(()),
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

impl ElfJoinPlan {
    /// Plans the binary of `image` whose device code `fat` becomes the smaller bundles of `code`, in its place.
    ///
    /// What made room for a program header comes before the bundles, so that nothing follows them in their segment,
    /// and a plan for still fewer needs no further header. If no page would be freed, the bundles are written in
    /// place and the rest is zeroed; nothing moves.
    pub fn trimmed<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        code: &NewCode<'_>,
    ) -> Result<Self, BinaryError> {
        image.validate()?;
        check::sound(image)?;
        let dynamic = Dynamic::read(image)?;
        let geometry = Geometry::new(image, &dynamic, fat, Replacement::Bundles(code.sizes))?;
        let starts = Vec::from_iter(
            geometry.bundles.iter().flat_map(|bundles| bundles.starts.iter().copied()),
        );
        let wrappers = code.wrappers_at(&starts);
        let plan = ElfPlan::replacing(image, &dynamic, fat, &geometry, wrappers, &[])?;
        // They are in the first part of the segment, before which nothing is cut out.
        let bundles = starts.into_iter().map(|start| geometry.kept_offset(start));
        Ok(Self { bundles: bundles.collect(), plan, room: fat.size() })
    }
}

impl Geometry {
    fn new<S: ReadAt>(
        image: &Image<S>,
        dynamic: &Dynamic,
        fat: &FatBinary,
        new: Replacement<'_>,
    ) -> Result<Self, BinaryError> {
        let in_place = Self::in_place(image, fat, new)?;
        let segment = &image.segments[in_place.load];
        let end = fat.addresses.end;
        let page = image.page_size();
        let follows = segment.file_backed_end() > end;
        if freed(in_place.new_end(), end, page, follows).is_none() {
            return Ok(in_place);
        }
        let mut split = in_place.clone();
        let mut content_end = in_place.new_end();
        if follows {
            content_end = split.make_room(image, dynamic)?;
            if let Replacement::Bundles(sizes) = new {
                let bundles = Bundles::after(content_end, sizes, bundle_align(fat));
                content_end = bundles.end;
                split.bundles = Some(bundles);
            }
        }
        let Some((kept, size)) = freed(content_end, end, page, follows) else {
            return Ok(in_place);
        };
        let cut = split.kept_offset(kept);
        split.kept = kept;
        split.cut = Some(cut..cut + size);
        if let Some(bundles) = &mut split.bundles {
            // Every mapped byte stays in a section.
            bundles.section.end = kept;
        }
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

    /// The end of what replaces the device code, where nothing moves.
    fn new_end(&self) -> u64 {
        self.bundles.as_ref().map_or(self.marker.end, |bundles| bundles.end)
    }

    /// If no page can be freed: the marker or the bundles are written, the rest zeroed, and nothing moves.
    fn in_place<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        new: Replacement<'_>,
    ) -> Result<Self, BinaryError> {
        let Range { start, end } = fat.addresses;
        let (marker, bundles) = match new {
            Replacement::Marker(marker) => (marker.len() as u64, None),
            Replacement::Bundles(sizes) => {
                (0, Some(Bundles::after(start, sizes, bundle_align(fat))))
            }
        };
        let new_end = bundles.as_ref().map_or(start + marker, |bundles| bundles.end);
        if new_end > end {
            let what = if bundles.is_some() {
                "the bundles that replace"
            } else {
                "the marker that replaces"
            };
            refuse!(
                "`{FAT_SECTION}` has {} bytes; {what} it need {}",
                end - start,
                new_end - start
            );
        }
        let Some((load, _)) = image.load_of(&fat.addresses) else {
            refuse!("`{FAT_SECTION}` is in no PT_LOAD");
        };
        let bundles = bundles.map(|bundles| Bundles { section: start..end, ..bundles });
        Ok(Self {
            load,
            fat: start..end,
            fat_offset: fat.offset,
            marker: start..start + marker,
            marker_section: start..end,
            moved: None,
            given_up: None,
            grown: 0..0,
            kept: end,
            nobits: end..end,
            resume: None,
            cut: None,
            bundles,
        })
    }

    /// Makes room for one more program header; gives the end of what is kept.
    fn make_room<S: ReadAt>(
        &mut self,
        image: &Image<S>,
        dynamic: &Dynamic,
    ) -> Result<u64, BinaryError> {
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
    let after = limit.checked_sub(kept)?;
    let size = after - after % page;
    (size > 0).then_some((kept, size))
}

/// Refuses device code in the range that is read-only after relocation. The dynamic loader protects
/// this range as a whole and fails if part of it is not mapped. It supports only one PT_GNU_RELRO.
fn check_relro<S>(image: &Image<S>, geometry: &Geometry) -> Result<(), BinaryError> {
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
) -> Result<Vec<Segment>, BinaryError> {
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
        } else if let Some(to) =
            geometry.map(segment.vaddr).filter(|_| !old.is_load() && old.memsz > 0)
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
            unsupported!(
                at table_offset;
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
        // `.hip_fatbin` ends with the bundles, so nothing is left to map after them.
        if geometry.bundles.is_some() && old.memsz == old.filesz {
            first.memsz = first.filesz;
        }
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

/// The sections of the host binary, in order of address.
fn section_table<S: ReadAt>(
    image: &Image<S>,
    geometry: &Geometry,
) -> Result<SectionTable, BinaryError> {
    let marker_section = Section {
        name: marker::SECTION_NAME.to_owned(),
        name_offset: 0,
        kind: elf::SHT_PROGBITS,
        flags: elf::SHF_ALLOC,
        addr: geometry.marker_section.start,
        offset: geometry.fat_offset,
        size: geometry.marker_section.end - geometry.marker_section.start,
        link: 0,
        info: 0,
        align: 1,
        entsize: 0,
    };
    let row = |index: usize| (Some(index), relocated(&image.sections[index], geometry));
    let moved: &[usize] = geometry.moved.as_ref().map_or(&[], |moved| &moved.sections);
    let mut rows = Vec::with_capacity(image.sections.len() + 1);
    for index in (0..image.sections.len()).filter(|index| !moved.contains(index)) {
        let fat = image.sections[index].name == FAT_SECTION;
        // Between marker and what moved, the rest of the device code is empty; bundles come last.
        let is_last = geometry.unmapped().is_none() || geometry.bundles.is_some();
        if fat {
            if geometry.bundles.is_none() {
                rows.push((None, marker_section.clone()));
            }
            if !is_last {
                rows.push(row(index));
            }
            rows.extend(moved.iter().copied().map(row));
        }
        if !fat || is_last {
            rows.push(row(index));
        }
    }
    SectionTable::new(image, rows)
}

/// The section's new header, with the old section numbers.
fn relocated(old: &Section, geometry: &Geometry) -> Section {
    let mut section = old.clone();
    if let Some(bundles) = geometry.bundles.as_ref().filter(|_| section.name == FAT_SECTION) {
        (section.addr, section.size) =
            (bundles.section.start, bundles.section.end - bundles.section.start);
        section.offset = geometry.kept_offset(section.addr);
        section.align = section.align.min(BUNDLE_ALIGN);
    } else if section.name == FAT_SECTION {
        section.empty(geometry.nobits.clone());
        section.offset = geometry.output_offset(geometry.kept_offset(geometry.nobits.start));
    } else if let Some(to) = geometry.map(section.addr).filter(|_| section.is_alloc()) {
        section.addr = to;
        section.offset = geometry.kept_offset(to);
    } else {
        section.offset = geometry.output_offset(section.offset);
    }
    section
}

/// Redirects every wrapper to the marker, and checks that nothing else points to the removed device
/// code.
fn wrappers_and_relocations<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    wrappers: &[PlannedWrapper],
    geometry: &Geometry,
    edits: &mut Edits,
) -> Result<(), BinaryError> {
    redirect(image, dynamic, wrappers, edits, &mut |other, edits| {
        let Relocated { relocation, target, of_wrapper } = other;
        if geometry.fat.contains(&relocation.address) {
            refuse!(
                "a relocation ({:?}) applies to address {:#x} inside `{FAT_SECTION}`, which kpack removes",
                relocation.kind,
                relocation.address
            );
        }
        let touched = [Some(relocation.address), target];
        let in_the_way = |a: &u64| geometry.grown.contains(a) && geometry.map(*a).is_none();
        if let Some(address) = touched.into_iter().flatten().find(in_the_way) {
            unsupported!(
                "there is no room for another program header: a relocation ({:?}) names address \
                 {address:#x}, right after the table, in no section; run kpack before the tool that \
                 moved what was there, such as patchelf",
                relocation.kind
            );
        }
        if of_wrapper {
            return Ok(());
        }
        if let Some(target) = target.filter(|target| geometry.fat.contains(target)) {
            refuse!(
                "the relocation ({:?}) of address {:#x} points to {target:#x} inside `{FAT_SECTION}` but belongs to no wrapper",
                relocation.kind,
                relocation.address
            );
        }
        if let Some(to) = target.and_then(|target| geometry.map(target)) {
            // A relocation against a symbol follows automatically, because the symbol moves.
            match relocation.entry {
                None => {
                    edits.write(offset_of(image, relocation.address, 8)?, to.to_le_bytes().to_vec())
                }
                Some(entry) if relocation.symbol == 0 => {
                    edits.write(entry + 16, to.to_le_bytes().to_vec())
                }
                Some(_) => {}
            }
        }
        Ok(())
    })
}

/// Updates the dynamic tags that refer to moved sections.
fn dynamic_tags(dynamic: &Dynamic, geometry: &Geometry, edits: &mut Edits) {
    for (index, (tag, value)) in dynamic.entries.iter().enumerate() {
        if let Some(to) = geometry.map(*value).filter(|_| is_address(*tag)) {
            let entry = dynamic.offset + index as u64 * DYNAMIC_ENTRY;
            edits.write(entry + 8, to.to_le_bytes().to_vec());
        }
    }
}

/// Renumbers the sections of all symbols and moves the symbols of moved sections. Symbols in the
/// device code point to the marker, or to the bundle that takes the place of theirs.
fn symbols<S: ReadAt>(
    image: &Image<S>,
    (geometry, old, wrappers): (&Geometry, &FatBinary, &[PlannedWrapper]),
    table: &SectionTable,
    edits: &mut Edits,
) -> Result<(), BinaryError> {
    let fat = image.sections.iter().position(|s| s.name == FAT_SECTION);
    table.renumber_references(image, edits, &|symbol, index| {
        let is_of_fat = fat.is_some_and(|fat| is_symbol_of(image, fat, symbol, index));
        if let Some(bundles) = geometry.bundles.as_ref().filter(|_| is_of_fat) {
            let found =
                old.wrappers.iter().position(|w| w.bundle_address == symbol.st_value.get(LE));
            let new = found.and_then(|position| wrappers.get(position)?.pointer);
            let is_section = symbol.st_type() == elf::STT_SECTION;
            let value = new.filter(|_| !is_section).unwrap_or(bundles.section.start);
            let size = symbol.st_size.get(LE).min(bundles.section.end - value);
            symbol.st_value.set(LE, value);
            symbol.st_size.set(LE, size);
        } else if is_of_fat && symbol.st_type() == elf::STT_SECTION {
            symbol.st_value.set(LE, geometry.nobits.start);
        } else if is_of_fat {
            symbol.st_value.set(LE, geometry.marker.start);
            if symbol.st_size.get(LE) != 0 {
                symbol.st_size.set(LE, geometry.marker.end - geometry.marker.start);
            }
            return table.marker_index();
        } else if let Some(to) =
            geometry.map(symbol.st_value.get(LE)).filter(|_| symbol.st_type() != elf::STT_TLS)
        {
            symbol.st_value.set(LE, to);
        }
        table.renumber(index)
    })
}

/// Whether a symbol of the section `index` is one of the section `of`. Some tools remove or sort sections and
/// leave dynamic symbols with their old numbers, so the address must exist as well.
fn is_symbol_of<S>(image: &Image<S>, of: usize, symbol: &elf::Sym64<LE>, index: usize) -> bool {
    let section = &image.sections[of];
    index == of && (section.addr..=section.addr_end()).contains(&symbol.st_value.get(LE))
}

/// Moves the sections that make room for a program header, with their changes.
fn move_block<S: ReadAt>(
    image: &Image<S>,
    geometry: &Geometry,
    edits: &mut Edits,
) -> Result<(), BinaryError> {
    let Some(moved) = &geometry.moved else {
        return Ok(());
    };
    let from = moved.from_offset..moved.from_offset + moved.size();
    let mut block =
        image.bytes(from.start, moved.size(), "the sections after the program headers")?;
    edits.take_into(&from, &mut block);
    edits.zero(from.start, moved.size());
    edits.write(geometry.kept_offset(moved.to), block);
    Ok(())
}

/// Replaces the device code by the marker, and zeroes any device code that stays in the file.
fn device_code(geometry: &Geometry, marker: &[u8], edits: &mut Edits) {
    let fat_end = geometry.fat_offset + (geometry.fat.end - geometry.fat.start);
    let kept_end = geometry.kept_offset(geometry.written());
    let marker_end = geometry.kept_offset(geometry.marker.end);
    edits.write(geometry.kept_offset(geometry.marker.start), marker.to_vec());
    match &geometry.moved {
        None => edits.zero(marker_end, kept_end - marker_end),
        Some(moved) => {
            let block = geometry.kept_offset(moved.to);
            let block_end = block + moved.size();
            edits.zero(marker_end, block - marker_end);
            edits.zero(block_end, kept_end - block_end);
        }
    }
    if let Some(cut) = &geometry.cut {
        edits.zero(cut.end, fat_end - cut.end);
    }
}
