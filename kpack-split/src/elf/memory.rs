//! Whether two binaries load the same host memory: a rewritten one and its input, or a split one and its unsplit
//! original.
//!
//! It reads the two files alone, and shares no plan with what wrote the second one. A rewrite is checked by segments,
//! since section headers may be wrong. Binaries that were stripped since are compared by sections: tools fill the
//! padding between them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kpack_format::marker;
use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{Dynamic, Words, is_address};
use super::headers::{SEGMENT_ENTRY, Section, Segment};
use super::image::Image;
use super::records::{FAT_SECTION, POINTER, WRAPPER_SIZE};
use super::{BinaryError, DeviceCode, FatBinary, ReadAt, refuse};
use crate::device_code::{PlannedWrapper, check_wrappers, planned_wrappers};

/// Bytes compared at a time.
const CHUNK: u64 = 1 << 20;
/// The size of the ELF header.
const ELF_HEADER: u64 = 64;
/// The size of a RELA entry and of a symbol.
const RECORD: u64 = 24;

/// Refuses a result that does not map what its input maps, or has other contents there. Device code, the
/// headers, the wrappers and the `marker` change, and so do words that refer to what moved, and the `holes`, which are
/// ranges of the input file.
pub(super) fn check<A: ReadAt, B: ReadAt>(
    input: &Image<A>,
    output: &Image<B>,
    marker: &Range<u64>,
    holes: &[Range<u64>],
) -> Result<(), BinaryError> {
    let (old, new) = (Dynamic::read(input)?, Dynamic::read(output)?);
    let tags = old
        .entries
        .iter()
        .zip(&new.entries)
        .filter(|((tag, _), _)| is_address(*tag))
        .map(|((_, old), (_, new))| (*old, *new));
    let addresses = |segments: &[Segment]| -> Vec<u64> {
        let kinds = [elf::PT_NOTE, elf::PT_INTERP, elf::PT_GNU_PROPERTY];
        segments.iter().filter(|s| kinds.contains(&s.kind)).map(|s| s.vaddr).collect()
    };
    let named = addresses(&input.segments).into_iter().zip(addresses(&output.segments));
    let pairs = Vec::from_iter(tags.chain(named));
    let moved = MovedBlock::of(pairs.iter().copied());
    let is_together = |(old, new)| old == new || moved.is_some_and(|moved| moved.by(old) == new);
    if !pairs.into_iter().all(is_together) {
        refuse!("the sections did not move together");
    }
    let codes = (&input.device_code()?, &output.device_code()?);
    let comparison = Comparison::new((input, output), codes, marker, moved)?.without(holes);
    for load in loads(input) {
        if let Some(difference) = comparison.contents(load.vaddr..load.vaddr + load.memsz, 0)? {
            refuse!("the memory {difference}");
        }
    }
    Ok(())
}

/// Returns differences between the host code of a fat binary and its split binary, beyond what
/// splitting changes; empty if they agree. Compares only what is loaded, so both may have been
/// stripped.
pub fn compare<A: ReadAt, B: ReadAt>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, BinaryError> {
    let mut differences = headers(original, split)?;
    let (before, after) = (original.device_code()?, split.device_code()?);
    let mut fat = 0..0;
    if let DeviceCode::Fat(code) = &before {
        fat = code.addresses.clone();
        let wrappers = check_wrappers(&after, &wrappers_of(code, &after));
        differences.extend(wrappers.err().map(|error| error.to_string()));
    }
    let pairs = match_sections(original, split, &mut differences);
    // To the former place of the device code.
    let may_move = |(old, new): &&(&Section, &Section)| {
        let is_inside = fat.start <= new.addr && new.addr_end() <= fat.end;
        is_inside && (old.kind != elf::SHT_PROGBITS || old.name == ".interp")
    };
    let moved =
        MovedBlock::of(pairs.iter().filter(may_move).map(|(old, new)| (old.addr, new.addr)));
    let comparison = Comparison::new((original, split), (&before, &after), &(0..0), moved)?;
    for pair @ (old, new) in &pairs {
        let (was_mapped, is_mapped) = (access(original, old), access(split, new));
        let is_moved = may_move(&pair) && moved.is_some_and(|moved| moved.by(old.addr) == new.addr);
        if old.kind != new.kind || old.size != new.size || old.flags != new.flags {
            differences.push(format!(
                "section `{}`: {:?} of {:#x} bytes, flags {}, became {:?} of {:#x} bytes, flags {}",
                old.name, old.kind, old.size, old.flags, new.kind, new.size, new.flags
            ));
        } else if old.addr != new.addr && !is_moved {
            differences.push(format!(
                "section `{}` was at address {:#x} and is now at {:#x}",
                old.name, old.addr, new.addr
            ));
        } else if old.addr == new.addr && !is_same_access(old, was_mapped, is_mapped) {
            let flags = |access: Option<elf::ProgramFlags>| match access {
                Some(flags) => format!("mapped with flags {flags}"),
                None => "not mapped".to_owned(),
            };
            differences.push(format!(
                "section `{}` was {} and is now {}",
                old.name,
                flags(was_mapped),
                flags(is_mapped)
            ));
        } else if old.has_bytes() && was_mapped.is_some() {
            let shift = new.addr.wrapping_sub(old.addr);
            let difference = comparison
                .contents(old.addr..old.addr_end(), shift)?
                .map(|found| format!("section `{}` {found}", old.name));
            differences.extend(difference);
        }
    }
    Ok(differences)
}

/// What the wrappers of the original must be in a binary with the device code `after`, where bundles may stay or be
/// back.
fn wrappers_of(original: &FatBinary, after: &DeviceCode) -> Vec<PlannedWrapper> {
    let own = BTreeSet::from_iter(original.wrappers.iter().map(|wrapper| wrapper.address));
    // The other wrappers still point to their own markers.
    let redirected = after.split_wrappers().iter().find(|w| own.contains(&w.address));
    let mut planned = planned_wrappers(original, redirected.map_or(0, |w| w.marker_address));
    if let DeviceCode::Fat(fat) = after {
        let bundles =
            BTreeMap::from_iter(fat.wrappers.iter().map(|w| (w.address, w.bundle_address)));
        for wrapper in &mut planned {
            let bundle = bundles.get(&wrapper.address);
            *wrapper = bundle.map_or(*wrapper, |at| PlannedWrapper::fat(wrapper.address, *at));
        }
    }
    planned
}

/// Pairs the loaded sections of both by name, without device code.
fn match_sections<'a, A, B>(
    original: &'a Image<A>,
    split: &'a Image<B>,
    differences: &mut Vec<String>,
) -> Vec<(&'a Section, &'a Section)> {
    let own = |s: &&Section| s.is_alloc() && s.name != FAT_SECTION && !marker::is_section(&s.name);
    let mut by_name: BTreeMap<&str, Vec<&Section>> = BTreeMap::new();
    for section in split.sections.iter().filter(own) {
        by_name.entry(&section.name).or_default().push(section);
    }
    let mut pairs = Vec::new();
    for old in original.sections.iter().filter(own) {
        match by_name.get_mut(old.name.as_str()).filter(|same| !same.is_empty()) {
            Some(same) => pairs.push((old, same.remove(0))),
            None => differences.push(format!("section `{}` is missing", old.name)),
        }
    }
    let added = by_name.into_values().flatten();
    differences.extend(added.map(|s| format!("section `{}` is new", s.name)));
    pairs
}

/// The name of a segment type in the gABI and the GNU extensions.
fn segment_type(kind: elf::ProgramType) -> String {
    let name = kind.name().map(str::to_owned);
    name.unwrap_or_else(|| format!("segment of type {:#x}", kind.0))
}

/// Compares the ELF header and the segments.
fn headers<A: ReadAt, B>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, BinaryError> {
    let dynamic = Dynamic::read(original)?;
    let mut differences = Vec::new();
    let identity = |header: &elf::FileHeader64<LE>| {
        (
            header.e_type.get(LE),
            header.e_machine.get(LE),
            header.e_entry.get(LE),
            header.e_flags.get(LE),
        )
    };
    if identity(&original.header) != identity(&split.header) {
        differences.push("type, machine, entry point or flags in the ELF header differ".to_owned());
    }
    for old in original.segments.iter().filter(|s| s.memsz > 0) {
        let kept = match old.kind {
            // Its sections are compared instead.
            elf::PT_LOAD => true,
            // Splitting may reuse its entry if the dynamic loader does without it.
            elf::PT_PHDR if !dynamic.needs_program_headers(original) => true,
            // These keep their addresses; others may belong to a section that moves.
            elf::PT_TLS | elf::PT_GNU_RELRO | elf::PT_DYNAMIC => split
                .segments
                .iter()
                .any(|new| (new.kind, new.vaddr, new.memsz) == (old.kind, old.vaddr, old.memsz)),
            _ => split.segments.iter().any(|new| new.kind == old.kind),
        };
        if !kept {
            differences.push(format!(
                "no segment covers {:#x}..{:#x} as the original's {} did",
                old.vaddr,
                old.vaddr.saturating_add(old.memsz),
                segment_type(old.kind)
            ));
        }
    }
    let stack = |segments: &[Segment]| {
        segments.iter().find(|s| s.kind == elf::PT_GNU_STACK).map(|s| s.flags)
    };
    if stack(&original.segments) != stack(&split.segments) {
        differences.push("PT_GNU_STACK differs".to_owned());
    }
    Ok(differences)
}

/// The flags of the PT_LOAD that maps the section.
fn access<S>(image: &Image<S>, section: &Section) -> Option<elf::ProgramFlags> {
    let maps = |s: &&Segment| {
        let end = s.vaddr.saturating_add(s.memsz);
        s.is_load() && s.vaddr <= section.addr && section.addr_end() <= end
    };
    image.segments.iter().find(maps).map(|s| s.flags)
}

/// Whether the section keeps its access rights. A section without code may lose execution.
fn is_same_access(
    section: &Section,
    before: Option<elf::ProgramFlags>,
    after: Option<elf::ProgramFlags>,
) -> bool {
    let code = section.flags.0 & elf::SHF_EXECINSTR.0 != 0;
    let without_code = |flags: elf::ProgramFlags| flags.0 & !elf::PF_X.0;
    before == after
        || !section.occupies_memory()
        || !code && before.map(without_code) == after.map(without_code)
}

fn loads<S>(image: &Image<S>) -> impl Iterator<Item = &Segment> {
    image.segments.iter().filter(|s| s.is_load() && s.memsz > 0)
}

/// Whether a segment has zeroed memory at an address.
fn is_zeroed<S>(image: &Image<S>, address: u64) -> bool {
    loads(image).any(|s| (s.file_backed_end()..s.vaddr + s.memsz).contains(&address))
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
        let bytes = contents(self.image, &(address..address.saturating_add(8)))?
            .unwrap_or_default()
            .into_iter();
        Ok(bytes.rev().fold(0, |word, byte| word << 8 | u64::from(byte)))
    }
}

/// What moved to the former place of the device code, as one block.
#[derive(Debug, Clone, Copy)]
struct MovedBlock {
    /// The lowest address that is known to have moved.
    from: u64,
    distance: u64,
}

impl MovedBlock {
    /// From addresses before and after; `None` if all stay.
    fn of(pairs: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let (from, to) = pairs.filter(|(old, new)| old != new).min()?;
        Some(Self { from, distance: to.wrapping_sub(from) })
    }

    /// The new address for the old `address`.
    fn by(&self, address: u64) -> u64 {
        address.wrapping_add(self.distance)
    }
}

/// Where the device code is, or was.
fn place_of_code<S: ReadAt>(
    image: &Image<S>,
    code: &DeviceCode,
) -> Result<Range<u64>, BinaryError> {
    Ok(match code {
        DeviceCode::Fat(fat) => fat.addresses.clone(),
        DeviceCode::Split(_) => {
            image.section(FAT_SECTION)?.map_or(0..0, |(_, s)| s.addr..s.addr_end())
        }
        DeviceCode::None(_) => 0..0,
    })
}

/// Two binaries, and what may differ between their memory.
struct Comparison<'a, A, B> {
    input: Memory<'a, A>,
    output: Memory<'a, B>,
    /// The output once more, for contents where they moved to.
    moved_output: Memory<'a, B>,
    /// Addresses with other contents, in order.
    skipped: Vec<Range<u64>>,
    /// The device code of the input, and that of the output.
    code: Range<u64>,
    new_code: Range<u64>,
    /// Where the program header table grows.
    growth: Range<u64>,
    /// Addresses of the wrappers, in order. What they must be is checked elsewhere.
    wrappers: Vec<u64>,
    moved: Option<MovedBlock>,
    /// Addresses of RELA tables and of symbols.
    rela: Vec<Range<u64>>,
    symbols: Range<u64>,
}

impl<'a, A: ReadAt, B: ReadAt> Comparison<'a, A, B> {
    fn new(
        (input, output): (&'a Image<A>, &'a Image<B>),
        (before, after): (&DeviceCode, &DeviceCode),
        marker: &Range<u64>,
        moved: Option<MovedBlock>,
    ) -> Result<Self, BinaryError> {
        let mut wrappers = Vec::from_iter(before.split_wrappers().iter().map(|w| w.address));
        if let DeviceCode::Fat(fat) = before {
            wrappers.extend(fat.wrappers.iter().map(|w| w.address));
        }
        wrappers.sort_unstable();
        let (code, new_code) = (place_of_code(input, before)?, place_of_code(output, after)?);
        let first = loads(input).find(|s| s.offset == 0);
        let mut skipped = vec![code.clone(), marker.clone()];
        skipped.extend(first.map(|s| s.vaddr..s.vaddr + ELF_HEADER));
        skipped.extend(input.headers());
        skipped.extend(wrappers.iter().map(|at| *at..at + WRAPPER_SIZE));
        // The markers of objects that were split before the link are replaced in place.
        if let DeviceCode::Fat(_) = before {
            let markers =
                BTreeSet::from_iter(before.split_wrappers().iter().map(|w| w.marker_address));
            let sections = input
                .sections
                .iter()
                .filter(|s| marker::is_section(&s.name))
                .map(|s| s.addr..s.addr_end());
            skipped.extend(sections.filter(|own| markers.range(own.clone()).next().is_some()));
        }
        let added = output.segments.len().saturating_sub(input.segments.len()) as u64;
        let growth = input.headers().map(|at| at.end..at.end + added * SEGMENT_ENTRY);
        let dynamic = Dynamic::read(input)?;
        let symbols = dynamic.symbol_section(input);
        Ok(Self {
            input: Memory::new(input),
            output: Memory::new(output),
            moved_output: Memory::new(output),
            skipped: merged(skipped),
            code,
            new_code,
            growth: growth.unwrap_or(0..0),
            wrappers,
            moved,
            rela: dynamic.rela_tables()?,
            symbols: symbols.map_or(0..0, |s| s.addr..s.addr_end()),
        })
    }

    /// The same, without what is at these file offsets of the input.
    fn without(mut self, holes: &[Range<u64>]) -> Self {
        let addresses = holes.iter().filter_map(|hole| {
            let maps = |s: &&Segment| s.offset <= hole.start && hole.end <= s.file_end();
            let load = loads(self.input.image).find(maps)?;
            let start = load.vaddr + (hole.start - load.offset);
            Some(start..start + (hole.end - hole.start))
        });
        self.skipped.extend(addresses);
        self.skipped = merged(self.skipped);
        self
    }

    /// The first difference that has no reason in the input's memory at `addresses`, which the output has `shift` bytes
    /// further on.
    fn contents(&self, addresses: Range<u64>, shift: u64) -> Result<Option<String>, BinaryError> {
        let (input, output) = (self.input.image, self.output.image);
        let mut at = addresses.start;
        while at < addresses.end {
            let next = self.skipped.partition_point(|range| range.end <= at);
            let skipped = self.skipped.get(next);
            if let Some(skipped) = skipped.filter(|range| range.start <= at) {
                at = skipped.end;
                continue;
            }
            let border = |s: &Segment| [s.vaddr, s.file_backed_end(), s.vaddr + s.memsz];
            let borders = loads(output)
                .flat_map(border)
                .map(|border| border.wrapping_sub(shift))
                .chain(loads(input).map(Segment::file_backed_end));
            let next = borders
                .chain(skipped.map(|range| range.start))
                .filter(|border| *border > at)
                .fold(addresses.end, u64::min);
            // Zeroed memory can be of any size, and is in no file.
            if is_zeroed(input, at) && is_zeroed(output, at.wrapping_add(shift)) {
                at = next;
                continue;
            }
            let piece = at..next.min(at - at % 8 + CHUNK);
            let new_piece = piece.start.wrapping_add(shift)..piece.end.wrapping_add(shift);
            let before = contents(input, &piece)?.unwrap_or_default();
            match contents(output, &new_piece)? {
                Some(after) if after == before => {}
                Some(after) => {
                    let unexplained = self.unexplained((&piece, shift), &before, &after)?;
                    if let Some(index) = unexplained {
                        return Ok(Some(format!(
                            "at address {:#x}: {:#04x} became {:#04x}",
                            piece.start + index as u64,
                            before[index],
                            after[index]
                        )));
                    }
                }
                // Padding next to the device code. Whole pages are mapped.
                None if self.is_beside_code(&piece)
                    && (before.iter().all(|byte| *byte == 0)
                        || in_page(output, &piece)? == before) => {}
                None => {
                    let Range { start, end } = piece;
                    return Ok(Some(format!("at {start:#x}..{end:#x} is not mapped any more")));
                }
            }
            at = piece.end;
        }
        Ok(None)
    }

    /// Whether the addresses end where the device code begins, within a page, or begin where it ends.
    fn is_beside_code(&self, addresses: &Range<u64>) -> bool {
        let Range { start, end } = self.code;
        addresses.start == end || addresses.end == start && start - addresses.start < 4096
    }

    /// The index of the first difference that has no reason. Each byte is judged alone, because contents that move can
    /// end within a word whose other bytes stay.
    fn unexplained(
        &self,
        (addresses, shift): (&Range<u64>, u64),
        before: &[u8],
        after: &[u8],
    ) -> Result<Option<usize>, BinaryError> {
        for (index, (old, new)) in before.iter().zip(after).enumerate() {
            let address = addresses.start + index as u64;
            let is_filled = *old == 0 && self.new_code.contains(&address);
            if old == new || is_filled {
                continue;
            }
            // Only words hold addresses and numbers of sections.
            let word = address - address % 8;
            let (was, is) = (self.input.word(word)?, self.output.word(word.wrapping_add(shift))?);
            if self.is_known(word, was, is)? {
                continue;
            }
            // What moved leaves zeroes or a program header, and is where the device code was.
            let in_table = self.growth.contains(&address);
            let to = self
                .moved
                .filter(|moved| moved.from <= address)
                .map(|moved| moved.by(address))
                .filter(|to| self.code.contains(to));
            let Some(to) = to.filter(|_| *new == 0 || in_table) else {
                if in_table && to.is_none() {
                    continue;
                }
                return Ok(Some(index));
            };
            let there = self.moved_output.word(to - address % 8)?;
            let is_there = there.to_le_bytes()[(address % 8) as usize] == *old;
            if !is_there && !self.is_known(word, was, there)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Whether the word at an address may become another one.
    fn is_known(&self, address: u64, old: u64, new: u64) -> Result<bool, BinaryError> {
        let is_of = |code: &Range<u64>, value| (code.start..=code.end).contains(&value);
        let moved = self.moved.filter(|moved| moved.from <= old && moved.by(old) == new);
        if moved.is_some() && is_of(&self.code, new) {
            return Ok(true);
        }
        if let Some(table) = self.rela.iter().find(|table| table.contains(&address)) {
            let record = address - (address - table.start) % RECORD;
            let wrapper = self.input.word(record)?.wrapping_sub(POINTER);
            return Ok(self.wrappers.binary_search(&wrapper).is_ok());
        }
        if self.symbols.contains(&address) {
            return Ok(match (address - self.symbols.start) % RECORD {
                // The index of its section is in the first word.
                0 => (old ^ new) << 16 == 0,
                // Symbols of the device code, and `_end` after it.
                8 => {
                    is_of(&self.code, old) && (is_of(&self.code, new) || is_of(&self.new_code, new))
                }
                _ => false,
            });
        }
        Ok(false)
    }
}

/// The same addresses in order, without ranges that are empty, overlap or touch.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_segments_have_names() {
        assert_eq!(segment_type(elf::ProgramType(0x6474_e552)), "PT_GNU_RELRO");
        assert_eq!(segment_type(elf::ProgramType(7)), "PT_TLS");
        assert_eq!(segment_type(elf::ProgramType(0x6000_0000)), "segment of type 0x60000000");
    }
}
