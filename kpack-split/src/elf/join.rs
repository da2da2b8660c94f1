//! Puts device code back into a split binary: the reverse of `layout`.
//!
//! The bundles go into the addresses that the split freed, and the segment before them grows over
//! them. No program header is added and no address changes. Later file offsets grow by a multiple of
//! the page size. `.hip_fatbin` holds the bundles again; the marker stays, so that the result can be
//! split again and says where the rest of its code is.

use std::fs::File;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::Dynamic;
use super::edits::{self, Edits, Relocated};
use super::headers::Segment;
use super::hole::{BUNDLE_ALIGN, Hole};
use super::image::Image;
use super::plan::{Gap, Parts, Plan, PlannedWrapper};
use super::refuse;
use super::section_table::SectionTable;
use super::{ElfError, ReadAt, check};

/// How to make a joined binary from a split one.
#[derive(Debug, Clone)]
pub struct JoinPlan {
    plan: Plan,
    /// Offset in the output of each wrapper's bundle, in order of the wrappers.
    bundles: Vec<u64>,
}

/// Device code to put back.
#[derive(Debug, Clone)]
pub struct NewCode<'a> {
    /// Addresses of the wrappers, in order.
    pub wrappers: &'a [u64],
    /// The size of each wrapper's bundle in bytes.
    pub sizes: &'a [u64],
    /// Address of the marker, and the room that a marker of another split needs.
    pub marker: Range<u64>,
}

impl JoinPlan {
    /// Plans the joined binary of `image`, which is split, or was joined for other targets.
    pub fn new<S: ReadAt>(image: &Image<S>, code: &NewCode<'_>) -> Result<Self, ElfError> {
        image.validate()?;
        let dynamic = Dynamic::read(image)?;
        let Some(hole) = Hole::find(image, &code.marker)? else {
            refuse!(
                "it has no addresses for device code, because its objects were split before the link; link unsplit objects instead"
            );
        };
        let (bundles, end) = place(&hole.free, code.sizes)?;
        let geometry = Geometry::new(image, hole, end);

        let table = geometry.section_table(image)?;
        let segments = geometry.segments(image)?;
        let pairs = code.wrappers.iter().zip(&bundles);
        let wrappers: Vec<PlannedWrapper> = pairs
            .map(|(address, bundle)| PlannedWrapper::fat(*address, *bundle))
            .collect();
        let mut edits = Edits::default();
        geometry.clear(image, &mut edits);
        edits::redirect(image, &dynamic, &wrappers, &mut edits, &mut |other, _| {
            geometry.check_relocation(&other)
        })?;
        edits::renumber(image, &table, &mut edits, &|symbol, index| {
            if index == geometry.hole.fat {
                symbol.st_value.set(LE, geometry.code.start);
            }
            table.renumber(index)
        })?;
        let parts = Parts {
            wrappers,
            marker_offset: geometry.offset_of(code.marker.start),
            marker: code.marker.clone(),
            gap: geometry.gap.clone(),
            segments,
            table,
            edits,
        };
        let offset_of = |address: &u64| geometry.offset_of(*address);
        Ok(Self {
            bundles: bundles.iter().map(offset_of).collect(),
            plan: Plan::assemble(image, parts),
        })
    }

    /// Size of the joined binary in bytes.
    pub fn output_size(&self) -> u64 {
        self.plan.output_size()
    }

    /// Offset in the output of each wrapper's bundle, in order of the wrappers.
    pub fn bundles(&self) -> &[u64] {
        &self.bundles
    }

    /// Writes the joined binary without its bundles to the empty file `output`. `input` must be the
    /// planned file.
    pub fn write(&self, input: &File, output: &File) -> Result<(), ElfError> {
        self.plan.write(input, output)
    }

    /// Reads the joined binary back and checks it.
    pub fn check(&self, output: &File) -> Result<(), ElfError> {
        check::result(output, &self.plan)
    }
}

/// The address of each bundle, and where the last one ends.
fn place(free: &Range<u64>, sizes: &[u64]) -> Result<(Vec<u64>, u64), ElfError> {
    let mut bundles = Vec::with_capacity(sizes.len());
    let mut end = free.start;
    for size in sizes {
        let start = end
            .checked_next_multiple_of(BUNDLE_ALIGN)
            .unwrap_or(u64::MAX);
        bundles.push(start);
        end = start.saturating_add(*size);
    }
    if end > free.end {
        refuse!(
            "the device code needs {} bytes, and the addresses that the split freed have {}; join fewer targets, or install the unsplit binary",
            end - free.start,
            free.end.saturating_sub(free.start)
        );
    }
    Ok((bundles, end))
}

/// Positions in the joined binary: addresses, unless marked as offsets.
struct Geometry {
    hole: Hole,
    /// `.hip_fatbin`.
    code: Range<u64>,
    /// File offset of `.hip_fatbin` in the output, which is before or at the gap.
    code_offset: u64,
    /// End of what the segment loads from the file.
    loaded: u64,
    gap: Gap,
}

impl Geometry {
    fn new<S>(image: &Image<S>, hole: Hole, end: u64) -> Self {
        let segment = &image.segments[hole.load];
        // Every mapped byte stays in a section.
        let end = match hole.is_in_file(segment) && hole.cut.is_empty() {
            true => hole.free.end,
            false => end.next_multiple_of(BUNDLE_ALIGN).min(hole.free.end),
        };
        Self {
            code: hole.free.start..end,
            code_offset: segment.offset + (hole.free.start - segment.vaddr),
            loaded: end.max(hole.kept),
            gap: hole.gap(image, end),
            hole,
        }
    }

    /// Output offset of an address in the segment of the marker.
    fn offset_of(&self, address: u64) -> u64 {
        self.code_offset + address - self.code.start
    }

    /// Zeroes device code of an earlier join that stays in the file.
    fn clear<S>(&self, image: &Image<S>, edits: &mut Edits) {
        let old = &image.sections[self.hole.fat];
        if old.has_bytes() {
            let end = old.addr_end().min(self.hole.kept);
            edits.zero(old.offset, end.saturating_sub(old.addr));
        }
    }

    fn check_relocation(&self, other: &Relocated) -> Result<(), ElfError> {
        let is_inside = |address: &u64| self.code.contains(address);
        let named = [Some(other.relocation.address), other.target];
        match named.into_iter().flatten().find(is_inside) {
            Some(address) if !other.of_wrapper => refuse!(
                "a relocation ({:?}) names address {address:#x}, where its device code was",
                other.relocation.kind
            ),
            _ => Ok(()),
        }
    }

    /// The sections, `.hip_fatbin` in its place by address.
    fn section_table<S: ReadAt>(&self, image: &Image<S>) -> Result<SectionTable, ElfError> {
        let fat = self.hole.fat;
        let mut order: Vec<usize> = (0..image.sections.len()).filter(|i| *i != fat).collect();
        let before = |index: &usize| {
            let section = &image.sections[*index];
            section.is_alloc() && section.addr < self.code.start
        };
        let place = order.iter().rposition(before).map_or(0, |last| last + 1);
        order.insert(place, fat);
        SectionTable::reordered(image, &order, self.hole.marker, &|index, section| {
            if index == fat {
                section.kind = elf::SHT_PROGBITS;
                section.addr = self.code.start;
                section.offset = self.code_offset;
                section.size = self.code.end - self.code.start;
                section.align = BUNDLE_ALIGN;
                return;
            }
            if index == self.hole.marker {
                section.size = section.addr_end().min(self.code.start) - section.addr;
            }
            section.offset = self.gap.output_offset(section.offset);
        })
    }

    fn segments<S>(&self, image: &Image<S>) -> Result<Vec<Segment>, ElfError> {
        let Gap { cut, .. } = &self.gap;
        let mut segments = image.segments.clone();
        for (index, segment) in segments.iter_mut().enumerate() {
            if index == self.hole.load {
                let reserved = segment.memsz > segment.filesz;
                segment.filesz = self.loaded - segment.vaddr;
                segment.memsz = match reserved {
                    true => segment.memsz.max(segment.filesz),
                    false => segment.filesz,
                };
                continue;
            }
            if segment.offset < cut.start && cut.start < segment.file_end() {
                refuse!(
                    "program header {index} ({:?}) covers file offset {:#x}, where device code goes",
                    segment.kind,
                    cut.start
                );
            }
            segment.offset = self.gap.output_offset(segment.offset);
        }
        Ok(segments)
    }
}
