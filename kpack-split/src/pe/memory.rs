//! Compares the memory that a result and its input load, by their sections: what a rewrite has to keep.
//!
//! It reads the two files alone, and shares no plan with what wrote the result.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;

use kpack_core::elf::{ElfError, ReadAt, WRAPPER_SIZE, refuse};

use super::image::{CODE_SECTIONS, Image, MARKER_SECTION, Section, debug_entries};
use crate::device_code::DeviceCode;

/// Bytes compared at a time.
const PIECE: u64 = 1 << 20;

/// Refuses a result that does not load what its input loads. Device code, the wrappers and the `marker` change.
pub(super) fn check<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    marker: &Range<u64>,
) -> Result<(), ElfError> {
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
) -> Result<Vec<String>, ElfError> {
    let wrappers = split.device_code()?;
    let marker = wrappers.split_wrappers().first();
    let marker = marker.map_or(0..0, |w| w.marker_address..w.marker_address + 1);
    differences(original, split, &marker)
}

fn differences<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    marker: &Range<u64>,
) -> Result<Vec<String>, ElfError> {
    let mut differences = headers(input, output);
    let skipped = skipped(input, marker)?;
    for section in input.sections.iter().filter(|s| is_host_code(s)) {
        let own = section.addresses();
        let Some(other) = output.sections.iter().find(|s| s.address == own.start) else {
            // Strip removes debug information, which comes last.
            if !is_debug_information(section) {
                differences.push(format!("section `{}` is missing", section.name));
            }
            continue;
        };
        let shape = |s: &Section| (s.name.clone(), s.memory_size(), s.flags.0);
        if shape(section) != shape(other) {
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
        let in_file = section.in_file().end.max(other.in_file().end);
        contents(
            input,
            output,
            (own.start..in_file, &section.name),
            &skipped,
            &mut differences,
        )?;
    }
    let known = |s: &&Section| input.sections.iter().any(|old| old.address == s.address);
    let added = output
        .sections
        .iter()
        .filter(|s| is_host_code(s) && !known(s));
    differences.extend(added.map(|s| format!("section `{}` is new", s.name)));
    Ok(differences)
}

fn is_host_code(section: &Section) -> bool {
    section.name != MARKER_SECTION && !CODE_SECTIONS.contains(&section.name.as_str())
}

fn is_debug_information(section: &Section) -> bool {
    section.name.starts_with(".debug") || section.name.starts_with(".gnu_debug")
}

/// Compares what the headers say of the image. Tools change the rest.
fn headers<A, B>(input: &Image<A>, output: &Image<B>) -> Vec<String> {
    let kept = |header: &pe::ImageFileHeader, optional: &pe::ImageOptionalHeader64| {
        let kind = pe::IMAGE_FILE_DLL.0 | pe::IMAGE_FILE_RELOCS_STRIPPED.0;
        (
            header.characteristics.get(LE).0 & kind,
            optional.address_of_entry_point.get(LE),
            optional.image_base.get(LE),
            optional.section_alignment.get(LE),
            optional.subsystem.get(LE).0,
            optional.dll_characteristics.get(LE).0,
            (
                optional.size_of_stack_reserve.get(LE),
                optional.size_of_stack_commit.get(LE),
                optional.size_of_heap_reserve.get(LE),
                optional.size_of_heap_commit.get(LE),
            ),
        )
    };
    let mut differences = Vec::new();
    if kept(&input.header, &input.optional) != kept(&output.header, &output.optional) {
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
fn skipped<S: ReadAt>(input: &Image<S>, marker: &Range<u64>) -> Result<Vec<Range<u64>>, ElfError> {
    let mut skipped = vec![marker.clone()];
    let code = input.device_code()?;
    if let DeviceCode::Fat(fat) = &code {
        let own = fat
            .wrappers
            .iter()
            .map(|w| w.address..w.address + WRAPPER_SIZE);
        skipped.extend(own);
    }
    let split = code.split_wrappers().iter();
    skipped.extend(split.map(|w| w.address..w.address + WRAPPER_SIZE));
    // Offsets in the file; what they must be is checked elsewhere.
    let debug = input.directory(pe::IMAGE_DIRECTORY_ENTRY_DEBUG);
    let entries = 0..debug_entries(input)?.len() as u64;
    let offsets = entries.map(|index| debug.start + index * ENTRY + OFFSET);
    skipped.extend(offsets.map(|offset| offset..offset + 4));
    skipped.sort_by_key(|range| range.start);
    Ok(skipped)
}

/// Size of an entry of the debug directory, and where its file offset is, in bytes.
const ENTRY: u64 = size_of::<pe::ImageDebugDirectory>() as u64;
const OFFSET: u64 = 24;

fn contents<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    (addresses, name): (Range<u64>, &str),
    skipped: &[Range<u64>],
    differences: &mut Vec<String>,
) -> Result<(), ElfError> {
    for start in addresses.clone().step_by(PIECE as usize) {
        let piece = start..(start + PIECE).min(addresses.end);
        let (before, after) = (input.memory(&piece)?, output.memory(&piece)?);
        let (Some(before), Some(after)) = (before, after) else {
            differences.push(format!(
                "section `{name}` at {start:#x} is not loaded any more"
            ));
            return Ok(());
        };
        if before == after {
            continue;
        }
        let is_known = |address: &u64| skipped.iter().any(|range| range.contains(address));
        let differing = (0..before.len()).filter(|at| before[*at] != after[*at]);
        let mut differing = differing.map(|at| start + at as u64);
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
