//! What plans have in common, whatever the host format.

use std::fs::File;
use std::ops::Range;

use kpack_core::archives::KeptBundle;
use kpack_core::elf::BinaryError;
use kpack_format::marker::Marker;

use crate::device_code::{PlannedWrapper, keeping_wrappers, marker_bytes};
use crate::rewrite::{Rewrite, Rewritten};

/// How to make one binary from another. `I` are the headers of the input, `H` what is new in the output's.
#[derive(Debug, Clone)]
pub struct BinaryPlan<I, H> {
    /// The expected wrappers of the result, in order of address.
    pub(crate) wrappers: Vec<PlannedWrapper>,
    /// Address of the marker and its planned size.
    pub(crate) marker: Range<u64>,
    /// Offset of the marker in the output.
    pub(crate) marker_offset: u64,
    /// What the input has in the marker's place, if that is a marker.
    pub(crate) former_marker: Vec<u8>,
    pub(crate) input: Box<I>,
    pub(crate) headers: H,
    /// What becomes of the input's bytes.
    pub(crate) rewrite: Rewrite,
}

impl<I, H> BinaryPlan<I, H> {
    /// What it makes of `input`, not written yet.
    pub(crate) fn result<'a, S>(&'a self, input: &'a S) -> Rewritten<'a, S> {
        self.rewrite.of(input)
    }

    /// The same plan, if its input is not a file but the result of `before`. `bundles` are copied from the
    /// input of that: their offsets there and in the output.
    pub(crate) fn after(self, before: Self, bundles: Vec<(Range<u64>, u64)>) -> Self {
        Self {
            former_marker: before.former_marker,
            input: before.input,
            rewrite: self.rewrite.after(before.rewrite, bundles),
            ..self
        }
    }

    /// The same, but these bundles of `input` and their wrappers stay. The result is what a join of the split binary
    /// would be that puts only them back: `join` plans one of the result, with the marker there, with bundles of some
    /// sizes, and with wrappers that depend on the bundles' addresses.
    pub(crate) fn keeping_by<S>(
        self,
        input: &S,
        kept: &[KeptBundle],
        join: impl FnOnce(
            Rewritten<'_, S>,
            &Range<u64>,
            &[u64],
            &WrappersAt<'_>,
        ) -> Result<BinaryJoinPlan<Self>, BinaryError>,
    ) -> Result<Self, BinaryError> {
        if kept.is_empty() {
            return Ok(self);
        }
        let sizes = Vec::from_iter(kept.iter().map(|bundle| bundle.size));
        let wrappers = |bundles: &[u64]| keeping_wrappers(&self.wrappers, kept, bundles);
        let BinaryJoinPlan { plan, bundles, .. } =
            join(self.result(input), &self.marker, &sizes, &wrappers)?;
        let ranges = kept.iter().map(|kept| kept.offset..kept.offset + kept.size);
        Ok(plan.after(self, ranges.zip(bundles).collect()))
    }

    /// Replaces the planned marker. Drops code IDs that do not fit.
    pub fn set_marker(&mut self, marker: &Marker) -> Result<(), BinaryError> {
        let planned = self.marker.end - self.marker.start;
        let bytes = marker_bytes(marker, &self.former_marker, planned as usize)?;
        self.rewrite.write_at(self.marker_offset, bytes);
        Ok(())
    }

    /// Adds changes by input offset, for the wrappers and markers of objects that were split before
    /// the link. These are in data and in sections that do not move.
    pub(crate) fn add(&mut self, edits: Vec<(u64, Vec<u8>)>) {
        self.rewrite.add(edits);
    }

    /// Writes bytes at an offset in the output.
    pub(crate) fn write_at(&mut self, offset: u64, bytes: Vec<u8>) {
        self.rewrite.write_at(offset, bytes);
    }

    /// Size of the result in bytes.
    pub fn output_size(&self) -> u64 {
        self.rewrite.output_size()
    }

    /// Copies the kept bytes, then writes the changed ones over them.
    pub(crate) fn write(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        Ok(self.rewrite.write(input, output)?)
    }
}

/// The wrappers of a joined binary, by the addresses of its bundles.
pub(crate) type WrappersAt<'a> = dyn Fn(&[u64]) -> Vec<PlannedWrapper> + 'a;

/// How to make a joined binary from a split one, by a plan of a host format.
#[derive(Debug, Clone)]
pub struct BinaryJoinPlan<P> {
    pub(crate) plan: P,
    /// Offset in the output of each bundle.
    pub(crate) bundles: Vec<u64>,
    /// Bytes of memory that the former device code left, which is about its size. The code may be put elsewhere.
    pub(crate) room: u64,
}

impl<I, H> BinaryJoinPlan<BinaryPlan<I, H>> {
    /// Size of the joined binary in bytes.
    pub fn output_size(&self) -> u64 {
        self.plan.output_size()
    }

    /// Offset in the output of each bundle.
    pub fn bundles(&self) -> &[u64] {
        &self.bundles
    }

    /// About how many bytes the former device code had.
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// As [`Rewrite::leave_out`]; the memory check skips these ranges.
    pub(crate) fn leave_out(&mut self, holes: &[Range<u64>]) -> Vec<u64> {
        self.plan.rewrite.leave_out(holes)
    }

    /// Writes the joined binary without its bundles to the empty file `output`. `input` must be the
    /// planned file.
    pub fn write(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        self.plan.write(input, output)
    }
}

/// What is wrong with a result, as it is read back: the fault is in that, not in its sound input.
pub(crate) fn unsound(error: BinaryError) -> BinaryError {
    match error {
        BinaryError::Truncated(reason)
        | BinaryError::Refused(reason)
        | BinaryError::Unsupported(reason) => BinaryError::Unsound(reason),
        error => error,
    }
}
