//! Compares host binaries for Windows that were built for different targets.

use std::fs::File;
use std::ops::Range;

use super::outcome::{Found, Same};
use super::text::texts_of;
use super::unit_ids::{LONGEST_ID, UNIT_ID, is_unit_id};
use crate::moved::{Moves, Part};
use kpack_split::elf::BinaryError;
use kpack_split::pe::{Image, Section, Shape, Symbol};

/// Said of an ID or a time that differs.
const IDENTITY: &str = "build ID or time stamp only; linkers derive the ID from all that they link, device code \
                        included";

/// As [`super::compare`], if the markers are the same.
pub(super) fn compare(one: &Image<File>, other: &Image<File>) -> Result<Same, BinaryError> {
    let (ours, theirs) = (one.shape()?, other.shape()?);
    if !differences_of(&ours, &theirs)?.is_empty() {
        return Ok(Same::No);
    }
    let addresses = |image: &Image<File>| -> Vec<u64> {
        let sections = image.host_sections();
        sections.map(|section| section.address).collect()
    };
    Ok(Same::of(Found {
        has_moved: addresses(one) != addresses(other),
        has_other_units: units(&ours).ne(units(&theirs)),
        other_id: (one.identity()? != other.identity()?).then_some(IDENTITY),
    }))
}

/// What differs, besides what a build for other targets changes: sections, and what is in headers and tables.
pub(crate) fn differences(
    one: &Image<File>,
    other: &Image<File>,
) -> Result<Vec<String>, BinaryError> {
    differences_of(&one.shape()?, &other.shape()?)
}

fn differences_of(
    ours: &Shape<'_, File>,
    theirs: &Shape<'_, File>,
) -> Result<Vec<String>, BinaryError> {
    let (one, other) = (ours.image(), theirs.image());
    let mut found = ours.differences(theirs)?;
    if symbols(ours) != symbols(theirs) {
        found.push("the symbols");
    }
    let mut found = Vec::from_iter(found.into_iter().map(str::to_owned));
    let pairs = Vec::from_iter(one.host_sections().zip(other.host_sections()));
    if pairs.iter().any(|(a, b)| a.name != b.name) {
        return Ok(found);
    }
    let known = one.addresses()?;
    // Nothing refers to debug information and relocations.
    let ranges = pairs.iter().filter(|(a, _)| !a.is_debug_information() && a.name != ".reloc");
    let ranges = ranges.map(|(a, b)| (a.addresses(), b.address));
    let ranges = ranges.chain([(one.headers(), 0)]);
    let moves = Moves::new(ranges, |_, address, size| known.base_of(address, size));
    let masks = (one.varying()?, other.varying()?);
    for (a, b) in pairs {
        let part = Part {
            addresses: a.addresses(),
            is_loaded: !a.is_debug_information(),
            is_code: a.is_code(),
            has_relative: false,
        };
        let (mut ours, mut theirs) = (contents(one, a, &masks.0)?, contents(other, b, &masks.1)?);
        let size = ours.len().max(theirs.len());
        ours.resize(size, 0);
        theirs.resize(size, 0);
        // Where addresses are fixed, a text may look like one.
        let has_same_texts =
            || !known.is_fixed() || !is_data(a) || texts_of(&ours) == texts_of(&theirs);
        if !has_same_texts() || !moves.explain(&part, &ours, &theirs) {
            found.push(format!("section `{}`", a.name));
        }
    }
    Ok(found)
}

/// Whether it has texts, and is no table of names.
fn is_data(section: &Section) -> bool {
    [".rdata", ".data"].contains(&section.name.as_str())
}

/// The texts in data, without what varies between builds.
pub(crate) fn texts(image: &Image<File>) -> Vec<String> {
    let masks = image.varying().unwrap_or_default();
    let data = image.host_sections().filter(|section| is_data(section));
    let bytes = data.map(|section| contents(image, section, &masks).unwrap_or_default());
    bytes.flat_map(|bytes| texts_of(&bytes)).collect()
}

/// The names of symbols that have IDs of compilation units.
fn units<'a>(shape: &'a Shape<'_, File>) -> impl Iterator<Item = &'a [u8]> {
    let names = shape.symbols.iter().map(|symbol| &*symbol.name);
    names.filter(|name| is_unit_id(name))
}

/// The symbols without IDs of compilation units.
fn symbols(shape: &Shape<'_, File>) -> Vec<Symbol> {
    let mut symbols = shape.symbols.clone();
    for symbol in &mut symbols {
        if is_unit_id(&symbol.name) {
            symbol.name.truncate(UNIT_ID.len());
        }
    }
    symbols.sort();
    symbols
}

/// The bytes of a section, without those at `masks` and IDs of compilation units.
fn contents(
    image: &Image<File>,
    section: &Section,
    masks: &[Range<u64>],
) -> Result<Vec<u8>, BinaryError> {
    let own = section.in_file();
    let mut bytes = image.section_bytes(section)?;
    for mask in masks {
        let (start, end) = (mask.start.max(own.start), mask.end.min(own.end));
        if start < end {
            bytes[(start - own.start) as usize..(end - own.start) as usize].fill(0);
        }
    }
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(UNIT_ID.len()).position(|w| w == UNIT_ID) {
        let start = at + next;
        at = start + UNIT_ID.len();
        let longest = bytes.len().min(at + LONGEST_ID + 1);
        let end = bytes[at..longest].iter().position(|byte| *byte == 0);
        let end = end.map_or(longest, |end| at + end);
        if is_unit_id(&bytes[start..end]) {
            bytes[at..end].fill(0);
        }
    }
    Ok(bytes)
}
