//! Compares the memory that a result and its input map, by their segments: what a rewrite has to keep.
//!
//! It reads the two files alone. It shares no plan with what wrote the result, and asks no section
//! header what is kept, since these may be wrong.

use std::collections::BTreeSet;
use std::ops::Range;

use kpack_format::marker::SECTION_NAME;
use object::elf;

use super::dynamic::{Dynamic, Words, is_address};
use super::headers::{SEGMENT_ENTRY, Segment};
use super::image::Image;
use super::records::{FAT_SECTION, POINTER, WRAPPER_SIZE};
use super::refuse;
use super::{BinaryError, DeviceCode, ReadAt};
use crate::ranges::merged;

/// Bytes compared at a time.
const CHUNK: u64 = 1 << 20;
/// The size of the ELF header.
const ELF_HEADER: u64 = 64;
/// The size of a RELA entry and of a symbol.
pub(super) const RECORD: u64 = 24;

/// Refuses a result that does not map what its input maps, or has other contents there. Device code, the
/// headers, the wrappers and the `marker` change, and words that refer to what moved.
pub(super) fn check<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    marker: &Range<u64>,
) -> Result<(), BinaryError> {
    let changes = Changes::new(input, output, marker)?;
    let memory = (&Memory::new(input), &Memory::new(output));
    let moved = &Memory::new(output);
    for load in loads(input) {
        let end = load.vaddr + load.memsz;
        let mut at = load.vaddr;
        while at < end {
            let skipped = changes.skipped.partition_point(|range| range.end <= at);
            let skipped = changes.skipped.get(skipped);
            if let Some(skipped) = skipped.filter(|range| range.start <= at) {
                at = skipped.end;
                continue;
            }
            let borders =
                loads(output).flat_map(|s| [s.vaddr, s.file_backed_end(), s.vaddr + s.memsz]);
            let borders = borders.chain([load.file_backed_end()]);
            let next = borders.chain(skipped.map(|range| range.start));
            let next = next.filter(|border| *border > at).fold(end, u64::min);
            // Zeroed memory can be of any size, and is in no file.
            if is_zeroed(load, at) && loads(output).any(|load| is_zeroed(load, at)) {
                at = next;
                continue;
            }
            let piece = at..next.min(at - at % 8 + CHUNK);
            let before = contents(input, &piece)?.unwrap_or_default();
            match contents(output, &piece)? {
                Some(after) if after == before => {}
                Some(after) => changes.explain(memory, moved, piece.start, &before, &after)?,
                // Padding next to the device code. Whole pages are mapped.
                None if changes.is_beside_code(&piece)
                    && (before.iter().all(|byte| *byte == 0)
                        || in_page(output, &piece)? == before) => {}
                None => refuse!(
                    "addresses {:#x}..{:#x} are not mapped any more",
                    piece.start,
                    piece.end
                ),
            }
            at = piece.end;
        }
    }
    Ok(())
}

fn loads<S>(image: &Image<S>) -> impl Iterator<Item = &Segment> {
    image.segments.iter().filter(|s| s.is_load() && s.memsz > 0)
}

/// Whether a segment has zeroed memory at an address.
fn is_zeroed(load: &Segment, address: u64) -> bool {
    (load.file_backed_end()..load.vaddr + load.memsz).contains(&address)
}

/// The memory of one segment, before relocations; `None` if none maps all of it.
fn contents<S: ReadAt>(
    image: &Image<S>,
    addresses: &Range<u64>,
) -> Result<Option<Vec<u8>>, BinaryError> {
    let maps = |s: &&Segment| s.vaddr <= addresses.start && addresses.end <= s.vaddr + s.memsz;
    let Some(load) = loads(image).find(maps) else {
        return Ok(None);
    };
    let in_file = load.file_backed_end().clamp(addresses.start, addresses.end);
    let offset = load.offset + (addresses.start - load.vaddr);
    let mut bytes = match in_file - addresses.start {
        0 => Vec::new(),
        size => image.bytes(offset, size, "loaded memory")?,
    };
    bytes.resize((addresses.end - addresses.start) as usize, 0);
    Ok(Some(bytes))
}

/// The contents of the page that a segment begins in, before it.
fn in_page<S: ReadAt>(image: &Image<S>, addresses: &Range<u64>) -> Result<Vec<u8>, BinaryError> {
    let size = addresses.end - addresses.start;
    let begins = |s: &&Segment| s.vaddr == addresses.end && size <= s.vaddr % 4096;
    match loads(image).find(begins) {
        Some(load) if size <= load.offset => image.bytes(load.offset - size, size, "loaded memory"),
        _ => Ok(Vec::new()),
    }
}

/// The words of a file's memory.
struct Memory<'a, S> {
    image: &'a Image<S>,
    words: Words<'a, S>,
}

impl<'a, S: ReadAt> Memory<'a, S> {
    fn new(image: &'a Image<S>) -> Self {
        Self { image, words: Words::new(image) }
    }

    /// The word at an address, 0 if nothing maps it.
    fn word(&self, address: u64) -> Result<u64, BinaryError> {
        if let Some(word) = self.words.get(address)? {
            return Ok(word);
        }
        // Where the bytes of a file end.
        let bytes = contents(self.image, &(address..address.saturating_add(8)))?;
        let bytes = bytes.unwrap_or_default().into_iter();
        Ok(bytes.rev().fold(0, |word, byte| word << 8 | u64::from(byte)))
    }
}

/// What a rewrite changes, as its input and its result have it.
struct Changes {
    /// Addresses with other contents, in order.
    skipped: Vec<Range<u64>>,
    /// The device code of the input, and that of the output.
    code: Range<u64>,
    new_code: Range<u64>,
    /// Addresses of the wrappers, in order.
    wrappers: Vec<u64>,
    /// How far contents moved.
    moved: Option<u64>,
    /// Addresses of RELA tables and of symbols.
    rela: Vec<Range<u64>>,
    symbols: Range<u64>,
}

impl Changes {
    fn new<A: ReadAt, B: ReadAt>(
        input: &Image<A>,
        output: &Image<B>,
        marker: &Range<u64>,
    ) -> Result<Self, BinaryError> {
        let before = input.device_code()?;
        let (code, mut wrappers): (_, Vec<u64>) = match &before {
            DeviceCode::Fat(fat) => {
                let before = fat.split_before.iter().map(|w| w.address);
                let own = fat.wrappers.iter().map(|w| w.address);
                (fat.addresses.clone(), own.chain(before).collect())
            }
            DeviceCode::Split(wrappers) => {
                let section = input.section(FAT_SECTION)?.map(|(_, s)| s.addr..s.addr_end());
                let wrappers = wrappers.iter().map(|w| w.address);
                (section.unwrap_or(0..0), wrappers.collect())
            }
            DeviceCode::None(_) => (0..0, Vec::new()),
        };
        wrappers.sort_unstable();
        let added = output.segments.len().saturating_sub(input.segments.len()) as u64;
        let first = loads(input).find(|s| s.offset == 0);
        let mut skipped = vec![code.clone(), marker.clone()];
        skipped.extend(first.map(|s| s.vaddr..s.vaddr + ELF_HEADER));
        skipped.extend(input.headers().map(|at| at.start..at.end + added * SEGMENT_ENTRY));
        skipped.extend(wrappers.iter().map(|at| *at..at + WRAPPER_SIZE));
        // The markers of objects that were split before the link are replaced in place.
        if let DeviceCode::Fat(_) = before {
            let markers = before.split_wrappers().iter().map(|w| w.marker_address);
            let markers = BTreeSet::from_iter(markers);
            let sections = input.sections.iter().filter(|s| s.name == SECTION_NAME);
            let sections = sections.map(|s| s.addr..s.addr_end());
            skipped.extend(sections.filter(|own| markers.range(own.clone()).next().is_some()));
        }
        let skipped = merged(skipped);

        let (old, new) = (Dynamic::read(input)?, Dynamic::read(output)?);
        let tags = old.entries.iter().zip(&new.entries);
        let tags = tags.filter(|((tag, _), _)| is_address(*tag));
        let tags = tags.map(|((_, old), (_, new))| (*old, *new));
        let contents = |image: &[Segment]| -> Vec<u64> {
            let kinds = [elf::PT_NOTE, elf::PT_INTERP, elf::PT_GNU_PROPERTY];
            let named = image.iter().filter(|s| kinds.contains(&s.kind));
            named.map(|s| s.vaddr).collect()
        };
        let named = contents(&input.segments).into_iter().zip(contents(&output.segments));
        let mut by = tags.chain(named).filter(|(old, new)| old != new);
        let mut moved = None;
        if let Some((old, new)) = by.next() {
            moved = Some(new.wrapping_sub(old));
            if by.any(|(old, new)| Some(new.wrapping_sub(old)) != moved) {
                refuse!("the sections did not move together");
            }
        }
        let rela = old.rela_tables()?;
        let symbols = old.symbol_section(input);
        let symbols = symbols.map_or(0..0, |s| s.addr..s.addr_end());
        let new_code = match output.device_code()? {
            DeviceCode::Fat(fat) => fat.addresses,
            _ => 0..0,
        };
        Ok(Self { skipped, code, new_code, wrappers, moved, rela, symbols })
    }

    /// Whether the addresses end where the device code begins, within a page, or begin where it ends.
    fn is_beside_code(&self, addresses: &Range<u64>) -> bool {
        let Range { start, end } = self.code;
        addresses.start == end || addresses.end == start && start - addresses.start < 4096
    }

    /// Refuses a difference that has no reason. Each byte is judged alone, because contents that move can end within
    /// a word whose other bytes stay. `moved` is the output once more, for contents where they moved to.
    fn explain<A: ReadAt, B: ReadAt>(
        &self,
        (input, output): (&Memory<'_, A>, &Memory<'_, B>),
        moved: &Memory<'_, B>,
        start: u64,
        before: &[u8],
        after: &[u8],
    ) -> Result<(), BinaryError> {
        for (index, (old, new)) in before.iter().zip(after).enumerate() {
            let address = start + index as u64;
            let is_filled = *old == 0 && self.new_code.contains(&address);
            if old == new || is_filled {
                continue;
            }
            // Only words hold addresses and numbers of sections.
            let word = address - address % 8;
            let (was, is) = (input.word(word)?, output.word(word)?);
            if self.is_known(input, word, was, is)? {
                continue;
            }
            // What moved leaves zeroes, and is where the device code was.
            let to = self.moved.map(|by| address.wrapping_add(by));
            if let Some(to) = to.filter(|to| *new == 0 && self.code.contains(to)) {
                let there = moved.word(to - address % 8)?;
                if there.to_le_bytes()[(address % 8) as usize] == *old
                    || self.is_known(input, word, was, there)?
                {
                    continue;
                }
            }
            refuse!("the byte at address {address:#x} changed from {old:#04x} to {new:#04x}");
        }
        Ok(())
    }

    /// Whether the word at an address may become another one.
    fn is_known<S: ReadAt>(
        &self,
        input: &Memory<'_, S>,
        address: u64,
        old: u64,
        new: u64,
    ) -> Result<bool, BinaryError> {
        if self.moved == Some(new.wrapping_sub(old)) {
            return Ok(true);
        }
        let is_of_code = |value: u64| (self.code.start..=self.code.end).contains(&value);
        if let Some(table) = self.rela.iter().find(|table| table.contains(&address)) {
            let record = address - (address - table.start) % RECORD;
            let wrapper = input.word(record)?.wrapping_sub(POINTER);
            return Ok(self.wrappers.binary_search(&wrapper).is_ok());
        }
        if self.symbols.contains(&address) {
            let inside = (address - self.symbols.start) % RECORD;
            let value = input.word(address - inside + 8)?;
            return Ok(match inside {
                // The index of its section is in the first word.
                0 => (old ^ new) << 16 == 0,
                _ => is_of_code(value),
            });
        }
        Ok(false)
    }
}
