//! Recognises bytes that differ only because they are addresses of moved sections, whatever the host format.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, OpKind};

/// How far an address may be from what it belongs to: ends of arrays are right after them.
const SLACK: u64 = 8;

/// A section whose bytes are compared.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Its addresses in the first file.
    pub(super) addresses: Range<u64>,
    pub(super) is_loaded: bool,
    /// Whether it consists of instructions for x86-64.
    pub(super) is_code: bool,
    /// Whether numbers in it may count from where they are, such as those of jump tables. Not in code.
    pub(super) has_relative: bool,
}

/// What a number in the first file, at this address of a section and of this size in bytes, counts from if it is an
/// address; `None` if it cannot be one.
type Base<'a> = dyn Fn(&Part, u64, usize) -> Option<u64> + 'a;

/// Maps the sections of one file to those of another.
pub(super) struct Moves<'a> {
    /// Addresses in the first file, and how far they have moved in the second.
    moved: Vec<(u64, u64, u64)>,
    base: Box<Base<'a>>,
}

impl<'a> Moves<'a> {
    /// `pairs` are the addresses of each loaded section in the first file, and where it starts in the second.
    pub(super) fn new(
        pairs: impl Iterator<Item = (Range<u64>, u64)>,
        base: impl Fn(&Part, u64, usize) -> Option<u64> + 'a,
    ) -> Self {
        let moved: BTreeSet<_> = pairs
            .map(|(ours, theirs)| (ours.start, ours.end, theirs.wrapping_sub(ours.start)))
            .collect();
        Self { moved: moved.into_iter().collect(), base: Box::new(base) }
    }

    /// Whether the bytes of `section`, `ours` and `theirs`, are the same except for relative or absolute
    /// addresses of sections that have moved.
    pub(super) fn explain(&self, section: &Part, ours: &[u8], theirs: &[u8]) -> bool {
        if ours.len() != theirs.len() {
            return false;
        }
        let mut theirs = Cow::Borrowed(theirs);
        if section.is_code && self.is_apart() && !self.settle(section, ours, theirs.to_mut()) {
            return false;
        }
        let theirs = &*theirs;
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
        section: &Part,
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
            let by = i64::from(b.wrapping_sub(a)) as u64;
            if self.is_relative(section, a, by)
                || self.is_absolute(section, start, u64::from(a as u32), by, 4)
            {
                return Some(start + 4);
            }
        }
        starts(8).find_map(|start| {
            let (a, b) = (word::<8>(ours, start)?, word::<8>(theirs, start)?);
            let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
            let by = b.wrapping_sub(a);
            self.is_absolute(section, start, a, by, 8).then_some(start + 8)
        })
    }

    /// Whether sections have moved away from each other.
    fn is_apart(&self) -> bool {
        let by = self.moved.iter().map(|(.., by)| by);
        BTreeSet::from_iter(by).len() > 1
    }

    /// Whether the instructions of both refer to the same, also where a number stays the same although something has
    /// moved. Gives `theirs` our numbers.
    fn settle(&self, section: &Part, ours: &[u8], theirs: &mut [u8]) -> bool {
        let Some(own) = self.own(section) else {
            return true;
        };
        let mut decoder = Decoder::with_ip(64, ours, section.addresses.start, DecoderOptions::NONE);
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            let offsets = decoder.get_constant_offsets(&instruction);
            let (at, size, target) = if instruction.is_ip_rel_memory_operand() {
                let target = instruction.ip_rel_memory_address();
                (offsets.displacement_offset(), offsets.displacement_size(), target)
            } else if instruction.op0_kind() == OpKind::NearBranch64 {
                let target = instruction.near_branch_target();
                (offsets.immediate_offset(), offsets.immediate_size(), target)
            } else {
                continue;
            };
            let at = start + at;
            let (4, Some(a), Some(b)) = (size, word::<4>(ours, at), word::<4>(theirs, at)) else {
                continue;
            };
            let by = i32::from_le_bytes(b).wrapping_sub(i32::from_le_bytes(a));
            let is_same = self.leads_to(target, target, own.wrapping_add(i64::from(by) as u64));
            if is_same {
                theirs[at..at + 4].copy_from_slice(&a);
            } else if by != 0 || self.is_known(target) {
                return false;
            }
        }
        true
    }

    /// How far a loaded section has moved.
    fn own(&self, section: &Part) -> Option<u64> {
        let start = section.addresses.start;
        let own = self.moved.iter().find(|(at, ..)| *at == start);
        own.map(|(.., by)| *by)
    }

    /// Whether a number at `start` counts from somewhere in its section, as in jump tables, and leads to something
    /// that has moved accordingly.
    fn is_relative(&self, section: &Part, ours: i32, by: u64) -> bool {
        let (Some(own), true) = (self.own(section), section.has_relative) else {
            return false;
        };
        let reach = |base: u64| base.wrapping_add(i64::from(ours) as u64);
        let Range { start, end } = section.addresses;
        self.leads_to(reach(start), reach(end), by.wrapping_add(own))
    }

    /// Whether the number `ours` at `start` is an address that has moved by `by`.
    fn is_absolute(&self, section: &Part, start: usize, ours: u64, by: u64, size: usize) -> bool {
        let address = section.addresses.start.wrapping_add(start as u64);
        let Some(base) = (self.base)(section, address, size) else {
            return false;
        };
        let ours = ours.wrapping_sub(base);
        self.leads_to(ours, ours, by)
    }

    /// Whether an address is one of a section.
    fn is_known(&self, address: u64) -> bool {
        let mut moved = self.moved.iter();
        moved.any(|(start, end, _)| (*start..*end).contains(&address))
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
