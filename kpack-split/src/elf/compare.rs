//! Compares the host code of a fat binary with that of its split binary.
//!
//! Sections are matched by name and compared as the loader would see them. Splitting changes the
//! wrappers, and words that refer to a moved section. Any other difference is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use kpack_format::marker;

use super::dynamic::Dynamic;
use super::headers::{Section, Segment};
use super::memory::RECORD;
use super::records::{FAT_SECTION, MAGIC_SPLIT, POINTER, WRAPPER_SIZE, pods};
use super::{BinaryError, DeviceCode, Image, ReadAt};

/// Bytes compared at a time.
const CHUNK: u64 = 1 << 20;
/// Differences reported per section; further ones are only counted.
const MOST: usize = 4;

/// Returns differences between the host code of a fat binary and its split binary, beyond what
/// splitting changes; empty if they agree. Compares only what is loaded, so both may have been
/// stripped.
pub fn compare<A: ReadAt, B: ReadAt>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, BinaryError> {
    let mut differences = headers(original, split)?;
    let pairs = match_sections(original, split, &mut differences);
    let explained = Explained::new(original, split, &pairs)?;
    for (old, new) in pairs {
        if old.kind != new.kind || old.size != new.size || old.flags != new.flags {
            differences.push(format!(
                "section `{}`: {:?} of {:#x} bytes, flags {}, became {:?} of {:#x} bytes, flags {}",
                old.name, old.kind, old.size, old.flags, new.kind, new.size, new.flags
            ));
        } else if old.addr != new.addr && !explained.may_move(old, new) {
            differences.push(format!(
                "section `{}` was at address {:#x} and is now at {:#x}",
                old.name, old.addr, new.addr
            ));
        } else if old.addr == new.addr && !same_access((original, old), (split, new)) {
            let flags = |access: Option<elf::ProgramFlags>| match access {
                Some(flags) => format!("mapped with flags {flags}"),
                None => "not mapped".to_owned(),
            };
            differences.push(format!(
                "section `{}` was {} and is now {}",
                old.name,
                flags(access(original, old)),
                flags(access(split, new))
            ));
        } else if old.has_bytes() {
            contents((original, old), (split, new), &explained, &mut differences)?;
        }
    }
    Ok(differences)
}

/// Pairs the loaded sections of both by name, without device code.
fn match_sections<'a, A, B>(
    original: &'a Image<A>,
    split: &'a Image<B>,
    differences: &mut Vec<String>,
) -> Vec<(&'a Section, &'a Section)> {
    let own =
        |s: &&Section| s.is_alloc() && s.name != FAT_SECTION && s.name != marker::SECTION_NAME;
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
fn same_access<A, B>(
    (original, old): (&Image<A>, &Section),
    (split, new): (&Image<B>, &Section),
) -> bool {
    let (before, after) = (access(original, old), access(split, new));
    let code = old.flags.0 & elf::SHF_EXECINSTR.0 != 0;
    let without_code = |flags: elf::ProgramFlags| flags.0 & !elf::PF_X.0;
    before == after
        || !old.occupies_memory()
        || !code && before.map(without_code) == after.map(without_code)
}

/// The differences that splitting makes.
struct Explained {
    /// The place of the former device code, where sections move to.
    fat: Range<u64>,
    /// Old addresses of sections that moved, and the new address of their start.
    moved: Vec<(Range<u64>, u64)>,
    /// The wrappers' addresses, in ascending order.
    wrappers: Vec<u64>,
    /// Address of the marker.
    marker: u64,
    /// What wrappers with device code in the binary point to instead, by their addresses.
    bundles: BTreeMap<u64, u64>,
    /// What wrappers point to when they are relocated, by their addresses.
    relocated: BTreeMap<u64, u64>,
    /// The original's RELA tables, and the address of its symbols.
    rela: Vec<Range<u64>>,
    symbols: Option<u64>,
}

impl Explained {
    fn new<A: ReadAt, B: ReadAt>(
        original: &Image<A>,
        split: &Image<B>,
        pairs: &[(&Section, &Section)],
    ) -> Result<Self, BinaryError> {
        let moved = pairs.iter().filter(|(old, new)| old.addr != new.addr);
        let moved = moved.map(|(old, new)| (old.addr..old.addr_end(), new.addr)).collect();
        let (fat, wrappers, own) = match original.device_code()? {
            DeviceCode::Fat(fat) => {
                let own = BTreeSet::from_iter(fat.wrappers.iter().map(|w| w.address));
                let others = fat.split_before.iter().map(|w| w.address);
                let mut all = Vec::from_iter(own.iter().copied().chain(others));
                all.sort_unstable();
                (fat.addresses, all, own)
            }
            _ => (0..0, Vec::new(), BTreeSet::new()),
        };
        let code = split.device_code()?;
        let bundles = match &code {
            DeviceCode::Fat(fat) if fat.joined.is_some() || !fat.split_before.is_empty() => {
                let wrappers = fat.wrappers.iter();
                wrappers.map(|w| (w.address, w.bundle_address)).collect()
            }
            _ => BTreeMap::new(),
        };
        let mut relocated = bundles.clone();
        relocated.extend(code.split_wrappers().iter().map(|w| (w.address, w.marker_address)));
        // The other wrappers still point to their own markers.
        let mut redirected = code.split_wrappers().iter();
        let redirected = redirected.find(|w| own.contains(&w.address));
        let marker = redirected.map_or(0, |w| w.marker_address);
        let dynamic = Dynamic::read(original)?;
        Ok(Self {
            fat,
            moved,
            wrappers,
            marker,
            bundles,
            relocated,
            rela: dynamic.rela_tables()?,
            symbols: dynamic.symbol_section(original).map(|s| s.addr),
        })
    }

    /// What the wrapper at `address` must point to.
    fn pointer(&self, address: u64) -> u64 {
        self.bundles.get(&address).copied().unwrap_or(self.marker)
    }

    /// Whether the pointer in the wrapper at `address` may be `new` in the file. Some splitters leave 0 to the
    /// relocation.
    fn is_pointer(&self, address: u64, new: u64) -> bool {
        let expected = self.pointer(address);
        new == expected || new == 0 && self.relocated.get(&address) == Some(&expected)
    }

    /// Whether the section may move, and moved to the former place of the device code.
    fn may_move(&self, old: &Section, new: &Section) -> bool {
        let inside = self.fat.start <= new.addr && new.addr_end() <= self.fat.end;
        inside && (old.kind != elf::SHT_PROGBITS || old.name == ".interp")
    }

    fn follows(&self, old: u64, new: u64) -> bool {
        let map =
            |(from, to): &(Range<u64>, u64)| from.contains(&old).then(|| to + (old - from.start));
        self.moved.iter().filter_map(map).any(|mapped| mapped == new)
    }

    /// Whether splitting may change the word at `address` of `section` to `new`. `record`
    /// reads the bytes from an address of the section, as they are now.
    fn word(
        &self,
        section: &Section,
        address: u64,
        (old, new): (u64, u64),
        record: impl Fn(u64) -> Result<Vec<u8>, BinaryError>,
    ) -> Result<bool, BinaryError> {
        if self.follows(old, new) {
            return Ok(true);
        }
        let wrapper = self.wrappers.partition_point(|start| *start <= address);
        if let Some(index) = wrapper.checked_sub(1) {
            let inside = address - self.wrappers[index];
            if inside < WRAPPER_SIZE {
                return Ok(match inside {
                    0 => new == 1 << 32 | u64::from(MAGIC_SPLIT),
                    POINTER => self.is_pointer(self.wrappers[index], new),
                    _ => new == index as u64,
                });
            }
        }
        if let Some(table) = self.rela.iter().find(|table| table.contains(&address)) {
            let start = address - (address - table.start) % RECORD;
            let bytes = record(start)?;
            return Ok(pods::<elf::Rela64<LE>>(&bytes).first().is_some_and(|rela| {
                let wrapper = rela.r_offset.get(LE).wrapping_sub(POINTER);
                self.wrappers.binary_search(&wrapper).is_ok()
                    && rela.r_addend.get(LE) as u64 == self.pointer(wrapper)
            }));
        }
        if self.symbols != Some(section.addr) {
            return Ok(false);
        }
        Ok(match (address - section.addr) % RECORD {
            // The section's index is in the first word.
            0 => (old ^ new) >> 48 << 48 == old ^ new,
            // The section's symbol points to what is left of it.
            8 if record(address - 8)?[4] & 0xf == elf::STT_SECTION.0 => old == self.fat.start,
            // Symbols of the device code, and `_end` after it, point to the marker.
            8 => old > self.fat.start && old <= self.fat.end && self.fat.contains(&new),
            _ => false,
        })
    }
}

fn contents<A: ReadAt, B: ReadAt>(
    (original, old): (&Image<A>, &Section),
    (split, new): (&Image<B>, &Section),
    explained: &Explained,
    differences: &mut Vec<String>,
) -> Result<(), BinaryError> {
    let mut found = 0;
    // A table may begin elsewhere than its section, so a record may be in two chunks.
    let record = |address: u64| match address.checked_sub(old.addr) {
        Some(start) => {
            let size = RECORD.min(old.size.saturating_sub(start));
            split.bytes(new.offset + start, size, &new.name)
        }
        None => Ok(Vec::new()),
    };
    for start in (0..old.size).step_by(CHUNK as usize) {
        let size = CHUNK.min(old.size - start);
        let a = original.bytes(old.offset + start, size, &old.name)?;
        let b = split.bytes(new.offset + start, size, &new.name)?;
        if a == b {
            continue;
        }
        for at in (0..a.len()).step_by(8) {
            let end = (at + 8).min(a.len());
            let (x, y) = (&a[at..end], &b[at..end]);
            let address = old.addr + start + at as u64;
            if x == y || explained.word(old, address, (word(x), word(y)), record)? {
                continue;
            }
            found += 1;
            if found <= MOST {
                differences.push(format!(
                    "section `{}` at {address:#x}: {x:02x?} became {y:02x?}",
                    old.name
                ));
            }
        }
    }
    if found > MOST {
        differences.push(format!("section `{}`: {} more words differ", old.name, found - MOST));
    }
    Ok(())
}

/// The word of `bytes`, at most eight, padded with zeroes.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
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
