//! The plan of a host-only object: its layout, and edits to the copied pieces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use kpack_core::platform::FileExt;
use kpack_format::marker::SECTION_NAME;
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use super::layout::{Content, Filling, Layout, Piece};
use super::relocatable::{Relocatable, SectionHeader};
use super::symbols::Symbols;
use super::window::Window;
use super::wrappers::{DeviceContent, FatObject};
use kpack_core::elf::{BinaryError, MAGIC_SPLIT, POINTER, ReadAt, pods_mut, refuse};

/// The plan of a host-only object: pure data.
#[derive(Debug)]
pub(super) struct ObjectPlan {
    pieces: Vec<Piece>,
    /// Changed bytes by output offset, applied last.
    edits: Vec<(u64, Vec<u8>)>,
    size: u64,
    wrappers: usize,
    what: What,
}

/// What the sections of bundles have in the new object.
#[derive(Debug)]
enum What {
    Marker(Vec<u8>),
    /// Bundles: the offset of each in the new object, by its offset in the input.
    Bundles(BTreeMap<u64, u64>),
}

impl ObjectPlan {
    /// Plans the object with `marker` in place of each section of bundles. Everything before the
    /// first resized section keeps its offset; everything after it moves up, in the same order.
    pub(super) fn new<S: ReadAt>(
        object: &Relocatable<S>,
        fat: &FatObject,
        marker: &[u8],
    ) -> Result<Self, BinaryError> {
        let layout = Layout::of(object, fat, Filling::Marker(marker))?;
        let edits = edits(object, fat, marker, &layout)?;
        Ok(Self {
            pieces: layout.pieces,
            edits,
            size: layout.end,
            wrappers: fat.wrappers.len(),
            what: What::Marker(marker.to_vec()),
        })
    }

    /// Plans the object with bundles of other sizes, in bytes, by the offset of each in the input.
    pub(super) fn resized<S: ReadAt>(
        object: &Relocatable<S>,
        fat: &FatObject,
        sizes: &BTreeMap<u64, u64>,
    ) -> Result<Self, BinaryError> {
        let (mut in_sections, mut section_sizes) = (BTreeMap::new(), BTreeMap::new());
        for index in &fat.fat_sections {
            let section = &object.sections[*index];
            let start = section.sh_offset.get(LE);
            let align = section.sh_addralign.get(LE).max(1);
            if !align.is_power_of_two() {
                refuse!(
                    "`{}` is aligned to {align}; expected a power of two",
                    object.shown(*index)
                );
            }
            let mut end = 0u64;
            for (old, size) in sizes.range(start..start + section.sh_size.get(LE)) {
                let new = end.next_multiple_of(align);
                in_sections.insert((*index, old - start), new);
                end = new + size;
            }
            section_sizes.insert(*index, end);
        }
        let layout = Layout::of(object, fat, Filling::Bundles(&section_sizes))?;
        let edits = moved(object, fat, &layout, &in_sections, sizes)?;
        let start =
            |sections: &[SectionHeader], section: usize| sections[section].sh_offset.get(LE);
        let bundles = in_sections.into_iter().map(|((section, old), new)| {
            (start(&object.sections, section) + old, start(&layout.sections, section) + new)
        });
        Ok(Self {
            what: What::Bundles(bundles.collect()),
            pieces: layout.pieces,
            edits,
            size: layout.end,
            wrappers: fat.wrappers.len(),
        })
    }

    /// The offset of each bundle in the new object, by its offset in the input.
    pub(super) fn bundles(&self) -> impl Iterator<Item = (u64, u64)> {
        let bundles = match &self.what {
            What::Bundles(bundles) => Some(bundles),
            What::Marker(_) => None,
        };
        bundles.into_iter().flatten().map(|(old, new)| (*old, *new))
    }

    /// Replaces the planned marker by another of the same size.
    pub(super) fn set_marker(&mut self, marker: &[u8]) -> Result<(), BinaryError> {
        let planned = match &self.what {
            What::Marker(planned) if planned.len() == marker.len() => planned,
            _ => refuse!(
                "the marker needs {} bytes, which is not as planned: the file changed while it was read; run the command again",
                marker.len()
            ),
        };
        for piece in &mut self.pieces {
            if matches!(&piece.content, Content::New(bytes) if bytes == planned) {
                piece.content = Content::New(marker.to_vec());
            }
        }
        self.what = What::Marker(marker.to_vec());
        Ok(())
    }

    /// Size of the new object, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Writes the object to `output` at offset `base`, where nothing has been written yet, and
    /// checks the result.
    pub(super) fn apply(
        &self,
        source: &Window<'_>,
        output: &File,
        base: u64,
    ) -> Result<(), BinaryError> {
        for piece in &self.pieces {
            let at = base + piece.offset;
            match &piece.content {
                Content::New(bytes) => output.write_all_at(bytes, at)?,
                Content::Copy(range) => source.copy(range, output, at)?,
                Content::Bundles => {}
            }
        }
        for (offset, bytes) in &self.edits {
            output.write_all_at(bytes, base + offset)?;
        }
        self.check(Window::new(output, base, self.size))
    }

    /// Reads the written object back: its wrappers must be split, and a section must have the marker; or they must
    /// point to the bundles.
    fn check<S: ReadAt>(&self, written: S) -> Result<(), BinaryError> {
        let object = Relocatable::read(written)?;
        let content = object.device_code()?;
        let marker = match &self.what {
            What::Marker(marker) => marker,
            What::Bundles(bundles) => {
                let DeviceContent::Fat(fat) = content else {
                    refuse!(
                        "the new object has no wrappers; this is a bug in kpack; please report it"
                    );
                };
                let found = fat.wrappers.iter().map(|wrapper| wrapper.bundle.bundle_offset);
                let found = BTreeSet::from_iter(found);
                if found != bundles.values().copied().collect()
                    || fat.wrappers.len() != self.wrappers
                {
                    refuse!(
                        "the wrappers of the new object do not point to its bundles; this is a bug in kpack; please report it"
                    );
                }
                return Ok(());
            }
        };
        let split = matches!(content, DeviceContent::Split);
        let mut markers = 0;
        for (index, section) in object.sections.iter().enumerate() {
            if object.name(section) == SECTION_NAME.as_bytes() && object.bytes_of(index)? == *marker
            {
                markers += 1;
            }
        }
        if !split || markers == 0 {
            refuse!(
                "the host-only object is not as planned (wrappers split: {split}, markers: \
                 {markers}); this is a bug in kpack; please report it"
            );
        }
        Ok(())
    }

    /// Number of wrappers redirected to the marker.
    pub(super) fn wrappers(&self) -> usize {
        self.wrappers
    }
}

/// The header and the table of section headers, with their offsets.
fn headers<S>(layout: &Layout<'_, S>) -> Vec<(u64, Vec<u8>)> {
    let (header, sections) = (&layout.header, &layout.sections);
    vec![
        (0, pod::bytes_of(header).to_vec()),
        (header.e_shoff.get(LE), pod::bytes_of_slice(sections).to_vec()),
    ]
}

/// The edits to copied parts where a marker replaces the bundles.
fn edits<S: ReadAt>(
    object: &Relocatable<S>,
    fat: &FatObject,
    marker: &[u8],
    layout: &Layout<'_, S>,
) -> Result<Vec<(u64, Vec<u8>)>, BinaryError> {
    let output = |section: usize| layout.sections[section].sh_offset.get(LE);
    let input = |section: usize| object.sections[section].sh_offset.get(LE);
    let mut edits = headers(layout);
    for (index, wrapper) in fat.wrappers.iter().enumerate() {
        let at = output(wrapper.section) + wrapper.offset;
        edits.push((at, MAGIC_SPLIT.to_le_bytes().to_vec()));
        edits.push((at + 16, (index as u64).to_le_bytes().to_vec()));
        // Some linkers read the addend from the pointer itself too.
        let in_place = object.bytes(input(wrapper.section) + wrapper.offset + POINTER, 8)?;
        if in_place != [0; 8] {
            edits.push((at + POINTER, vec![0; 8]));
        }
        let (relocations, entry) = wrapper.relocation;
        let size = size_of::<elf::Rela64<LE>>() as u64;
        let mut rela = object.bytes(input(relocations) + entry, size)?;
        for rela in pods_mut::<elf::Rela64<LE>>(&mut rela) {
            rela.r_addend.set(LE, 0);
        }
        edits.push((output(relocations) + entry, rela));
    }
    // Symbols of bundles; clang writes none.
    let symbols = Symbols::read(object)?;
    for entry in &fat.symbols {
        let mut bytes = object.bytes(*entry, size_of::<elf::Sym64<LE>>() as u64)?;
        for symbol in pods_mut::<elf::Sym64<LE>>(&mut bytes) {
            symbol.st_value.set(LE, 0);
            if symbol.st_size.get(LE) != 0 {
                symbol.st_size.set(LE, marker.len() as u64);
            }
        }
        edits.push((output(symbols.table()) + (entry - symbols.offset()), bytes));
    }
    Ok(edits)
}

/// The edits to copied parts where bundles move: `in_sections` are their new offsets, by section and old offset.
fn moved<S: ReadAt>(
    object: &Relocatable<S>,
    fat: &FatObject,
    layout: &Layout<'_, S>,
    in_sections: &BTreeMap<(usize, u64), u64>,
    sizes: &BTreeMap<u64, u64>,
) -> Result<Vec<(u64, Vec<u8>)>, BinaryError> {
    let output = |section: usize| layout.sections[section].sh_offset.get(LE);
    let input = |section: usize| object.sections[section].sh_offset.get(LE);
    let mut edits = headers(layout);
    let symbols = Symbols::read(object)?;
    // A symbol of a bundle moves with it.
    let value = |index: usize| -> Result<u64, BinaryError> {
        let symbol = &symbols.all()[index];
        let old = symbol.st_value.get(LE);
        match symbols.section(index) {
            Some(section)
                if fat.fat_sections.contains(&section) && symbol.st_type() != elf::STT_SECTION =>
            {
                match in_sections.get(&(section, old)) {
                    Some(new) => Ok(*new),
                    None => refuse!(
                        "symbol {index} is at offset {old:#x} of `{}`, where no bundle begins",
                        object.shown(section)
                    ),
                }
            }
            _ => Ok(old),
        }
    };
    for entry in &fat.symbols {
        let index = ((entry - symbols.offset()) / size_of::<elf::Sym64<LE>>() as u64) as usize;
        let mut bytes = object.bytes(*entry, size_of::<elf::Sym64<LE>>() as u64)?;
        for symbol in pods_mut::<elf::Sym64<LE>>(&mut bytes) {
            let section = symbols.section(index).unwrap_or_default();
            let old = symbol.st_value.get(LE);
            symbol.st_value.set(LE, value(index)?);
            if symbol.st_size.get(LE) != 0 {
                if let Some(size) = sizes.get(&(input(section) + old)) {
                    symbol.st_size.set(LE, *size);
                }
            }
        }
        edits.push((output(symbols.table()) + (entry - symbols.offset()), bytes));
    }
    for wrapper in &fat.wrappers {
        let (relocations, entry) = wrapper.relocation;
        let size = size_of::<elf::Rela64<LE>>() as u64;
        let mut rela = object.bytes(input(relocations) + entry, size)?;
        let mut addend = 0;
        for rela in pods_mut::<elf::Rela64<LE>>(&mut rela) {
            let symbol = rela.r_sym(LE, false) as usize;
            let section = symbols.section(symbol).unwrap_or_default();
            let Some(new) = in_sections.get(&(section, wrapper.bundle.bundle_address)) else {
                refuse!(
                    "the wrapper at offset {:#x} of `{}` points to no bundle",
                    wrapper.offset,
                    object.shown(wrapper.section)
                );
            };
            addend = new.wrapping_sub(value(symbol)?) as i64;
            rela.r_addend.set(LE, addend);
        }
        edits.push((output(relocations) + entry, rela));
        // Some linkers read the addend from the pointer itself too.
        let in_place = object.bytes(input(wrapper.section) + wrapper.offset + POINTER, 8)?;
        if in_place != [0; 8] {
            let at = output(wrapper.section) + wrapper.offset + POINTER;
            edits.push((at, addend.to_le_bytes().to_vec()));
        }
    }
    Ok(edits)
}
