//! How one file's bytes become another's: what is cut out, inserted and overwritten.

use std::ops::Range;

/// Where bytes are cut out of a file, or inserted. Both lengths are multiples of every segment's
/// alignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Input offsets to cut out.
    pub(crate) cut: Range<u64>,
    /// Number of bytes to insert there.
    pub(crate) room: u64,
}

impl Gap {
    /// Only cuts out.
    pub(crate) fn cut(cut: Range<u64>) -> Self {
        Self { cut, room: 0 }
    }
}

/// All gaps of a file, in order of their offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gaps(Vec<Gap>);

impl Gaps {
    pub(crate) fn new(gaps: impl IntoIterator<Item = Gap>) -> Self {
        let gaps = gaps.into_iter();
        let mut gaps: Vec<Gap> = gaps.filter(|g| !g.cut.is_empty() || g.room > 0).collect();
        gaps.sort_by_key(|gap| gap.cut.start);
        gaps.dedup_by(|next, gap| {
            let is_same = next.cut.start == gap.cut.start;
            if is_same {
                gap.cut.end = gap.cut.end.max(next.cut.end);
                gap.room += next.room;
            }
            is_same
        });
        Self(gaps)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Gap> {
        self.0.iter()
    }

    /// Output offset of an input offset. If nothing is cut, an input byte at the cut comes after
    /// the inserted bytes.
    pub(crate) fn output_offset(&self, offset: u64) -> u64 {
        let mut output = offset;
        for Gap { cut, room } in self.iter().take_while(|gap| gap.cut.start <= offset) {
            output -= offset.min(cut.end) - cut.start;
            output += if offset >= cut.end { *room } else { 0 };
        }
        output
    }
}

/// Changed bytes by offset in the input. A later change wins over an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    writes: Vec<(u64, Vec<u8>)>,
}

impl Edits {
    pub(crate) fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.writes.push((offset, bytes));
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, size: u64) {
        self.write(offset, vec![0; size as usize]);
    }

    /// Removes the changes within `range` and applies them to `bytes`, the content of that range.
    pub(crate) fn take_into(&mut self, range: &Range<u64>, bytes: &mut [u8]) {
        self.writes.retain(|(offset, change)| {
            let inside = range.start <= *offset && offset + change.len() as u64 <= range.end;
            if inside {
                let at = (offset - range.start) as usize;
                bytes[at..at + change.len()].copy_from_slice(change);
            }
            !inside
        });
    }

    /// The changes by output offset.
    pub(crate) fn into_output(self, gaps: &Gaps) -> Vec<(u64, Vec<u8>)> {
        let place = |(offset, bytes)| (gaps.output_offset(offset), bytes);
        self.writes.into_iter().map(place).collect()
    }
}
