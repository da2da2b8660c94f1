//! The plan of a host-only object: its layout, and edits to the copied pieces.

use std::fs::File;

use kpack_core::platform::FileExt;
use kpack_format::marker::SECTION_NAME;
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use super::layout::{Content, Layout, Piece};
use super::relocatable::Relocatable;
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
    marker: Vec<u8>,
}

impl ObjectPlan {
    /// Plans the object with `marker` in place of each section of bundles. Everything before the
    /// first resized section keeps its offset; everything after it moves up, in the same order.
    pub(super) fn new<S: ReadAt>(
        object: &Relocatable<S>,
        fat: &FatObject,
        marker: &[u8],
    ) -> Result<Self, BinaryError> {
        let layout = Layout::of(object, fat, marker)?;
        let edits = edits(object, fat, marker, &layout)?;
        Ok(Self {
            pieces: layout.pieces,
            edits,
            size: layout.end,
            wrappers: fat.wrappers.len(),
            marker: marker.to_vec(),
        })
    }

    /// Replaces the planned marker by another of the same size.
    pub(super) fn set_marker(&mut self, marker: &[u8]) -> Result<(), BinaryError> {
        if marker.len() != self.marker.len() {
            refuse!(
                "the marker needs {} bytes (planned {}): the file changed while it was read; run the command again",
                marker.len(),
                self.marker.len()
            );
        }
        for piece in &mut self.pieces {
            if matches!(&piece.content, Content::New(bytes) if *bytes == self.marker) {
                piece.content = Content::New(marker.to_vec());
            }
        }
        self.marker = marker.to_vec();
        Ok(())
    }

    /// Size of the host-only object, in bytes.
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
            }
        }
        for (offset, bytes) in &self.edits {
            output.write_all_at(bytes, base + offset)?;
        }
        self.check(Window::new(output, base, self.size))
    }

    /// Reads the written object back: its wrappers must be split, and a section must have the marker.
    fn check<S: ReadAt>(&self, written: S) -> Result<(), BinaryError> {
        let object = Relocatable::read(written)?;
        let split = matches!(object.device_code()?, DeviceContent::Split);
        let mut markers = 0;
        for (index, section) in object.sections.iter().enumerate() {
            if object.name(section) == SECTION_NAME.as_bytes()
                && object.bytes_of(index)? == self.marker
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

/// The edits to copied parts.
fn edits<S: ReadAt>(
    object: &Relocatable<S>,
    fat: &FatObject,
    marker: &[u8],
    layout: &Layout<'_, S>,
) -> Result<Vec<(u64, Vec<u8>)>, BinaryError> {
    let (header, sections) = (&layout.header, &layout.sections);
    let output = |section: usize| sections[section].sh_offset.get(LE);
    let input = |section: usize| object.sections[section].sh_offset.get(LE);
    let mut edits = vec![
        (0, pod::bytes_of(header).to_vec()),
        (header.e_shoff.get(LE), pod::bytes_of_slice(sections).to_vec()),
    ];
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
    for entry in &fat.symbols {
        let table = object.sections.iter().position(|section| {
            let start = section.sh_offset.get(LE);
            section.sh_type.get(LE) == elf::SHT_SYMTAB
                && (start..start + section.sh_size.get(LE)).contains(entry)
        });
        let Some(table) = table else { continue };
        let mut bytes = object.bytes(*entry, size_of::<elf::Sym64<LE>>() as u64)?;
        for symbol in pods_mut::<elf::Sym64<LE>>(&mut bytes) {
            symbol.st_value.set(LE, 0);
            if symbol.st_size.get(LE) != 0 {
                symbol.st_size.set(LE, marker.len() as u64);
            }
        }
        edits.push((output(table) + (entry - input(table)), bytes));
    }
    Ok(edits)
}
