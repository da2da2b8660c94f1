//! Plans how one image becomes another. A plan is a plain value that can be checked and refused before any byte
//! changes.

use std::fs::File;
use std::ops::Range;

use kpack_core::elf::{BinaryError, POINTER, ReadAt, WRAPPER_SIZE, pods_mut, refuse, unsupported};
use kpack_format::marker::{MAX_SIZE, Marker};
use object::LittleEndian as LE;
use object::pe;

use super::checksum::Sums;
use super::image::{Image, Section, debug_entries, other_debug_offset};
use super::{check, memory};
use crate::device_code::{DeviceCode, PlannedWrapper, check_wrappers};
use crate::plan;
use crate::rewrite::{Edits, Gaps, Rewrite};

/// How to make one PE file from another.
pub type PePlan = plan::BinaryPlan<Image<()>, Headers>;

/// What is new in the headers.
#[derive(Debug, Clone)]
pub struct Headers {
    sections: Vec<Section>,
    /// Offset of the checksum in the output, if it has one.
    checksum: Option<u64>,
}

/// Everything a plan is made from.
pub(super) struct Parts<'a> {
    pub(super) wrappers: Vec<PlannedWrapper>,
    pub(super) marker: Range<u64>,
    /// Offset of the marker in the input.
    pub(super) marker_offset: u64,
    pub(super) gaps: Gaps,
    /// The new section headers, with offsets in the output.
    pub(super) sections: Vec<Section>,
    pub(super) headers_size: u64,
    pub(super) image_size: u64,
    /// The new section number and value of a COFF symbol.
    pub(super) renumbered: &'a dyn Fn(u16, u32) -> (u16, u32),
    pub(super) edits: Edits,
}

impl PePlan {
    /// Completes a plan for `image`: headers, and what refers to sections and offsets.
    pub(super) fn assemble<S: ReadAt>(
        image: &Image<S>,
        parts: Parts<'_>,
    ) -> Result<Self, BinaryError> {
        let Parts { gaps, sections, mut edits, .. } = parts;
        redirect(image, &parts.wrappers, &mut edits)?;
        headers(image, &sections, (parts.headers_size, parts.image_size), &gaps, &mut edits);
        debug_directory(image, &gaps, &mut edits)?;
        symbols(image, parts.renumbered, &mut edits)?;
        let has_checksum = image.optional.check_sum.get(LE) != 0;
        Ok(Self {
            wrappers: parts.wrappers,
            marker: parts.marker,
            marker_offset: gaps.output_offset(parts.marker_offset),
            former_marker: Vec::new(),
            input: Box::new(image.over(())),
            headers: Headers { sections, checksum: has_checksum.then(|| image.checksum_offset()) },
            rewrite: Rewrite::new(gaps, edits, image.size, Vec::new()),
        })
    }

    /// Writes the result to the empty file `output`, then reads it back and checks it. `input` must be
    /// the planned file.
    pub fn apply(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        self.write(input, output)?;
        if let Some(sums) = self.sums() {
            sums.write(output)?;
        }
        self.check(input, output)
    }

    /// For the checksum of an output, if that has one.
    pub(super) fn sums(&self) -> Option<Sums> {
        self.headers.checksum.map(Sums::new)
    }

    /// Reads the result back and compares it with the plan and its input.
    ///
    /// # Errors
    /// [`BinaryError::Unsound`]: the fault is in the result, not in its sound input.
    pub(super) fn check(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        self.read_back(input, output).map_err(plan::unsound)
    }

    fn read_back(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        let image = Image::read(output)?;
        if image.sections != self.headers.sections {
            refuse!("the section headers differ from the plan");
        }
        check::sound(&image)?;
        check::written(&image)?;
        let code = image.device_code()?;
        check_wrappers(&code, &self.wrappers)?;
        for wrapper in code.split_wrappers() {
            let size = wrapper.marker_available.min(MAX_SIZE as u64);
            let marker = image.bytes(wrapper.marker_offset, size, "a marker")?;
            if Marker::read(&marker).is_err() {
                refuse!(
                    at wrapper.marker_offset;
                    "the marker at offset {:#x} is damaged", wrapper.marker_offset
                );
            }
        }
        if let (DeviceCode::Split(_), Some(left)) = (&code, image.code_left()?) {
            refuse!("`{}` still has device code in the file", left.name);
        }
        memory::check(&self.input.over(input), &image, &self.marker)
    }
}

/// Writes the wrappers.
fn redirect<S: ReadAt>(
    image: &Image<S>,
    wrappers: &[PlannedWrapper],
    edits: &mut Edits,
) -> Result<(), BinaryError> {
    for wrapper in wrappers {
        let Some(pointer) = wrapper.pointer else {
            continue;
        };
        let end = wrapper.address.saturating_add(WRAPPER_SIZE);
        let Some(offset) = image.offset_of(&(wrapper.address..end)) else {
            refuse!("the wrapper at {:#x} is not in the file", wrapper.address);
        };
        let pointer = image.base().wrapping_add(pointer);
        edits.write(offset, wrapper.magic.to_le_bytes().to_vec());
        edits.write(offset + POINTER, pointer.to_le_bytes().to_vec());
        edits.write(offset + 16, wrapper.reserved.to_le_bytes().to_vec());
    }
    Ok(())
}

/// Writes the headers. `sizes` are those of the headers and of the image.
fn headers<S>(
    image: &Image<S>,
    sections: &[Section],
    sizes: (u64, u64),
    gaps: &Gaps,
    edits: &mut Edits,
) {
    let mut header = image.header;
    header.number_of_sections.set(LE, sections.len() as u16);
    let symbols = match image.symbols().start {
        0 => 0,
        start => gaps.output_offset(start),
    };
    header.pointer_to_symbol_table.set(LE, symbols as u32);
    edits.write(image.header_offset, object::pod::bytes_of(&header).to_vec());

    let mut optional = image.optional;
    optional.size_of_headers.set(LE, sizes.0 as u32);
    optional.size_of_image.set(LE, sizes.1 as u32);
    let total = |sections: &[Section], flag: pe::SectionFlags, size: fn(&Section) -> u64| {
        let own = sections.iter().filter(|s| s.flags.0 & flag.0 != 0);
        own.map(size).fold(0, u64::wrapping_add) as u32
    };
    // Linkers count these in different ways, so only what changes is counted.
    let field = |old: u32, flag, size| {
        let (before, after) = (total(&image.sections, flag, size), total(sections, flag, size));
        old.wrapping_sub(before).wrapping_add(after)
    };
    let data =
        field(optional.size_of_initialized_data.get(LE), pe::IMAGE_SCN_CNT_INITIALIZED_DATA, |s| {
            s.file_size
        });
    optional.size_of_initialized_data.set(LE, data);
    let zeroed = field(
        optional.size_of_uninitialized_data.get(LE),
        pe::IMAGE_SCN_CNT_UNINITIALIZED_DATA,
        |s| s.virtual_size,
    );
    optional.size_of_uninitialized_data.set(LE, zeroed);
    let bytes = object::pod::bytes_of(&optional).to_vec();
    edits.write(image.optional_offset(), bytes);

    let table = sections.iter().flat_map(Section::to_bytes).collect();
    edits.write(image.table().start, table);
    let gone = image.sections.len().saturating_sub(sections.len()) as u64;
    let table_end = image.table().end;
    let start = table_end - gone * super::image::SECTION_HEADER;
    // What is after the new headers is cut out.
    let end = table_end.min(sizes.0).max(start);
    edits.zero(start, end - start);
}

/// Corrects the file offsets in the debug directory.
fn debug_directory<S: ReadAt>(
    image: &Image<S>,
    gaps: &Gaps,
    edits: &mut Edits,
) -> Result<(), BinaryError> {
    for (at, mut entry) in debug_entries(image)? {
        let offset = u64::from(entry.pointer_to_raw_data.get(LE));
        let right = match other_debug_offset(image, &entry) {
            None => offset,
            // Tools that move data may forget the offset. Nothing but the data tells that the address is right.
            Some(other) if has_codeview(image, other)? && !has_codeview(image, offset)? => other,
            Some(other) => {
                refuse!(
                    at offset;
                    "the debug directory has data at address {:#x}, which is offset {other:#x}, and at offset {offset:#x}; \
                     install the file as its linker wrote it",
                    entry.address_of_raw_data.get(LE)
                )
            }
        };
        let moved = gaps.output_offset(right);
        if offset != 0 && moved != offset {
            entry.pointer_to_raw_data.set(LE, moved as u32);
            edits.write(at, object::pod::bytes_of(&entry).to_vec());
        }
    }
    Ok(())
}

/// Whether the name of a file with debug information is at an offset.
fn has_codeview<S: ReadAt>(image: &Image<S>, offset: u64) -> Result<bool, BinaryError> {
    if offset + 4 > image.size {
        return Ok(false);
    }
    let start = image.bytes(offset, 4, "debug data")?;
    Ok([&b"RSDS"[..], b"NB10"].contains(&&*start))
}

/// Corrects the section numbers of COFF symbols.
fn symbols<S: ReadAt>(
    image: &Image<S>,
    renumbered: &dyn Fn(u16, u32) -> (u16, u32),
    edits: &mut Edits,
) -> Result<(), BinaryError> {
    let (mut bytes, symbols) = image.symbol_records()?;
    let records: &mut [pe::ImageSymbol] = pods_mut(&mut bytes);
    for index in symbols {
        let symbol = &mut records[index];
        let (number, value) = (symbol.section_number.get(LE), symbol.value.get(LE));
        let is_of_section = (1..=image.sections.len() as u16).contains(&number);
        if is_of_section {
            let (number, value) = renumbered(number, value);
            symbol.section_number.set(LE, number);
            symbol.value.set(LE, value);
        }
        let is_section = symbol.storage_class == pe::IMAGE_SYM_CLASS_STATIC && value == 0;
        let has_more = is_section && symbol.number_of_aux_symbols > 0;
        if let Some(aux) = records.get_mut(index + 1).filter(|_| has_more) {
            renumber_comdat(aux, image.sections.len() as u16, renumbered);
        }
    }
    if !bytes.is_empty() {
        edits.write(image.symbols().start, bytes);
    }
    Ok(())
}

/// Corrects the number of the section that a section goes with, in its symbol's second record.
fn renumber_comdat(
    record: &mut pe::ImageSymbol,
    sections: u16,
    renumbered: &dyn Fn(u16, u32) -> (u16, u32),
) {
    let bytes = object::pod::bytes_of_mut(record);
    let Ok((aux, _)) = object::pod::from_bytes_mut::<pe::ImageAuxSymbolSection>(bytes) else {
        return;
    };
    let number = aux.number.get(LE);
    if aux.selection == pe::IMAGE_COMDAT_SELECT_ASSOCIATIVE && (1..=sections).contains(&number) {
        aux.number.set(LE, renumbered(number, 0).0);
    }
}

/// Refuses what a rewrite would break, and what it could not lay out.
pub(super) fn can_be_rewritten<S: ReadAt>(image: &Image<S>) -> Result<(), BinaryError> {
    if image.is_signed() {
        return Err(BinaryError::Signed);
    }
    let mut end = image.table().end;
    let mut sections = Vec::from_iter(image.sections.iter().filter(|s| s.file_size > 0));
    sections.sort_by_key(|section| section.offset);
    for section in sections {
        if section.offset < end {
            unsupported!(
                "section `{}` shares bytes of the file with what is before it",
                section.name
            );
        }
        end = section.file_range().end;
    }
    let symbols = image.symbols();
    if symbols.start != 0 && symbols.start < end {
        unsupported!("the symbol table is not after all sections");
    }
    Ok(())
}
