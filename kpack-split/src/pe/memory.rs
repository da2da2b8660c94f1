//! Compares the memory that a result and its input load, by their sections: what a rewrite has to keep.
//!
//! It reads the two files alone, and shares no plan with what wrote the result.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;

use kpack_core::elf::{BinaryError, ReadAt, WRAPPER_SIZE, refuse};

use super::image::{Image, Section, debug_entries};
use crate::device_code::DeviceCode;

/// What differs where overlays do.
const OVERLAY: &str = "the bytes after the last section";
/// Bytes compared at a time.
const PIECE: u64 = 1 << 20;

/// Refuses a result that does not load what its input loads. Device code, the wrappers and the `marker` change.
pub(super) fn check<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    marker: &Range<u64>,
) -> Result<(), BinaryError> {
    let differences = differences(input, output, marker)?;
    match differences.first() {
        Some(difference) => refuse!("{difference}"),
        None => Ok(()),
    }
}

/// Returns differences between the host code of a fat binary and its split binary, beyond what
/// splitting changes; empty if they agree. Both may have been stripped.
pub fn compare<A: ReadAt, B: ReadAt>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, BinaryError> {
    let wrappers = split.device_code()?;
    let marker =
        wrappers.split_wrappers().first().map_or(0..0, |w| w.marker_address..w.marker_address + 1);
    differences(original, split, &marker)
}

fn differences<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    marker: &Range<u64>,
) -> Result<Vec<String>, BinaryError> {
    let mut differences = headers(input, output);
    if !input.has_same_overlay(output)? {
        differences.push(format!("{OVERLAY} differ"));
    }
    let skipped = skipped(input, marker)?;
    let is_same = |old: &Section, new: &Section| identity(input, old) == identity(output, new);
    for section in input.sections.iter().filter(|s| !s.is_device()) {
        let own = section.addresses();
        let Some(other) = output.sections.iter().find(|s| is_same(section, s)) else {
            // Strip removes debug information, which comes last.
            if !section.is_debug_information() {
                differences.push(format!("section `{}` is missing", section.name));
            }
            continue;
        };
        let shape = |s: &Section| (s.name.clone(), s.memory_size(), s.flags.0);
        let takes_over =
            takes_over_code(input, section, other) || takes_over_code(output, other, section);
        if shape(section) != shape(other) && !takes_over {
            differences.push(format!(
                "section `{}` of {:#x} bytes, flags {:#x}, became `{}` of {:#x} bytes, flags {:#x}",
                section.name,
                section.memory_size(),
                section.flags.0,
                other.name,
                other.memory_size(),
                other.flags.0
            ));
            continue;
        }
        let in_file = other.in_file();
        let (before, after) = (section.in_file().end, own.start + (in_file.end - in_file.start));
        // What a section has in the file after its end is padding.
        let in_file = if takes_over { before.min(after) } else { before.max(after) };
        contents(
            input,
            output,
            (own.start..in_file, other.address, &section.name),
            &skipped,
            &mut differences,
        )?;
    }
    let known = |s: &&Section| input.sections.iter().any(|old| is_same(old, s));
    let added = output.sections.iter().filter(|s| !s.is_device() && !known(s));
    differences.extend(added.map(|s| format!("section `{}` is new", s.name)));
    Ok(differences)
}

/// Whether the only difference is that `section` of an image grew over the addresses of device code, which moved: Windows
/// loads no image with a hole.
fn takes_over_code<S>(image: &Image<S>, section: &Section, grown: &Section) -> bool {
    let align = image.section_alignment();
    let end = |section: &Section| section.addresses().end.next_multiple_of(align);
    let is_there = |code: &Section| {
        code.is_device() && code.address == end(section) && end(grown) == end(code)
    };
    (&section.name, section.flags) == (&grown.name, grown.flags)
        && image.sections.iter().any(is_there)
}

/// What tells a section from others: its address; of debug information, which makes room for device code, its name, and
/// how many sections of that name are before it.
fn identity<'a, S>(image: &Image<S>, section: &'a Section) -> (&'a str, u64) {
    if !section.is_debug_information() {
        return ("", section.address);
    }
    let same = image.sections.iter().filter(|s| s.name == section.name);
    let before = same.filter(|s| s.address < section.address);
    (&section.name, before.count() as u64)
}

/// What the headers say of an image, wherever its sections are. Tools change the rest.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    flags: u16,
    base: u64,
    alignment: u32,
    subsystem: (u16, u16),
    /// Reserved and committed sizes of stack and heap.
    sizes: [u64; 4],
}

impl Kind {
    fn of<S>(image: &Image<S>) -> Self {
        let optional = &image.optional;
        let known = pe::IMAGE_FILE_DLL.0 | pe::IMAGE_FILE_RELOCS_STRIPPED.0;
        Self {
            flags: image.header.characteristics.get(LE).0 & known,
            base: image.base(),
            alignment: optional.section_alignment.get(LE),
            subsystem: (optional.subsystem.get(LE).0, optional.dll_characteristics.get(LE).0),
            sizes: [
                optional.size_of_stack_reserve.get(LE),
                optional.size_of_stack_commit.get(LE),
                optional.size_of_heap_reserve.get(LE),
                optional.size_of_heap_commit.get(LE),
            ],
        }
    }
}

/// Compares what the headers say of the images.
fn headers<A, B>(input: &Image<A>, output: &Image<B>) -> Vec<String> {
    let mut differences = Vec::new();
    let entries = [&input.optional, &output.optional].map(|o| o.address_of_entry_point.get(LE));
    if Kind::of(input) != Kind::of(output) || entries[0] != entries[1] {
        differences.push(
            "kind, entry point, address, subsystem, flags or stack in the headers differ"
                .to_owned(),
        );
    }
    for index in 0..pe::IMAGE_NUMBEROF_DIRECTORY_ENTRIES {
        // A signature comes after a split.
        if index == pe::IMAGE_DIRECTORY_ENTRY_SECURITY {
            continue;
        }
        let (old, new) = (input.directory(index), output.directory(index));
        if old != new {
            differences.push(format!(
                "data directory {index} was at {:#x}..{:#x} and is now at {:#x}..{:#x}",
                old.start, old.end, new.start, new.end
            ));
        }
    }
    differences
}

/// The addresses with other contents, in order.
fn skipped<S: ReadAt>(
    input: &Image<S>,
    marker: &Range<u64>,
) -> Result<Vec<Range<u64>>, BinaryError> {
    let mut skipped = vec![marker.clone()];
    let code = input.device_code()?;
    if let DeviceCode::Fat(fat) = &code {
        let own = fat.wrappers.iter().map(|w| w.address..w.address + WRAPPER_SIZE);
        skipped.extend(own);
    }
    let split = code.split_wrappers().iter();
    skipped.extend(split.map(|w| w.address..w.address + WRAPPER_SIZE));
    // What they must be is checked elsewhere.
    skipped.extend(file_offsets(input)?);
    skipped.sort_by_key(|range| range.start);
    Ok(skipped)
}

/// The addresses of the file offsets in the debug directory.
fn file_offsets<S: ReadAt>(image: &Image<S>) -> Result<Vec<Range<u64>>, BinaryError> {
    let debug = image.directory(pe::IMAGE_DIRECTORY_ENTRY_DEBUG);
    let entries = 0..debug_entries(image)?.len() as u64;
    let size = size_of::<pe::ImageDebugDirectory>() as u64;
    let offsets = entries.map(|index| debug.start + index * size + 24);
    Ok(offsets.map(|offset| offset..offset + 4).collect())
}

fn contents<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    (addresses, at, name): (Range<u64>, u64, &str),
    skipped: &[Range<u64>],
    differences: &mut Vec<String>,
) -> Result<(), BinaryError> {
    for start in addresses.clone().step_by(PIECE as usize) {
        let piece = start..(start + PIECE).min(addresses.end);
        let start_after = at + (piece.start - addresses.start);
        let moved = start_after..start_after + (piece.end - piece.start);
        let (before, after) = (input.memory(&piece)?, output.memory(&moved)?);
        let (Some(before), Some(after)) = (before, after) else {
            differences.push(format!("section `{name}` at {start:#x} is not loaded any more"));
            return Ok(());
        };
        if before == after {
            continue;
        }
        let is_known = |address: &u64| skipped.iter().any(|range| range.contains(address));
        let mut differing =
            (0..before.len()).filter(|at| before[*at] != after[*at]).map(|at| start + at as u64);
        if let Some(address) = differing.find(|address| !is_known(address)) {
            let at = (address - start) as usize;
            differences.push(format!(
                "section `{name}` at {address:#x}: {:#04x} became {:#04x}",
                before[at], after[at]
            ));
            return Ok(());
        }
    }
    Ok(())
}
