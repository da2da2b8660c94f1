//! Puts device code back into a split binary, or takes it out again: the reverse of `layout`.
//!
//! The bundles go into a [`Place`] of the [`Hole`], and the segment before them grows over them. No
//! program header is added and no address changes. Later file offsets grow by a multiple of the page
//! size. `.hip_fatbin` holds the bundles again; the marker stays, so that the result can be split again
//! and says where the rest of its code is.

use std::fs::File;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::Dynamic;
use super::edits::{self, Edits, Relocated};
use super::headers::{Section, Segment};
use super::hole::{BUNDLE_ALIGN, Hole, Place};
use super::image::Image;
use super::plan::{Gap, Gaps, Parts, Plan, PlannedWrapper};
use super::records::FAT_SECTION;
use super::refuse;
use super::section_table::SectionTable;
use super::wrappers::{FatBinary, KeptMarker};
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
        check::loaded(image)?;
        let Some(hole) = Hole::find(image, &code.marker)? else {
            refuse!(
                "it has no addresses for device code, because its objects were split before the link; link unsplit objects instead"
            );
        };
        let (place, bundles, end) = choose(&hole.places, code.sizes)?;
        let geometry = JoinGeometry::with_code(image, hole, place, end);
        let pairs = code.wrappers.iter().zip(&bundles);
        let wrappers = pairs
            .map(|(address, bundle)| PlannedWrapper::fat(*address, *bundle))
            .collect();
        let offset_of = |address: &u64| geometry.offset_of(*address);
        Ok(Self {
            bundles: bundles.iter().map(offset_of).collect(),
            plan: geometry.plan(wrappers, code.marker.clone(), Edits::default())?,
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

/// Plans the split binary of a joined one: its marker, and what moved, stay where they are.
pub(crate) fn take_out<S: ReadAt>(
    image: &Image<S>,
    fat: &FatBinary,
    kept: &KeptMarker,
    marker: &[u8],
) -> Result<Plan, ElfError> {
    let size = marker.len() as u64;
    if size > kept.available {
        refuse!(
            "its marker has room for {} bytes, but the new one needs {size}; install the unsplit binary",
            kept.available
        );
    }
    let addresses = kept.address..kept.address + size;
    let Some(hole) = Hole::find(image, &addresses)? else {
        refuse!("it has no section `{FAT_SECTION}`");
    };
    let geometry = JoinGeometry::without_code(image, hole);
    let mut edits = Edits::default();
    edits.write(kept.offset, marker.to_vec());
    let padding_end = geometry.marker_end.min(fat.addresses.start);
    edits.zero(kept.offset + size, padding_end - addresses.end);
    let wrappers = fat.wrappers.iter();
    let wrappers =
        wrappers.map(|w| PlannedWrapper::split(w.address, Some(addresses.start), w.co_index));
    geometry.plan(wrappers.collect(), addresses.clone(), edits)
}

/// The first place that bundles fit into: its index, the address of each bundle, and where the last one
/// ends.
fn choose(places: &[Place], sizes: &[u64]) -> Result<(usize, Vec<u64>, u64), ElfError> {
    for (index, place) in places.iter().enumerate() {
        let mut end = place.free.start;
        let bundles = sizes.iter().map(|size| {
            let start = end.checked_next_multiple_of(BUNDLE_ALIGN);
            let start = start.unwrap_or(u64::MAX);
            end = start.saturating_add(*size);
            start
        });
        let bundles = bundles.collect();
        if end <= place.free.end {
            return Ok((index, bundles, end));
        }
    }
    let needed = sizes.iter().fold(0, |sum: u64, size| {
        let size = size.checked_next_multiple_of(BUNDLE_ALIGN);
        sum.saturating_add(size.unwrap_or(u64::MAX))
    });
    let free = &places[0].free;
    refuse!(
        "the device code needs {needed} bytes, and the addresses that the split freed have {}; join fewer targets, or install the unsplit binary",
        free.end.saturating_sub(free.start)
    );
}

/// Positions in the result: addresses, unless marked as offsets.
struct JoinGeometry<'a, S> {
    image: &'a Image<S>,
    hole: Hole,
    /// The index of the place that the device code goes to.
    place: Option<usize>,
    /// `.hip_fatbin`.
    code: Range<u64>,
    /// End of the marker's section.
    marker_end: u64,
    gaps: Gaps,
}

impl<'a, S: ReadAt> JoinGeometry<'a, S> {
    /// With device code in a place, up to address `end`.
    fn with_code(image: &'a Image<S>, hole: Hole, index: usize, end: u64) -> Self {
        let place = &hole.places[index];
        // Every mapped byte stays in a section.
        let in_file = place.is_in_file(&image.segments[place.load]);
        let end = match in_file && place.cut.is_empty() {
            true => place.free.end,
            false => end.next_multiple_of(BUNDLE_ALIGN).min(place.free.end),
        };
        let code = place.free.start..end;
        let marker_end = match index {
            0 => image.sections[hole.marker].addr_end().min(code.start),
            _ => marker_end(image, &hole),
        };
        let gap = |(at, place): (usize, &Place)| place.gap(image, (at == index).then_some(end));
        Self {
            gaps: Gaps::new(hole.places.iter().enumerate().map(gap)),
            image,
            hole,
            place: Some(index),
            code,
            marker_end,
        }
    }

    fn without_code(image: &'a Image<S>, hole: Hole) -> Self {
        let marker_end = marker_end(image, &hole);
        let freed = &hole.places[0];
        let is_zeroed = hole.used == Some(0) && freed.cut.is_empty();
        let code = match freed.memory > freed.kept && !is_zeroed {
            true => freed.kept..freed.free.end.max(freed.kept),
            false => marker_end..marker_end,
        };
        Self {
            gaps: Gaps::new(hole.places.iter().map(|place| place.gap(image, None))),
            image,
            hole,
            place: None,
            code,
            marker_end,
        }
    }

    fn plan(
        &self,
        wrappers: Vec<PlannedWrapper>,
        marker: Range<u64>,
        mut edits: Edits,
    ) -> Result<Plan, ElfError> {
        let image = self.image;
        let dynamic = Dynamic::read(image)?;
        let table = self.section_table()?;
        self.clear(&mut edits);
        edits::redirect(image, &dynamic, &wrappers, &mut edits, &mut |other, _| {
            self.check_relocation(&other)
        })?;
        edits::renumber(image, &table, &mut edits, &|symbol, index| {
            if edits::is_symbol_of(image, self.hole.fat, symbol, index) {
                symbol.st_value.set(LE, self.code.start);
            }
            table.renumber(index)
        })?;
        let of_marker = &image.segments[self.hole.places[0].load];
        let parts = Parts {
            wrappers,
            marker_offset: of_marker.offset + (marker.start - of_marker.vaddr),
            marker,
            gaps: self.gaps.clone(),
            segments: self.segments()?,
            table,
            edits,
        };
        Plan::assemble(image, parts)
    }

    /// Output offset of an address in the segment of `.hip_fatbin`.
    fn offset_of(&self, address: u64) -> u64 {
        let place = &self.hole.places[self.place.unwrap_or(0)];
        let segment = &self.image.segments[place.load];
        self.gaps.output_offset(segment.offset) + (address - segment.vaddr)
    }

    /// Zeroes device code of an earlier join that stays in the file.
    fn clear(&self, edits: &mut Edits) {
        let Some(used) = self.hole.used else {
            return;
        };
        let old = &self.image.sections[self.hole.fat];
        let cut = &self.hole.places[used].cut;
        let stays = match cut.is_empty() {
            true => [old.offset..old.file_end(), 0..0],
            false => [old.offset..cut.start, cut.end..old.file_end()],
        };
        for range in stays {
            edits.zero(range.start, range.end.saturating_sub(range.start));
        }
    }

    fn check_relocation(&self, other: &Relocated) -> Result<(), ElfError> {
        let old = &self.image.sections[self.hole.fat];
        let old = old.addr..old.addr_end();
        let is_inside = |address: &u64| self.code.contains(address) || old.contains(address);
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
    fn section_table(&self) -> Result<SectionTable, ElfError> {
        let sections = &self.image.sections;
        let fat = self.hole.fat;
        let mut order: Vec<usize> = (0..sections.len()).filter(|i| *i != fat).collect();
        let before =
            |index: &usize| sections[*index].is_alloc() && sections[*index].addr < self.code.start;
        let place = order.iter().rposition(before).map_or(0, |last| last + 1);
        order.insert(place, fat);
        let rows = order.into_iter().map(|index| (index, self.section(index)));
        SectionTable::reordered(self.image, rows.collect())
    }

    /// The new header of a section, with the old section numbers.
    fn section(&self, index: usize) -> Section {
        let mut section = self.image.sections[index].clone();
        if index == self.hole.fat {
            section.empty(self.code.clone());
            section.offset = self.offset_of(self.code.start);
            if self.place.is_some() {
                section.kind = elf::SHT_PROGBITS;
                section.align = BUNDLE_ALIGN;
            }
            return section;
        }
        if index == self.hole.marker {
            section.size = self.marker_end - section.addr;
        }
        let place = self.place.map(|place| &self.hole.places[place]);
        let is_covered = place.is_some_and(|place| {
            let start = self.image.segments[place.load].vaddr;
            section.offset >= place.cut.start && (start..self.code.start).contains(&section.addr)
        });
        // Checkers look there for a section of zeroes that its segment now reads from the file.
        section.offset = match is_covered && section.is_alloc() {
            true => self.offset_of(section.addr),
            false => self.gaps.output_offset(section.offset),
        };
        section
    }

    fn segments(&self) -> Result<Vec<Segment>, ElfError> {
        let mut segments = self.image.segments.clone();
        for (index, segment) in segments.iter_mut().enumerate() {
            let mut places = self.hole.places.iter().enumerate();
            let own = places.find(|(_, place)| place.load == index);
            let is_within =
                |gap: &&Gap| segment.offset < gap.cut.start && gap.cut.start < segment.file_end();
            if let Some((at, place)) = own {
                let loaded = match self.place == Some(at) {
                    true => self.code.end.max(place.kept),
                    false => place.kept,
                };
                segment.filesz = loaded - segment.vaddr;
                segment.memsz = loaded.max(place.memory) - segment.vaddr;
            } else if let Some(gap) = self.gaps.iter().find(is_within) {
                refuse!(
                    "program header {index} ({:?}) covers file offset {:#x}, where device code goes",
                    segment.kind,
                    gap.cut.start
                );
            }
            segment.offset = self.gaps.output_offset(segment.offset);
        }
        Ok(segments)
    }
}

/// End of the marker's section where no device code comes after it in the same place. What moved may be
/// there; if not, padding is.
fn marker_end<S>(image: &Image<S>, hole: &Hole) -> u64 {
    let own_end = image.sections[hole.marker].addr_end();
    let code = &image.sections[hole.fat];
    let is_between =
        |s: &Section| s.is_alloc() && s.size > 0 && (own_end..code.addr).contains(&s.addr);
    if hole.used != Some(0) || image.sections.iter().any(is_between) {
        return own_end;
    }
    match &hole.places[0] {
        place if place.cut.is_empty() => code.addr_end(),
        place => place.kept,
    }
}
