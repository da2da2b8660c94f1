//! The layout of a host-only object: copied and new pieces, and the headers that lead to them.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use kpack_format::marker::SECTION_NAME;
use object::LittleEndian as LE;
use object::elf;

use super::relocatable::{Header, Relocatable, SectionHeader};
use super::wrappers::FatObject;
use kpack_core::elf::{BinaryError, ReadAt, find_content, refuse};

/// Alignment of a marker in its section, in bytes.
const MARKER_ALIGN: u64 = 8;

/// A piece of the output.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// A range of the input.
    Copy(Range<u64>),
    New(Vec<u8>),
    /// Bundles, which somebody else writes.
    Bundles,
}

/// What takes the place of bundles.
#[derive(Debug, Clone, Copy)]
pub(super) enum Filling<'a> {
    /// This marker, in each section.
    Marker(&'a [u8]),
    /// Other bundles, of this size in all, by section.
    Bundles(&'a BTreeMap<usize, u64>),
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

/// A layout, part after part.
pub(super) struct Layout<'a, S> {
    object: &'a Relocatable<S>,
    fat: &'a FatObject,
    filling: Filling<'a>,
    /// The section names, with the marker section's if there is one.
    names: Vec<u8>,
    pub(super) header: Header,
    pub(super) sections: Vec<SectionHeader>,
    pub(super) pieces: Vec<Piece>,
    /// Whether a part before the next one was resized.
    moved: bool,
    /// The end of the last piece.
    pub(super) end: u64,
}

impl<'a, S: ReadAt> Layout<'a, S> {
    /// The layout with something else in place of each section of bundles. Everything before the first
    /// resized section keeps its offset; everything after it moves up, in the same order.
    pub(super) fn of(
        object: &'a Relocatable<S>,
        fat: &'a FatObject,
        filling: Filling<'a>,
    ) -> Result<Self, BinaryError> {
        let parts = parts(object)?;
        let (names, marker_name) = match filling {
            Filling::Marker(_) => names_with_marker(object)?,
            Filling::Bundles(_) => (object.names.clone(), 0),
        };
        let mut layout = Self {
            object,
            fat,
            filling,
            names,
            header: object.header,
            sections: object.sections.clone(),
            pieces: Vec::new(),
            moved: false,
            end: 0,
        };
        for (index, part) in parts.iter().enumerate() {
            let next = parts.get(index + 1);
            layout.place(part)?;
            let gap = part.offset + part.size..next.map_or(object.size, |next| next.offset);
            layout.place_gap(gap, next)?;
        }
        place_empty_sections(&mut layout, &parts);
        let marked = match filling {
            Filling::Marker(_) => &fat.fat_sections[..],
            Filling::Bundles(_) => &[],
        };
        for section in marked {
            let section = &mut layout.sections[*section];
            section.sh_name.set(LE, marker_name);
            section.sh_addralign.set(LE, MARKER_ALIGN);
        }
        Ok(layout)
    }

    /// What replaces a part, if it does not stay, and its size.
    fn replacement(&self, part: &Part) -> Option<(u64, Content)> {
        let new = |bytes: &[u8]| (bytes.len() as u64, Content::New(bytes.to_vec()));
        match (part.what, self.filling) {
            (What::Section(index), Filling::Marker(marker)) if self.is_fat(index) => {
                Some(new(marker))
            }
            (What::Section(index), Filling::Bundles(sizes)) if self.is_fat(index) => {
                Some((sizes.get(&index).copied().unwrap_or(0), Content::Bundles))
            }
            (What::Section(index), _) if index == self.object.names_index => {
                (self.names.len() != self.object.names.len()).then(|| new(&self.names))
            }
            _ => None,
        }
    }

    fn is_fat(&self, section: usize) -> bool {
        self.fat.fat_sections.contains(&section)
    }

    fn place(&mut self, part: &Part) -> Result<(), BinaryError> {
        let replacement = self.replacement(part);
        self.moved |= replacement.is_some();
        let align = match (part.what, self.filling) {
            (What::Section(section), Filling::Marker(_)) if self.is_fat(section) => MARKER_ALIGN,
            _ => part.align,
        };
        let offset =
            if self.moved { self.end.checked_next_multiple_of(align) } else { Some(part.offset) };
        let Some(offset) = offset else {
            refuse!("{:?} cannot be aligned to {align}", part.what);
        };
        let (size, content) = match replacement {
            Some(replacement) => replacement,
            None => {
                let range = part.offset..part.offset + part.size;
                (part.size, Content::Copy(range))
            }
        };
        match part.what {
            What::Section(section) => {
                self.sections[section].sh_offset.set(LE, offset);
                self.sections[section].sh_size.set(LE, size);
            }
            What::SectionTable => self.header.e_shoff.set(LE, offset),
            What::Header => {}
        }
        self.pieces.push(Piece { offset, content });
        self.end = offset + size;
        Ok(())
    }

    /// Copies what is between two parts, or drops it where parts move.
    fn place_gap(&mut self, gap: Range<u64>, next: Option<&Part>) -> Result<(), BinaryError> {
        if self.moved || next.is_some_and(|next| self.replacement(next).is_some()) {
            return refuse_content(self.object, &gap);
        }
        if !gap.is_empty() {
            self.end = gap.end;
            self.pieces.push(Piece { offset: gap.start, content: Content::Copy(gap) });
        }
        Ok(())
    }
}

/// The parts that have bytes, sorted by offset; refuses overlaps.
fn parts<S: ReadAt>(object: &Relocatable<S>) -> Result<Vec<Part>, BinaryError> {
    let header = &object.header;
    let mut parts = vec![
        Part { offset: 0, size: size_of::<Header>() as u64, align: 1, what: What::Header },
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
            refuse!("{:?} is aligned to {}; expected a power of two", part.what, part.align);
        }
        end = next;
    }
    Ok(parts)
}

/// The alignment of a section's bytes in the file: the section's own, or less if its offset has
/// less, even when that alignment is nonsense. So padding never adds more than the section's size.
fn alignment(section: &SectionHeader) -> u64 {
    let (offset, align) = (section.sh_offset.get(LE), section.sh_addralign.get(LE).max(1));
    match offset.checked_rem(align) {
        Some(0) if offset > 0 => align,
        _ if align.is_power_of_two() => 1 << offset.trailing_zeros().min(63),
        _ => align,
    }
}

/// Sections without bytes in the file have an offset too: by convention, the end of the previous
/// section.
fn place_empty_sections<S>(layout: &mut Layout<'_, S>, parts: &[Part]) {
    let (object, sections) = (layout.object, &mut layout.sections);
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
                let after = bytes.sh_offset.get(LE) + bytes.sh_size.get(LE);
                if bytes.sh_offset.get(LE) == object.sections[before].sh_offset.get(LE)
                    && bytes.sh_size.get(LE) == object.sections[before].sh_size.get(LE)
                {
                    old
                } else {
                    after.checked_next_multiple_of(align).unwrap_or(after)
                }
            }
            _ => old,
        };
        sections[index].sh_offset.set(LE, new.min(layout.end));
    }
}

/// The section names with the marker section's appended, and its offset.
fn names_with_marker<S: ReadAt>(object: &Relocatable<S>) -> Result<(Vec<u8>, u32), BinaryError> {
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
        Err(_) => refuse!("the section names take {at} bytes; more than 4 GiB cannot be addressed"),
    }
}

/// Moving parts drops bytes outside of any section, so they must be padding.
fn refuse_content<S: ReadAt>(object: &Relocatable<S>, gap: &Range<u64>) -> Result<(), BinaryError> {
    if let Some(at) = find_content(&object.source, gap.clone())? {
        refuse!(
            "file offset {at:#x} is neither padding nor in a section, so splitting would lose it"
        );
    }
    Ok(())
}
