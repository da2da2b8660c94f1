//! Recognises bytes that differ only because they are addresses of moved sections, whatever the host format.

use std::collections::BTreeSet;
use std::ops::Range;

/// The greatest distance from the end of a displacement to the end of its instruction (on x86-64 an
/// immediate may follow), and from the end of what it addresses.
const SLACK: u64 = 8;

/// A section whose bytes are compared.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Its addresses in the first file.
    pub(super) addresses: Range<u64>,
    pub(super) is_loaded: bool,
    pub(super) is_code: bool,
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
        Self {
            moved: moved.into_iter().collect(),
            base: Box::new(base),
        }
    }

    /// Whether the bytes of `section`, `ours` and `theirs`, are the same except for relative or absolute
    /// addresses of sections that have moved.
    pub(super) fn explain(&self, section: &Part, ours: &[u8], theirs: &[u8]) -> bool {
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
            if self.is_relative(section, start, a, by)
                || self.is_absolute(section, start, u64::from(a as u32), by, 4)
            {
                return Some(start + 4);
            }
        }
        starts(8).find_map(|start| {
            let (a, b) = (word::<8>(ours, start)?, word::<8>(theirs, start)?);
            let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
            let by = b.wrapping_sub(a);
            self.is_absolute(section, start, a, by, 8)
                .then_some(start + 8)
        })
    }

    /// Whether a displacement at `start` refers to something that has moved accordingly. In code it
    /// counts from the end of its instruction; in data, such as jump tables, from anywhere in the section.
    fn is_relative(&self, section: &Part, start: usize, ours: i32, by: u64) -> bool {
        let Range { start: first, end } = section.addresses;
        let own = self.moved.iter().find(|(at, ..)| *at == first);
        let (Some((_, _, own)), true) = (own, section.is_loaded) else {
            return false;
        };
        let reach = |base: u64| base.wrapping_add(i64::from(ours) as u64);
        let (first, last) = if section.is_code {
            let end = first + start as u64 + 4;
            (reach(end), reach(end + SLACK))
        } else {
            (reach(first), reach(end))
        };
        self.leads_to(first, last, by.wrapping_add(*own))
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
