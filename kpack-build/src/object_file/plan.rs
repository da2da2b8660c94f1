//! Layout of a host-only object: a list of copied and new pieces, and edits to them.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use kpack_format::marker::SECTION_NAME;
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use super::relocatable::{DeviceContent, FatObject, Header, Relocatable, SectionHeader};
use super::window::{Window, copy};
use crate::elf::{ElfError, MAGIC_SPLIT, POINTER, ReadAt, pods_mut, refuse};

/// Alignment of a marker in its section, in bytes.
const MARKER_ALIGN: u64 = 8;
/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;

/// The layout of a host-only object: pure data.
#[derive(Debug)]
pub(super) struct Plan {
    pieces: Vec<Piece>,
    /// Changed bytes by output offset, applied last.
    edits: Vec<(u64, Vec<u8>)>,
    size: u64,
    wrappers: usize,
    marker: Vec<u8>,
}

/// A piece of the output.
#[derive(Debug)]
struct Piece {
    offset: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// A range of the input.
    Copy(Range<u64>),
    New(Vec<u8>),
}

/// A part of the input: the headers, a section, or the table of section headers.
#[derive(Debug, Clone, Copy)]
struct Part {
    offset: u64,
    size: u64,
    align: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Header,
    Section(usize),
    SectionTable,
}

impl Plan {
    /// Plans the object with `marker` in place of each section of bundles. Everything before the
    /// first resized section keeps its offset; everything after it moves up, in the same order.
    pub(super) fn new<S: ReadAt>(
        object: &Relocatable<S>,
        fat: &FatObject,
        marker: &[u8],
    ) -> Result<Self, ElfError> {
        let parts = parts(object)?;
        let (names, marker_name) = names_with_marker(object)?;
        let names_index = object.names_index;
        let changes_size = |part: &Part| match part.what {
            What::Section(index) => {
                fat.fat_sections.contains(&index)
                    || (index == names_index && names.len() != object.names.len())
            }
            _ => false,
        };

        let mut sections = object.sections.clone();
        let mut header = object.header;
        let mut pieces = Vec::new();
        let mut moved = false;
        let mut end: u64 = 0;
        for (index, part) in parts.iter().enumerate() {
            let gap_end = parts.get(index + 1).map_or(object.size, |next| next.offset);
            moved |= changes_size(part);
            let align = match part.what {
                What::Section(section) if fat.fat_sections.contains(&section) => MARKER_ALIGN,
                _ => part.align,
            };
            let offset = match moved {
                false => Some(part.offset),
                true => end.checked_next_multiple_of(align),
            };
            let Some(offset) = offset else {
                refuse!("{:?} cannot be aligned to {align}", part.what);
            };
            let content = match part.what {
                What::Section(section) if fat.fat_sections.contains(&section) => {
                    Content::New(marker.to_vec())
                }
                What::Section(section) if section == names_index && changes_size(part) => {
                    Content::New(names.clone())
                }
                _ => Content::Copy(part.offset..part.offset + part.size),
            };
            let size = match &content {
                Content::Copy(range) => range.end - range.start,
                Content::New(bytes) => bytes.len() as u64,
            };
            match part.what {
                What::Section(section) => {
                    sections[section].sh_offset.set(LE, offset);
                    sections[section].sh_size.set(LE, size);
                }
                What::SectionTable => header.e_shoff.set(LE, offset),
                What::Header => {}
            }
            pieces.push(Piece { offset, content });
            end = offset + size;

            let gap = part.offset + part.size..gap_end;
            if moved || parts.get(index + 1).is_some_and(changes_size) {
                refuse_content(object, &gap)?;
            } else if !gap.is_empty() {
                end = gap.end;
                pieces.push(Piece {
                    offset: gap.start,
                    content: Content::Copy(gap),
                });
            }
        }

        empty_sections(object, &parts, &mut sections, end);
        for section in &fat.fat_sections {
            let section = &mut sections[*section];
            section.sh_name.set(LE, marker_name);
            section.sh_addralign.set(LE, MARKER_ALIGN);
        }
        let edits = edits(object, fat, marker, &header, &sections)?;
        Ok(Self {
            pieces,
            edits,
            size: end,
            wrappers: fat.wrappers.len(),
            marker: marker.to_vec(),
        })
    }

    /// Replaces the planned marker by another of the same size.
    pub(super) fn set_marker(&mut self, marker: &[u8]) -> Result<(), ElfError> {
        if marker.len() != self.marker.len() {
            refuse!(
                "its marker needs {} bytes (planned {}): the file changed while it was read; run this again",
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
    pub(super) fn apply<S: ReadAt>(
        &self,
        source: &S,
        output: &File,
        base: u64,
    ) -> Result<(), ElfError> {
        for piece in &self.pieces {
            let at = base + piece.offset;
            match &piece.content {
                Content::New(bytes) => output.write_all_at(bytes, at)?,
                Content::Copy(range) => copy(source, range, output, at)?,
            }
        }
        for (offset, bytes) in &self.edits {
            output.write_all_at(bytes, base + offset)?;
        }
        self.check(Window::new(output, base, self.size))
    }

    /// Reads the written object back: it must be split, with every wrapper, and one marker for each
    /// section of bundles.
    fn check<S: ReadAt>(&self, written: S) -> Result<(), ElfError> {
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
                 {markers}); this is a fault of kpack"
            );
        }
        Ok(())
    }

    /// Number of wrappers redirected to the marker.
    pub(super) fn wrappers(&self) -> usize {
        self.wrappers
    }
}

/// The parts that have bytes, sorted by offset; refuses overlaps.
fn parts<S: ReadAt>(object: &Relocatable<S>) -> Result<Vec<Part>, ElfError> {
    let header = &object.header;
    let mut parts = vec![
        Part {
            offset: 0,
            size: size_of::<Header>() as u64,
            align: 1,
            what: What::Header,
        },
        Part {
            offset: header.e_shoff.get(LE),
            size: std::mem::size_of_val(object.sections.as_slice()) as u64,
            align: 8,
            what: What::SectionTable,
        },
    ];
    for (index, section) in object.sections.iter().enumerate() {
        let kind = section.sh_type.get(LE);
        let size = section.sh_size.get(LE);
        if index == 0 || kind == elf::SHT_NOBITS || kind == elf::SHT_NULL || size == 0 {
            continue;
        }
        parts.push(Part {
            offset: section.sh_offset.get(LE),
            size,
            align: alignment(section),
            what: What::Section(index),
        });
    }
    parts.sort_by_key(|part| part.offset);
    let mut end = 0;
    for part in &parts {
        let next = part.offset.checked_add(part.size);
        let Some(next) = next.filter(|next| part.offset >= end && *next <= object.size) else {
            refuse!(
                "{:?} at offset {:#x} of {:#x} bytes overlaps another part of the file, or ends \
                 past its end ({:#x})",
                part.what,
                part.offset,
                part.size,
                object.size
            );
        };
        if !part.align.is_power_of_two() {
            refuse!(
                "{:?} is aligned to {}; expected a power of two",
                part.what,
                part.align
            );
        }
        end = next;
    }
    Ok(parts)
}

/// The alignment of a section's bytes in the file: the section's own, or less if its offset has
/// less, even when that alignment is nonsense. So padding never adds more than the section's size.
fn alignment(section: &SectionHeader) -> u64 {
    let (offset, align) = (
        section.sh_offset.get(LE),
        section.sh_addralign.get(LE).max(1),
    );
    match offset.checked_rem(align) {
        Some(0) if offset > 0 => align,
        _ if align.is_power_of_two() => 1 << offset.trailing_zeros().min(63),
        _ => align,
    }
}

/// Sections without bytes in the file have an offset too: by convention, the end of the previous
/// section.
fn empty_sections<S>(
    object: &Relocatable<S>,
    parts: &[Part],
    sections: &mut [SectionHeader],
    end: u64,
) {
    let with_bytes: HashSet<usize> = parts
        .iter()
        .filter_map(|part| match part.what {
            What::Section(index) => Some(index),
            _ => None,
        })
        .collect();
    for index in 1..sections.len() {
        if with_bytes.contains(&index) {
            continue;
        }
        let old = object.sections[index].sh_offset.get(LE);
        let before = parts.iter().rev().find(|part| part.offset < old);
        let new = match before.map(|part| part.what) {
            Some(What::Section(before)) => {
                let align = sections[index].sh_addralign.get(LE).max(1);
                let bytes = &sections[before];
                let behind = bytes.sh_offset.get(LE) + bytes.sh_size.get(LE);
                match bytes.sh_offset.get(LE) == object.sections[before].sh_offset.get(LE)
                    && bytes.sh_size.get(LE) == object.sections[before].sh_size.get(LE)
                {
                    true => old,
                    false => behind.checked_next_multiple_of(align).unwrap_or(behind),
                }
            }
            _ => old,
        };
        sections[index].sh_offset.set(LE, new.min(end));
    }
}

/// The section names with the marker section's appended, and its offset.
fn names_with_marker<S: ReadAt>(object: &Relocatable<S>) -> Result<(Vec<u8>, u32), ElfError> {
    let mut wanted = SECTION_NAME.as_bytes().to_vec();
    wanted.push(0);
    let mut names = object.names.clone();
    let known = names.windows(wanted.len()).position(|at| at == wanted);
    let at = known.unwrap_or_else(|| {
        let at = names.len();
        names.extend(&wanted);
        at
    });
    match u32::try_from(at) {
        Ok(at) => Ok((names, at)),
        Err(_) => refuse!("its section names take {at} bytes; more than 4 GiB cannot be addressed"),
    }
}

/// The edits to copied parts.
fn edits<S: ReadAt>(
    object: &Relocatable<S>,
    fat: &FatObject,
    marker: &[u8],
    header: &Header,
    sections: &[SectionHeader],
) -> Result<Vec<(u64, Vec<u8>)>, ElfError> {
    let output = |section: usize| sections[section].sh_offset.get(LE);
    let input = |section: usize| object.sections[section].sh_offset.get(LE);
    let mut edits = vec![
        (0, pod::bytes_of(header).to_vec()),
        (
            header.e_shoff.get(LE),
            pod::bytes_of_slice(sections).to_vec(),
        ),
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

/// Moving parts drops bytes outside of any section, so they must be padding.
fn refuse_content<S: ReadAt>(object: &Relocatable<S>, gap: &Range<u64>) -> Result<(), ElfError> {
    let mut at = gap.start;
    while at < gap.end {
        let bytes = object.bytes(at, CHUNK.min(gap.end - at))?;
        if let Some(position) = bytes.iter().position(|byte| *byte != 0) {
            refuse!(
                "file offset {:#x} is neither padding nor in a section, so splitting would lose it",
                at + position as u64
            );
        }
        at += bytes.len() as u64;
    }
    Ok(())
}
