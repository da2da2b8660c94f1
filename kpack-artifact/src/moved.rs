//! Recognises bytes that differ only because they are addresses of moved sections.

use std::collections::BTreeSet;
use std::fs::File;

use object::elf;

use kpack_split::elf::{Dynamic, ElfError, Image, Relocations, Section};

/// The greatest distance from the end of a displacement to the end of its instruction (on x86-64 an
/// immediate may follow), and from the end of what it addresses.
const SLACK: u64 = 8;

/// Maps the sections of one file to those of another.
pub(super) struct Moves {
    /// Addresses in the first file, and how far they have moved in the second.
    moved: Vec<(u64, u64, u64)>,
    /// What the dynamic linker relocates in the first file. `None` if all addresses are fixed: then any
    /// number may be an address.
    relocated: Option<BTreeSet<u64>>,
}

impl Moves {
    pub(super) fn new<'a>(
        one: &Image<File>,
        pairs: impl Iterator<Item = (&'a Section, &'a Section)>,
    ) -> Result<Self, ElfError> {
        let loaded = pairs.filter(|(a, _)| a.is_alloc());
        let moved: BTreeSet<_> = loaded
            .map(|(a, b)| (a.addr, a.addr_end(), b.addr.wrapping_sub(a.addr)))
            .collect();
        let relocated = match one.is_position_dependent() {
            true => None,
            false => {
                let dynamic = Dynamic::read(one)?;
                let relocations = Relocations::read(one, &dynamic)?;
                let places = relocations.iter().map(|found| Ok(found?.address));
                Some(places.collect::<Result<_, ElfError>>()?)
            }
        };
        Ok(Self {
            moved: moved.into_iter().collect(),
            relocated,
        })
    }

    /// Whether the bytes of `section`, `ours` and `theirs`, are the same except for relative or absolute
    /// addresses of sections that have moved.
    pub(super) fn explain(&self, section: &Section, ours: &[u8], theirs: &[u8]) -> bool {
        if ours.len() != theirs.len() {
            return false;
        }
        // The next address begins after the last one at the earliest.
        let mut from = 0;
        let mut at = 0;
        while let Some(next) = first_difference(&ours[at..], &theirs[at..]) {
            let differs = at + next;
            let Some(end) = self.address_over(section, ours, theirs, from, differs) else {
                return false;
            };
            (from, at) = (end, end);
        }
        true
    }

    /// The end of an address that has the byte at `differs`, and begins at `from` or later.
    fn address_over(
        &self,
        section: &Section,
        ours: &[u8],
        theirs: &[u8],
        from: usize,
        differs: usize,
    ) -> Option<usize> {
        let starts = |size: usize| from.max((differs + 1).saturating_sub(size))..=differs;
        for start in starts(4) {
            let (Some(a), Some(b)) = (word::<4>(ours, start), word::<4>(theirs, start)) else {
                continue;
            };
            let (a, b) = (i32::from_le_bytes(a), i32::from_le_bytes(b));
            if self.is_relative(section, start, a, b)
                || self.relocated.is_none() && self.is_absolute(a as u32, b as u32)
            {
                return Some(start + 4);
            }
        }
        let mut starts = starts(8).filter(|start| self.may_have_address(section, *start));
        starts.find_map(|start| {
            let (a, b) = (word::<8>(ours, start)?, word::<8>(theirs, start)?);
            let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
            self.leads_to(a, a, b.wrapping_sub(a)).then_some(start + 8)
        })
    }

    /// Whether a displacement at `start` refers to something that has moved accordingly. In code it
    /// counts from the end of its instruction; in data, such as jump tables, from anywhere in the section.
    fn is_relative(&self, section: &Section, start: usize, ours: i32, theirs: i32) -> bool {
        let own = self.moved.iter().find(|(start, ..)| *start == section.addr);
        let (Some((_, _, own)), true) = (own, section.is_alloc()) else {
            return false;
        };
        let by = i64::from(theirs.wrapping_sub(ours)) as u64;
        let reach = |base: u64| base.wrapping_add(i64::from(ours) as u64);
        let is_code = section.flags.0 & elf::SHF_EXECINSTR.0 != 0;
        let (first, last) = match is_code {
            true => {
                let end = section.addr + start as u64 + 4;
                (reach(end), reach(end + SLACK))
            }
            false => (reach(section.addr), reach(section.addr_end())),
        };
        self.leads_to(first, last, by.wrapping_add(*own))
    }

    /// Whether there may be an absolute address at `start`. In position-independent files these are
    /// relocated, except for the address of the dynamic section in the global offset table.
    fn may_have_address(&self, section: &Section, start: usize) -> bool {
        let Some(relocated) = &self.relocated else {
            return true;
        };
        let is_table = matches!(&*section.name, ".got" | ".got.plt");
        let address = section.addr.wrapping_add(start as u64);
        !section.is_alloc() || is_table || relocated.contains(&address)
    }

    fn is_absolute(&self, ours: u32, theirs: u32) -> bool {
        let by = i64::from(theirs.wrapping_sub(ours) as i32) as u64;
        self.leads_to(ours.into(), ours.into(), by)
    }

    /// Whether something between `first` and `last` has moved by `by`.
    fn leads_to(&self, first: u64, last: u64, by: u64) -> bool {
        let mut moved = self.moved.iter();
        moved.any(|(start, end, moved)| {
            *moved == by && last.wrapping_add(SLACK) >= *start && first <= end.saturating_add(SLACK)
        })
    }
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    const BLOCK: usize = 1 << 12;
    let blocks = one.chunks(BLOCK).zip(other.chunks(BLOCK));
    let (block, (a, b)) = blocks.enumerate().find(|(_, (a, b))| a != b)?;
    let within = a.iter().zip(b).position(|(a, b)| a != b)?;
    Some(block * BLOCK + within)
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}
