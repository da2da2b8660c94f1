//! Plans how one linked file becomes another: what is copied, what changes, and how the result must
//! look. A plan is a plain value that can be printed, checked and refused before any byte changes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{Dynamic, Relocation, Relocations, dynamic_symbols};
use super::headers::{Section, Segment};
use super::image::Image;
use super::records::{POINTER, WRAPPER_SIZE, pods};
use super::section_table::SectionTable;
use super::wrappers::is_absolute;
use super::{BinaryError, ReadAt, check, memory, refuse};
use crate::device_code::{PlannedWrapper, check_wrappers};
use crate::plan;
use crate::rewrite::{Edits, Gap, Gaps, Rewrite};

/// How to make one ELF file from another.
pub type ElfPlan = plan::BinaryPlan<Image<()>, Headers>;

/// The new headers.
#[derive(Debug, Clone)]
pub struct Headers {
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
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
    each: &mut dyn FnMut(Relocated, &mut Edits) -> Result<(), BinaryError>,
) -> Result<(), BinaryError> {
    // By address of the pointer: its target, and whether the target must be stored in the pointer
    // itself.
    let in_place = image.is_position_dependent();
    let planned = wrappers.iter().filter_map(|w| Some((w, w.pointer?)));
    let mut pointers: BTreeMap<u64, (u64, bool)> =
        planned.clone().map(|(w, pointer)| (w.address + POINTER, (pointer, in_place))).collect();

    let relocations = Relocations::read(image, dynamic)?;
    let symbols = dynamic_symbols(image, dynamic)?;
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
        each(Relocated { relocation, target, of_wrapper }, edits)?;
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
) -> Result<(), BinaryError> {
    let relative = image.machine.relative();
    if relocation.kind != relative && !is_absolute(image, relocation.kind) {
        refuse!(
            expected format_args!("{relative:?} or {:?}", image.machine.absolute()), found format_args!("{:?}", relocation.kind);
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

pub(crate) fn offset_of<S: ReadAt>(
    image: &Image<S>,
    address: u64,
    size: u64,
) -> Result<u64, BinaryError> {
    match image.offset_of(&(address..address.saturating_add(size))) {
        Some(offset) => Ok(offset),
        None => refuse!("address {address:#x} is not loaded from the file"),
    }
}

/// Everything a plan is made from.
pub(crate) struct Parts {
    /// The headers of the input.
    pub(crate) input: Image<()>,
    pub(crate) wrappers: Vec<PlannedWrapper>,
    pub(crate) marker: Range<u64>,
    /// Offset of the marker in the input.
    pub(crate) marker_offset: u64,
    pub(crate) gaps: Gaps,
    pub(crate) segments: Vec<Segment>,
    pub(crate) table: SectionTable,
    pub(crate) edits: Edits,
}

impl ElfPlan {
    /// Completes a plan for `image`: headers, and the tables at the end of the file.
    pub(crate) fn assemble<S: ReadAt>(image: &Image<S>, parts: Parts) -> Result<Self, BinaryError> {
        let Parts { input, gaps, segments, table, mut edits, .. } = parts;
        let headers = image.header.e_phoff.get(LE);
        let written = table.write(image, &gaps, &mut edits);

        let mut header = image.header;
        header.e_phoff.set(LE, gaps.output_offset(headers));
        header.e_phnum.set(LE, segments.len() as u16);
        header.e_shoff.set(LE, written.headers);
        header.e_shnum.set(LE, written.sections.len() as u16);
        header.e_shstrndx.set(LE, elf::SymbolSection(table.names_index() as u16));
        edits.write(0, object::pod::bytes_of(&header).to_vec());
        let mut table_bytes = Vec::new();
        segments.iter().for_each(|segment| segment.write(&mut table_bytes));
        edits.write(headers, table_bytes);

        Ok(Self {
            wrappers: parts.wrappers,
            marker_offset: gaps.output_offset(parts.marker_offset),
            marker: parts.marker,
            former_marker: Vec::new(),
            input: Box::new(input),
            headers: Headers { segments, sections: written.sections },
            rewrite: Rewrite::new(gaps, edits, written.kept_end, written.tail),
        })
    }

    /// Writes the result to the empty file `output`, then reads it back and checks it. `input` must be
    /// the planned file.
    pub fn apply(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        self.write(input, output)?;
        self.check(input, output)
    }

    /// Reads the result back and compares it with the plan and its input.
    ///
    /// # Errors
    /// [`BinaryError::Unsound`]: the fault is in the result, not in its sound input.
    pub(crate) fn check(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        read_back(input, output, self).map_err(plan::unsound)
    }
}

fn read_back(input: &File, output: &File, plan: &ElfPlan) -> Result<(), BinaryError> {
    let image = Image::read(output)?;
    image.validate()?;
    if image.segments != plan.headers.segments || image.sections != plan.headers.sections {
        refuse!("the headers differ from the plan");
    }
    check::sound(&image)?;
    check_wrappers(&image.device_code()?, &plan.wrappers)?;
    memory::check(&plan.input.over(input), &image, &plan.marker, plan.rewrite.holes())
}

impl fmt::Display for ElfPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |r: &Range<u64>| format!("{:#x}..{:#x}", r.start, r.end);
        let sizes = (self.input.size, self.output_size());
        writeln!(f, "{} bytes -> {} bytes", sizes.0, sizes.1)?;
        writeln!(f, "{} wrappers", self.wrappers.len())?;
        writeln!(f, "marker at {}", range(&self.marker))?;
        if self.rewrite.gaps().iter().all(|gap| gap.cut.is_empty()) {
            writeln!(f, "nothing is cut: no device code that would free a page")?;
        }
        for Gap { cut, room } in self.rewrite.gaps().iter() {
            let cut = range(cut);
            writeln!(f, "file offsets {cut} are cut, {room:#x} bytes inserted")?;
        }
        writeln!(f, "program headers:")?;
        for s in &self.headers.segments {
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
        for s in &self.headers.sections {
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
