//! Byte changes: wrappers, relocations, dynamic tags, symbols, and moved sections.

use std::collections::BTreeMap;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{
    DYNAMIC_ENTRY, Dynamic, Relocation, Relocations, dynamic_symbols, is_address,
};
use super::image::Image;
use super::layout::Geometry;
use super::plan::{Gaps, PlannedWrapper};
use super::records::{FAT_SECTION, POINTER, WRAPPER_SIZE, pods, pods_mut};
use super::refuse;
use super::section_table::SectionTable;
use super::wrappers::is_absolute;
use super::{ElfError, ReadAt};

/// Changed bytes by offset in the input. A later change wins over an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    writes: Vec<(u64, Vec<u8>)>,
}

impl Edits {
    pub(crate) fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.writes.push((offset, bytes));
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, size: u64) {
        self.write(offset, vec![0; size as usize]);
    }

    /// Removes the changes within `range` and applies them to `bytes`, the content of that range.
    fn take_into(&mut self, range: &Range<u64>, bytes: &mut [u8]) {
        self.writes.retain(|(offset, change)| {
            let inside = range.start <= *offset && offset + change.len() as u64 <= range.end;
            if inside {
                let at = (offset - range.start) as usize;
                bytes[at..at + change.len()].copy_from_slice(change);
            }
            !inside
        });
    }

    /// The changes by output offset.
    pub(crate) fn into_output(self, gaps: &Gaps) -> Vec<(u64, Vec<u8>)> {
        let place = |(offset, bytes)| (gaps.output_offset(offset), bytes);
        self.writes.into_iter().map(place).collect()
    }
}

/// Redirects every wrapper to the marker, and checks that nothing else points to the removed device
/// code.
pub(crate) fn wrappers_and_relocations<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    wrappers: &[PlannedWrapper],
    geometry: &Geometry,
    edits: &mut Edits,
) -> Result<(), ElfError> {
    redirect(image, dynamic, wrappers, edits, &mut |other, edits| {
        let Relocated {
            relocation,
            target,
            of_wrapper,
        } = other;
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
            refuse!(
                "there is no room for another program header: a relocation ({:?}) names address \
                 {address:#x}, right after the table, in no section",
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
                None => edits.write(
                    offset_of(image, relocation.address, 8)?,
                    to.to_le_bytes().to_vec(),
                ),
                Some(entry) if relocation.symbol == 0 => {
                    edits.write(entry + 16, to.to_le_bytes().to_vec())
                }
                Some(_) => {}
            }
        }
        Ok(())
    })
}

/// A relocation of the image.
pub(crate) struct Relocated {
    pub(crate) relocation: Relocation,
    /// Its target, if the image alone determines it.
    pub(crate) target: Option<u64>,
    /// Whether it relocates a wrapper's pointer.
    pub(crate) of_wrapper: bool,
}

/// Rewrites wrappers and the relocations of their pointers. `each` is called with every relocation.
pub(crate) fn redirect<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    wrappers: &[PlannedWrapper],
    edits: &mut Edits,
    each: &mut dyn FnMut(Relocated, &mut Edits) -> Result<(), ElfError>,
) -> Result<(), ElfError> {
    // By address of the pointer: its target, and whether the target must be stored in the pointer
    // itself.
    let in_place = image.is_position_dependent();
    let planned = wrappers.iter().filter_map(|w| Some((w, w.pointer?)));
    let mut pointers: BTreeMap<u64, (u64, bool)> = planned
        .clone()
        .map(|(w, pointer)| (w.address + POINTER, (pointer, in_place)))
        .collect();

    let relocations = Relocations::read(image, dynamic)?;
    let symbols = dynamic_symbols(image)?;
    for relocation in relocations.iter() {
        let relocation: Relocation = relocation?;
        let target = relocations.target(&relocation, pods(&symbols));
        let pointer = pointers.get_mut(&relocation.address);
        let of_wrapper = pointer.is_some();
        match (pointer, relocation.entry) {
            (None, _) => {}
            (Some((_, in_place)), None) => *in_place = true,
            (Some((target, _)), Some(entry)) => {
                make_relative(image, &relocation, entry, *target, edits)?;
            }
        }
        each(
            Relocated {
                relocation,
                target,
                of_wrapper,
            },
            edits,
        )?;
    }

    for (wrapper, pointer) in planned {
        let offset = offset_of(image, wrapper.address, WRAPPER_SIZE)?;
        let mut bytes = image.bytes(offset, WRAPPER_SIZE, "a wrapper")?;
        let in_place = pointers.get(&(wrapper.address + POINTER));
        bytes[0..4].copy_from_slice(&wrapper.magic.to_le_bytes());
        // Some linkers also store a RELA relocation's addend in the relocated word.
        if in_place.is_some_and(|(_, in_place)| *in_place) || bytes[8..16] != [0; 8] {
            bytes[8..16].copy_from_slice(&pointer.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&wrapper.reserved.to_le_bytes());
        edits.write(offset, bytes);
    }
    Ok(())
}

/// Makes the RELA `entry` of a wrapper's pointer relative to `target`.
fn make_relative<S: ReadAt>(
    image: &Image<S>,
    relocation: &Relocation,
    entry: u64,
    target: u64,
    edits: &mut Edits,
) -> Result<(), ElfError> {
    let relative = image.machine.relative();
    if relocation.kind != relative && !is_absolute(image, relocation.kind) {
        refuse!(
            "the wrapper's pointer at {:#x} is relocated by {:?}; expected {relative:?} or {:?}",
            relocation.address,
            relocation.kind,
            image.machine.absolute()
        );
    }
    let rela = elf::Rela64::<LE> {
        r_offset: object::U64::new(LE, relocation.address),
        r_info: elf::Rela64::r_info(LE, false, 0, relative),
        r_addend: object::I64::new(LE, target as i64),
    };
    edits.write(entry, object::pod::bytes_of(&rela).to_vec());
    Ok(())
}

fn offset_of<S: ReadAt>(image: &Image<S>, address: u64, size: u64) -> Result<u64, ElfError> {
    match image.offset_of(&(address..address.saturating_add(size))) {
        Some(offset) => Ok(offset),
        None => refuse!("address {address:#x} is not loaded from the file"),
    }
}

/// Updates the dynamic tags that refer to moved sections.
pub(crate) fn dynamic_tags(dynamic: &Dynamic, geometry: &Geometry, edits: &mut Edits) {
    for (index, (tag, value)) in dynamic.entries.iter().enumerate() {
        if let Some(to) = geometry.map(*value).filter(|_| is_address(*tag)) {
            let entry = dynamic.offset + index as u64 * DYNAMIC_ENTRY;
            edits.write(entry + 8, to.to_le_bytes().to_vec());
        }
    }
}

/// Renumbers the sections of all symbols and moves the symbols of moved sections. Symbols in the
/// device code point to the marker.
pub(crate) fn symbols<S: ReadAt>(
    image: &Image<S>,
    geometry: &Geometry,
    table: &SectionTable,
    edits: &mut Edits,
) -> Result<(), ElfError> {
    let fat = image.sections.iter().position(|s| s.name == FAT_SECTION);
    renumber(image, table, edits, &|symbol, index| {
        let is_of_fat = fat.is_some_and(|fat| is_symbol_of(image, fat, symbol, index));
        if is_of_fat && symbol.st_type() == elf::STT_SECTION {
            symbol.st_value.set(LE, geometry.nobits.start);
        } else if is_of_fat {
            symbol.st_value.set(LE, geometry.marker.start);
            if symbol.st_size.get(LE) != 0 {
                symbol
                    .st_size
                    .set(LE, geometry.marker.end - geometry.marker.start);
            }
            return table.marker_index();
        } else if let Some(to) = geometry
            .map(symbol.st_value.get(LE))
            .filter(|_| symbol.st_type() != elf::STT_TLS)
        {
            symbol.st_value.set(LE, to);
        }
        table.renumber(index)
    })
}

/// Whether a symbol of the section `index` is one of the section `of`. Some tools remove or sort sections and
/// leave dynamic symbols with their old numbers, so the address must be there, too.
pub(crate) fn is_symbol_of<S>(
    image: &Image<S>,
    of: usize,
    symbol: &elf::Sym64<LE>,
    index: usize,
) -> bool {
    let section = &image.sections[of];
    index == of && (section.addr..=section.addr_end()).contains(&symbol.st_value.get(LE))
}

/// Renumbers everything that refers to a section by index. `change` may also change a symbol; it
/// returns the index of the symbol's section.
pub(crate) fn renumber<S: ReadAt>(
    image: &Image<S>,
    table: &SectionTable,
    edits: &mut Edits,
    change: &dyn Fn(&mut elf::Sym64<LE>, usize) -> usize,
) -> Result<(), ElfError> {
    for section in &image.sections {
        if !matches!(section.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM) || section.size == 0 {
            continue;
        }
        let mut bytes = image.section_bytes(section)?;
        for symbol in pods_mut::<elf::Sym64<LE>>(&mut bytes) {
            let index = symbol.st_shndx.get(LE);
            if index == elf::SHN_UNDEF || index.is_reserved() {
                continue;
            }
            let new_index = change(symbol, usize::from(index.0));
            symbol
                .st_shndx
                .set(LE, elf::SymbolSection(new_index as u16));
        }
        edits.write(section.offset, bytes);
    }
    for section in image
        .sections
        .iter()
        .filter(|s| s.has_bytes() && s.size > 0)
    {
        // Both are arrays of section indices; a group has a word of flags first (gABI).
        let first = match section.kind {
            elf::SHT_SYMTAB_SHNDX => 0,
            elf::SHT_GROUP => 1,
            _ => continue,
        };
        let mut bytes = image.section_bytes(section)?;
        for index in pods_mut::<object::U32<LE>>(&mut bytes)
            .iter_mut()
            .skip(first)
        {
            index.set(LE, table.renumber(index.get(LE) as usize) as u32);
        }
        edits.write(section.offset, bytes);
    }
    Ok(())
}

/// Moves the sections that make room for a program header, with their changes.
pub(crate) fn move_block<S: ReadAt>(
    image: &Image<S>,
    geometry: &Geometry,
    edits: &mut Edits,
) -> Result<(), ElfError> {
    let Some(moved) = &geometry.moved else {
        return Ok(());
    };
    let from = moved.from_offset..moved.from_offset + moved.size();
    let mut block = image.bytes(
        from.start,
        moved.size(),
        "the sections after the program headers",
    )?;
    edits.take_into(&from, &mut block);
    edits.zero(from.start, moved.size());
    edits.write(geometry.kept_offset(moved.to), block);
    Ok(())
}

/// Replaces the device code by the marker, and zeroes any device code that stays in the file.
pub(crate) fn device_code(geometry: &Geometry, marker: &[u8], edits: &mut Edits) {
    let fat_end = geometry.fat_offset + (geometry.fat.end - geometry.fat.start);
    let kept_end = geometry.kept_offset(geometry.kept);
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
