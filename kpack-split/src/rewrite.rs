//! How one file's bytes become another's: what is copied, cut out, inserted and overwritten, whatever the
//! host format.

use std::fs::File;
use std::io;
use std::ops::Range;

use kpack_core::elf::ReadAt;
use kpack_core::platform::FileExt;

use crate::publish::copy_range;

/// Where bytes are cut out of a file, or inserted. Both lengths are multiples of every alignment in the file.
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
        let mut gaps: Vec<Gap> =
            gaps.into_iter().filter(|g| !g.cut.is_empty() || g.room > 0).collect();
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

/// What becomes of a file's bytes.
#[derive(Debug, Clone)]
pub(crate) struct Rewrite {
    gaps: Gaps,
    /// Ranges of the input that are not copied. They become holes, and the caller writes there.
    holes: Vec<Range<u64>>,
    /// End of the input's kept bytes; the tail replaces everything after it.
    kept_end: u64,
    /// Changed bytes by output offset.
    edits: Vec<(u64, Vec<u8>)>,
    tail_offset: u64,
    tail: Vec<u8>,
    /// Bundles that stay: their offsets in the first file, and in the output.
    bundles: Vec<(Range<u64>, u64)>,
    /// How this one's input is made, if it is not a file.
    before: Option<Box<Rewrite>>,
}

impl Rewrite {
    /// Keeps the input up to `kept_end`, apart from `gaps` and `edits`; `tail` replaces the rest.
    pub(crate) fn new(gaps: Gaps, edits: Edits, kept_end: u64, tail: Vec<u8>) -> Self {
        Self {
            edits: edits.into_output(&gaps),
            tail_offset: gaps.output_offset(kept_end),
            gaps,
            holes: Vec::new(),
            kept_end,
            tail,
            bundles: Vec::new(),
            before: None,
        }
    }

    pub(crate) fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// Leaves these ranges of the input as holes, and returns their offsets in the output.
    pub(crate) fn leave_out(&mut self, holes: &[Range<u64>]) -> Vec<u64> {
        self.holes.extend_from_slice(holes);
        holes.iter().map(|hole| self.gaps.output_offset(hole.start)).collect()
    }

    /// The ranges of the input that are holes.
    pub(crate) fn holes(&self) -> &[Range<u64>] {
        &self.holes
    }

    /// What it makes of `input`, not written yet.
    pub(crate) fn of<'a, S>(&'a self, input: &'a S) -> Rewritten<'a, S> {
        Rewritten { rewrite: self, input }
    }

    /// The same, if its input is not a file but the result of `before`. `bundles` are copied from the input of
    /// that: their offsets there and in the output.
    pub(crate) fn after(self, before: Rewrite, bundles: Vec<(Range<u64>, u64)>) -> Self {
        Self { bundles, before: Some(Box::new(before)), ..self }
    }

    /// Adds changes by the offset in the first file, of what is neither cut out nor moved.
    pub(crate) fn add(&mut self, edits: Vec<(u64, Vec<u8>)>) {
        for (offset, bytes) in edits {
            let before = self.before.as_ref();
            let offset = before.map_or(offset, |before| before.gaps.output_offset(offset));
            let offset = self.gaps.output_offset(offset);
            self.edits.push((offset, bytes));
        }
    }

    /// Writes bytes at an offset in the output.
    pub(crate) fn write_at(&mut self, offset: u64, bytes: Vec<u8>) {
        self.edits.push((offset, bytes));
    }

    /// Size of the output in bytes.
    pub(crate) fn output_size(&self) -> u64 {
        self.tail_offset + self.tail.len() as u64
    }

    /// Copies the kept bytes to the empty file `output`, then writes the changed ones over them.
    pub(crate) fn write(&self, input: &File, output: &File) -> io::Result<()> {
        self.write_range(input, output, 0..self.output_size(), 0)?;
        // Room at the end of the file may not be written to.
        output.set_len(self.output_size())
    }

    /// Writes a part of the output to the offset `to`.
    fn write_range(
        &self,
        input: &File,
        output: &File,
        range: Range<u64>,
        to: u64,
    ) -> io::Result<()> {
        for (source, at) in self.kept() {
            if let Some((part, place)) = part(&source, at, &range) {
                let to = to + (place - range.start);
                match &self.before {
                    None => copy_range(input, output, part, to)?,
                    Some(before) => before.write_range(input, output, part, to)?,
                }
            }
        }
        for (source, at) in &self.bundles {
            if let Some((part, place)) = part(source, *at, &range) {
                copy_range(input, output, part, to + (place - range.start))?;
            }
        }
        for (bytes, at) in self.changes() {
            if let Some((part, place)) = part(&(0..bytes.len() as u64), at, &range) {
                let bytes = &bytes[part.start as usize..part.end as usize];
                output.write_all_at(bytes, to + (place - range.start))?;
            }
        }
        Ok(())
    }

    /// The ranges of the input that stay, and their offsets in the output.
    fn kept(&self) -> Vec<(Range<u64>, u64)> {
        let mut start = 0;
        let mut kept = Vec::new();
        let cuts = self.gaps.iter().map(|gap| &gap.cut);
        let mut left_out = Vec::from_iter(cuts.chain(&self.holes));
        left_out.sort_by_key(|range| range.start);
        for cut in left_out {
            kept.push((start..cut.start.max(start), self.gaps.output_offset(start)));
            start = cut.end.max(start);
        }
        kept.push((start..self.kept_end, self.gaps.output_offset(start)));
        kept
    }

    /// What is written over it, with offsets in the output; a later change wins.
    fn changes(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let edits = self.edits.iter().map(|(offset, bytes)| (&bytes[..], *offset));
        edits.chain([(&self.tail[..], self.tail_offset)])
    }
}

/// The part of a `source` placed at offset `at` that is in `range`, and its offset there.
fn part(source: &Range<u64>, at: u64, range: &Range<u64>) -> Option<(Range<u64>, u64)> {
    let size = source.end.saturating_sub(source.start);
    let (start, end) = (range.start.max(at), range.end.min(at + size));
    (start < end).then(|| (source.start + (start - at)..source.start + (end - at), start))
}

/// What a rewrite makes of `input`, not written yet.
pub(crate) struct Rewritten<'a, S> {
    rewrite: &'a Rewrite,
    input: &'a S,
}

impl<S: ReadAt> ReadAt for Rewritten<'_, S> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.rewrite.output_size())
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.rewrite.output_size()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let range = offset..end;
        buf.fill(0);
        for (source, at) in self.rewrite.kept() {
            if let Some((part, place)) = part(&source, at, &range) {
                let start = (place - offset) as usize;
                let size = (part.end - part.start) as usize;
                self.input.read_exact_at(part.start, &mut buf[start..start + size])?;
            }
        }
        for (bytes, at) in self.rewrite.changes() {
            if let Some((part, place)) = part(&(0..bytes.len() as u64), at, &range) {
                let start = (place - offset) as usize;
                let bytes = &bytes[part.start as usize..part.end as usize];
                buf[start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}
