//! Makes room for one more program header: the sections right after the table move to the former
//! place of the device code.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{Dynamic, is_address};
use super::headers::{SEGMENT_ENTRY, Section, Segment};
use super::image::Image;
use super::unsupported;
use super::{BinaryError, ReadAt};

/// A run of sections that moves as one block. Positions are addresses, unless marked as offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Their indices, in order of address.
    pub(crate) sections: Vec<usize>,
    pub(crate) from: Range<u64>,
    pub(crate) from_offset: u64,
    pub(crate) to: u64,
}

impl Moved {
    /// The new address for the old `address`, if its content moves.
    pub(crate) fn map(&self, address: u64) -> Option<u64> {
        self.from.contains(&address).then(|| self.to + (address - self.from.start))
    }

    pub(crate) fn size(&self) -> u64 {
        self.from.end - self.from.start
    }
}

/// The addresses of the table's new entry; empty if the table is not loaded.
pub(crate) fn growth<S>(image: &Image<S>) -> Range<u64> {
    let offset = image.header.e_phoff.get(LE);
    let holder =
        image.segments.iter().find(|s| s.is_load() && s.offset <= offset && offset < s.file_end());
    holder.map_or(0..0, |s| {
        let end = s.vaddr + (table_end(image) - s.offset);
        end..end + SEGMENT_ENTRY
    })
}

/// How to make room for one more program header.
pub(crate) enum Room {
    /// Move these sections.
    Moved(Moved),
    /// Nothing can move; replace the PT_PHDR with this index.
    Instead(usize),
}

/// Makes room for one more program header; moved sections go after the address `after`.
pub(crate) fn make<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    after: u64,
) -> Result<Room, BinaryError> {
    let refused = match moved(image, dynamic, after) {
        Ok(moved) => return Ok(Room::Moved(moved)),
        Err(error) => error,
    };
    // In executables at fixed addresses, `patchelf` puts the dynamic section right after the table, and it must be
    // writable. In libraries, lld puts the images of OpenMP there, which code refers to.
    let own = image.segments.iter().position(|s| s.kind == elf::PT_PHDR);
    match own.filter(|_| !dynamic.needs_program_headers(image)) {
        Some(index) => Ok(Room::Instead(index)),
        None => Err(refused),
    }
}

/// Finds what must move so that the table can grow by one entry.
fn moved<S: ReadAt>(image: &Image<S>, dynamic: &Dynamic, after: u64) -> Result<Moved, BinaryError> {
    let movable = |leaving: &Displaced<'_>| {
        let mut sections = leaving.sections.iter();
        sections.try_for_each(|index| check_movable(image, dynamic, &image.sections[*index]))
    };
    let mut leaving = Displaced::new(image, true);
    if movable(&leaving).is_err() {
        leaving = Displaced::new(image, false);
        movable(&leaving)?;
    }
    for s in &leaving.segments {
        let movable = matches!(s.kind, elf::PT_NOTE | elf::PT_INTERP | elf::PT_GNU_PROPERTY);
        if !movable || image.offset_of(&(s.vaddr..s.file_backed_end())) != Some(s.offset) {
            unsupported!(
                "there is no room for another program header: the content of {:?} at address {:#x} \
                 and offset {:#x} is right after the table and cannot be moved",
                s.kind,
                s.vaddr,
                s.offset
            );
        }
    }
    let moved = leaving.block(image, after);
    check_gap(dynamic, &moved, &growth(image))?;
    Ok(moved)
}

/// The content right after the program header table, which must move.
struct Displaced<'a> {
    /// Indices of sections, in order of address.
    sections: Vec<usize>,
    /// The content of a program header such as PT_NOTE moves as a whole, even if it is in no
    /// section: tools that rearrange sections may leave such content behind.
    segments: Vec<&'a Segment>,
}

impl<'a> Displaced<'a> {
    /// With `with_symbols`, everything that belongs to a dynamic symbol table moves with it.
    fn new<S>(image: &'a Image<S>, with_symbols: bool) -> Self {
        let start = table_end(image);
        let mut end = start + SEGMENT_ENTRY;
        loop {
            let mut sections = sections_between(image, start, end);
            let segments: Vec<_> = image
                .segments
                .iter()
                .filter(|s| !s.is_load() && s.filesz > 0 && s.kind != elf::PT_PHDR)
                .filter(|s| s.offset >= start && s.offset < end)
                .collect();
            let section_ends = sections.iter().map(|i| image.sections[*i].file_end());
            let ends = section_ends.chain(segments.iter().map(|s| s.file_end()));
            let symbols = with_symbols.then(|| symbols_end(image, &sections)).flatten();
            let needed = ends.chain(symbols).fold(end, u64::max);
            if needed == end {
                sections.sort_by_key(|index| (image.sections[*index].addr, *index));
                return Self { sections, segments };
            }
            end = needed;
        }
    }

    /// Places it as one block after an address.
    fn block<S>(self, image: &Image<S>, after: u64) -> Moved {
        // Address, offset, size, alignment.
        let sections = self.sections.iter().map(|index| {
            let s = &image.sections[*index];
            (s.addr, s.offset, s.size, s.align)
        });
        let segments = self.segments.iter().map(|s| (s.vaddr, s.offset, s.filesz, s.align));
        let parts: Vec<_> = sections.chain(segments).collect();
        let first = parts.iter().map(|(at, offset, ..)| (*at, *offset)).min();
        let (start, from_offset) = first.unwrap_or((after, 0));
        let ends = parts.iter().map(|(at, _, size, _)| at + size);
        let end = ends.fold(start, u64::max);
        let align = parts.iter().map(|(.., align)| *align).fold(8, u64::max);
        Moved {
            sections: self.sections,
            from: start..end,
            from_offset,
            to: after + start.wrapping_sub(after) % align,
        }
    }
}

/// File offset of the end of the program header table.
fn table_end<S>(image: &Image<S>) -> u64 {
    image.header.e_phoff.get(LE) + SEGMENT_ENTRY * image.segments.len() as u64
}

/// The sections between the file offsets, including empty ones.
fn sections_between<S>(image: &Image<S>, start: u64, end: u64) -> Vec<usize> {
    let between = |s: &Section| {
        let empty = s.size == 0 && s.offset >= start && s.is_alloc();
        s.has_bytes() && s.offset < end && (s.file_end() > start || empty)
    };
    (0..image.sections.len()).filter(|index| between(&image.sections[*index])).collect()
}

/// File end of the strings and relocations of a dynamic symbol table among `sections`. GNU strip
/// reads a symbol table when it reaches one of them. If they do not come after the table, strip
/// reorders the sections without renumbering those of dynamic symbols.
fn symbols_end<S>(image: &Image<S>, sections: &[usize]) -> Option<u64> {
    let is_symbols = |index: &usize| image.sections[*index].kind == elf::SHT_DYNSYM;
    let symbols = sections.iter().copied().find(is_symbols)?;
    let strings = image.sections[symbols].link as usize;
    let belongs = |index: usize, section: &Section| {
        let relocates = section.kind == elf::SHT_RELA && section.link as usize == symbols;
        section.is_alloc() && (index == strings || relocates)
    };
    let all = image.sections.iter().enumerate();
    all.filter(|(index, section)| belongs(*index, section))
        .map(|(_, section)| section.file_end())
        .max()
}

/// Only content found through program headers and dynamic tags may move, since no code refers to
/// it.
fn check_movable<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    section: &Section,
) -> Result<(), BinaryError> {
    let table_end = table_end(image);
    let by_tag =
        dynamic.entries.iter().any(|(tag, value)| is_address(*tag) && *value == section.addr);
    let movable = match section.kind {
        elf::SHT_NOTE => true,
        elf::SHT_HASH
        | elf::SHT_GNU_HASH
        | elf::SHT_DYNSYM
        | elf::SHT_STRTAB
        | elf::SHT_GNU_VERSYM
        | elf::SHT_GNU_VERDEF
        | elf::SHT_GNU_VERNEED
        | elf::SHT_RELA
        | elf::SHT_RELR => by_tag,
        _ => image.segments.iter().any(|s| {
            s.kind == elf::PT_INTERP && s.vaddr == section.addr && s.filesz == section.size
        }),
    };
    let in_place = image.offset_of(&(section.addr..section.addr_end())) == Some(section.offset);
    if movable && section.is_alloc() && section.offset >= table_end && in_place {
        return Ok(());
    }
    unsupported!(
        "there is no room for another program header: section `{}` ({:?}) at offset {:#x} is \
         right after the table, which ends at {table_end:#x}, and it cannot be moved; link with \
         `-Wl,--build-id`, whose note can make room, and run kpack before patchelf",
        section.name,
        section.kind,
        section.offset
    )
}

/// Gaps between the moved sections are padding, or leftovers of sections that a tool such as
/// `patchelf` moved, as long as nothing refers to them.
fn check_gap(dynamic: &Dynamic, moved: &Moved, growth: &Range<u64>) -> Result<(), BinaryError> {
    let stays = |address| moved.map(address).is_none();
    for (tag, value) in &dynamic.entries {
        if is_address(*tag) && growth.contains(value) && stays(*value) {
            unsupported!(
                "there is no room for another program header: {tag:?} is {value:#x}, right \
                 after the table, in no section"
            );
        }
    }
    Ok(())
}
