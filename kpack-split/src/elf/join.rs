//! Puts device code back into a split binary, or takes it out again: the reverse of `layout`.
//!
//! First choice are the addresses that splitting freed. They come after the marker, in the segment that
//! held the device code or right after it. Tools that run on a split binary may move sections and trim
//! the segment, so the addresses are not recomputed from the split: they are the largest range after the
//! marker that nothing occupies. Code that does not fit there goes after everything else: the last
//! segment grows over its zeroed memory (`.bss`) and the code.
//!
//! The segment before the bundles grows over them. No program header is added and no address changes.
//! Later file offsets grow by a multiple of the page size. `.hip_fatbin` holds the bundles again, and a
//! record of what the headers were ([`former`]); the marker stays, so that the result can
//! be split again and says where the rest of its code is.

use std::fs::File;
use std::ops::Range;

use kpack_format::marker;
use object::LittleEndian as LE;
use object::elf;

use kpack_core::archives::KeptBundle;

use super::dynamic::Dynamic;
use super::former::{self, Former};
use super::headers::{Section, Segment};
use super::image::{Image, LIMIT};
use super::plan::{ElfPlan, Parts, Relocated, redirect};
use super::records::FAT_SECTION;
use super::section_table::SectionTable;

use super::{BinaryError, ReadAt, check};
use super::{refuse, unsupported};
use crate::device_code::{
    BUNDLE_ALIGN, DeviceCode, FatBinary, KeptMarker, NewCode, PlannedWrapper, place_bundles,
};
use crate::plan::{self, WrappersAt};
use crate::rewrite::{Edits, Gap, Gaps};

/// At most so much zeroed memory becomes zeroes in a file, in bytes.
const MOST_ZEROES: u64 = 1 << 30;

/// How to make a joined binary from a split one.
pub type ElfJoinPlan = plan::BinaryJoinPlan<ElfPlan>;

impl ElfJoinPlan {
    /// Plans the joined binary of `image`, which is split, or was joined for other targets.
    pub fn new<S: ReadAt>(image: &Image<S>, code: &NewCode<'_>) -> Result<Self, BinaryError> {
        let wrappers = |bundles: &[u64]| code.wrappers_at(bundles);
        Self::with(image, &code.marker, code.sizes, &wrappers)
    }

    /// With bundles of these sizes. `wrappers` gets their addresses, and tells what becomes of each
    /// wrapper.
    fn with<S: ReadAt>(
        image: &Image<S>,
        marker: &Range<u64>,
        sizes: &[u64],
        wrappers: &WrappersAt<'_>,
    ) -> Result<Self, BinaryError> {
        image.validate()?;
        check::sound(image)?;
        let Some(split) = SplitImage::of(image, marker)? else {
            refuse!(
                "no addresses for device code, because its objects were split before the link; link unsplit objects instead"
            );
        };
        let places = split.places(marker)?;
        let chosen = split.choose(&places, sizes)?;
        let result = Rearranged::with_code(&split, &chosen);
        let bundles = &chosen.bundles;
        let mut plan = result.plan(wrappers(bundles), marker.clone(), Edits::default())?;
        let record = split.former(chosen.place, chosen.lead).to_bytes();
        let end = if chosen.is_record_inside { result.code.end } else { result.code.start };
        plan.write_at(result.offset_of(end) - record.len() as u64, record);
        let freed = &places[0].free;
        Ok(Self {
            bundles: bundles.iter().map(|at| result.offset_of(*at)).collect(),
            plan,
            room: freed.end.saturating_sub(freed.start),
        })
    }

    /// Reads the joined binary back and checks it. `input` must be the planned file.
    pub fn check(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        self.plan.check(input, output)
    }
}

impl ElfPlan {
    /// The same plan, but these bundles of `input` and their wrappers stay.
    pub(crate) fn keeping<S: ReadAt>(
        self,
        input: &S,
        kept: &[KeptBundle],
    ) -> Result<Self, BinaryError> {
        self.keeping_by(input, kept, |result, marker, sizes, wrappers| {
            ElfJoinPlan::with(&Image::read(result)?, marker, sizes, wrappers)
        })
    }
}

/// Plans the split binary of a joined one: its marker, and what moved, stay where they are. The segment of a marker alone,
/// as ROCm's tool makes it, grows if the new marker is longer.
pub(crate) fn take_out<S: ReadAt>(
    image: &Image<S>,
    fat: &FatBinary,
    kept: &KeptMarker,
    marker: &[u8],
) -> Result<ElfPlan, BinaryError> {
    let size = marker.len() as u64;
    let addresses = kept.address..kept.address + size;
    let Some(split) = SplitImage::of(image, &addresses)? else {
        refuse!("no section `{FAT_SECTION}`");
    };
    let longer = split.longer_marker(size)?;
    let mut edits = Edits::default();
    let read = |offset, size| image.bytes(offset, size, "the marker");
    let room = longer.as_ref().map_or(kept.available, |_| size);
    let former = kept.replace(room, read, marker, &mut edits)?;
    let wrappers = fat
        .wrappers
        .iter()
        .map(|w| PlannedWrapper::split(w.address, Some(addresses.start), w.co_index));
    let rearranged = Rearranged::without_code(&split, longer);
    let mut plan = rearranged.plan(wrappers.collect(), addresses.clone(), edits)?;
    plan.former_marker = former;
    Ok(plan)
}

/// A split binary, or a joined one as if its device code were cut out. Offsets are those of the file as
/// it is.
struct SplitImage<'a, S> {
    /// The headers of the file as it is.
    input: Image<()>,
    image: Image<&'a S>,
    /// Index of `.hip_fatbin`.
    fat: usize,
    /// Index of the `.rocm_kpack_ref` with the marker.
    marker: usize,
    /// Index of `.hip_fatbin` in the split binary.
    index: usize,
    /// The addresses of `.hip_fatbin` as it is.
    found: Range<u64>,
    /// The file offsets of device code that was put back.
    old: Range<u64>,
    /// The file offsets to cut out: most of `old`, and padding around it.
    cut: Range<u64>,
}

/// A place for device code, after the content of a segment or within it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FreeRange {
    /// Index of the PT_LOAD.
    load: usize,
    /// The free addresses. The start is aligned.
    free: Range<u64>,
    /// Where the file gets more bytes: after the content of the segment, or where the next one's begins if it
    /// has none.
    at: u64,
}

/// How the segment of a marker alone grows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LongerMarker {
    /// Index of the PT_LOAD.
    load: usize,
    /// Bytes by which it grows, and its section.
    more: u64,
    /// New bytes of the file, if others follow the marker.
    gap: Gap,
}

/// The place that the bundles fit into.
struct ChosenPlace<'p> {
    place: &'p FreeRange,
    /// The address of each bundle.
    bundles: Vec<u64>,
    /// The end of the device code.
    end: u64,
    /// Whether the record is the end of the device code. Code that takes all of its segment leaves no room there,
    /// so its record comes before it in the file, in no section.
    is_record_inside: bool,
    /// New bytes of the file before those of the segment, so that its offset is congruent to its address.
    lead: u64,
}

impl<'a, S: ReadAt> SplitImage<'a, S> {
    /// Reads the headers of `image`. `marker` is the marker's addresses with the room that it needs.
    /// `None` if the file never had device code: its objects were split before the link.
    fn of(image: &'a Image<S>, marker: &Range<u64>) -> Result<Option<Self>, BinaryError> {
        let Some((fat, code)) = image.section(FAT_SECTION)? else {
            return Ok(None);
        };
        let Some(own) = image.sections.iter().position(|s| is_of_marker(s, marker)) else {
            refuse!(
                "the marker, at address {:#x}, is not in a section `{}`",
                marker.start,
                marker::SECTION_NAME
            );
        };
        let mut split = Self {
            input: image.over(()),
            image: image.over(image.source()),
            fat,
            marker: own,
            index: fat,
            found: code.addr..code.addr_end(),
            old: 0..0,
            cut: 0..0,
        };
        // A split that would free no page may leave the device code in the file.
        let is_joined = matches!(image.device_code()?, DeviceCode::Fat(_));
        if code.has_bytes() && code.size > 0 && is_joined {
            let Some((load, _)) = image.load_of(&split.found) else {
                refuse!("`{FAT_SECTION}` is in no PT_LOAD");
            };
            split.old = code.offset..code.file_end();
            check::overlaps(image, &split.old, load)?;
            let former = match Former::read(image, code)? {
                Some(former) if former.fits(image, load, fat, own) => former,
                _ => Former::guess(image, load, fat, own, marker)?,
            };
            split.take_out(load, &former);
        }
        Ok(Some(split))
    }

    /// Gives the headers their former values.
    fn take_out(&mut self, load: usize, former: &Former) {
        let kept = former.kept;
        self.cut = former.cut(&self.image, load);
        self.index = former.index.min(self.image.sections.len() - 1);
        let segment = self.image.segments[load];
        let cut = self.cut.clone();
        let base = former.base(&segment, &cut);
        // What comes after the cut has its offset still.
        let offset = |relative: u64| match base.wrapping_add(relative) {
            offset if offset >= cut.start => offset.saturating_add(cut.end - cut.start),
            offset => offset,
        };
        let zeroed = former::zeroed(&self.image, load, kept..self.found.start, self.fat);
        for (nth, index) in zeroed.into_iter().enumerate() {
            let relative = former.zeroed.get(nth).copied();
            self.image.sections[index].offset = offset(relative.unwrap_or(kept - segment.vaddr));
        }
        let segment = &mut self.image.segments[load];
        segment.offset = offset(former.segment);
        if !self.cut.is_empty() {
            segment.filesz = kept - segment.vaddr;
        }
        segment.memsz = segment.filesz.max(former.memory - segment.vaddr);
        self.image.sections[self.marker].size = former.marker_size;
        let code = &mut self.image.sections[self.fat];
        code.empty(former.addresses.clone());
        code.kind = former.kind;
        code.align = former.align;
        code.offset = offset(former.offset);
    }

    /// How to make room for a marker of `size` bytes; `None` if that is not necessary, or not possible: where another
    /// content follows in the marker's segment, or another segment on its pages.
    fn longer_marker(&self, size: u64) -> Result<Option<LongerMarker>, BinaryError> {
        let image = &self.image;
        let own = &image.sections[self.marker];
        let more = size.saturating_sub(own.size);
        let is_alone = |s: &Segment| {
            s.is_load() && s.memsz == s.filesz && (s.offset, s.filesz) == (own.offset, own.size)
        };
        let Some(load) = image.segments.iter().position(is_alone).filter(|_| more > 0) else {
            return Ok(None);
        };
        let page = image.page_size();
        let mut later = image.segments[load + 1..].iter().filter(|s| s.is_load());
        let limit = later.next().map_or(LIMIT, |next| next.vaddr - next.vaddr % page);
        if own.addr + size > limit {
            return Ok(None);
        }
        let at = own.file_end();
        let sections = image.sections.iter().filter(|s| s.has_bytes() && s.size > 0);
        let segments = image.segments.iter().filter(|s| s.filesz > 0);
        let tables = [image.table().start, image.header.e_phoff.get(LE), image.size];
        let cut = Some(self.cut.start).filter(|_| !self.cut.is_empty());
        let later =
            sections.map(|s| s.offset).chain(segments.map(|s| s.offset)).chain(tables).chain(cut);
        let next = later.filter(|offset| *offset >= at).min().unwrap_or(at);
        let free = image.bytes(at, more.min(next - at), "what follows the marker")?;
        let is_free = free.len() as u64 == more && free.iter().all(|byte| *byte == 0);
        let room = if is_free { 0 } else { more.next_multiple_of(page) };
        Ok(Some(LongerMarker { load, more, gap: Gap { cut: at..at, room } }))
    }

    /// What to remember if device code goes to `place`.
    fn former(&self, place: &FreeRange, lead: u64) -> Former {
        let segment = &self.image.segments[place.load];
        let code = &self.image.sections[self.fat];
        let sections = &self.image.sections;
        let kept = segment.file_backed_end();
        let zeroed = former::zeroed(&self.image, place.load, kept..place.free.start, self.fat);
        let cut = Gaps::new([Gap::cut(self.cut.clone())]);
        let base = if segment.filesz > 0 { segment.offset } else { place.at };
        let start = cut.output_offset(base);
        let relative = |offset: u64| cut.output_offset(offset).wrapping_sub(start);
        Former {
            kept,
            lead,
            segment: relative(segment.offset),
            memory: segment.vaddr + segment.memsz,
            kind: code.kind,
            addresses: code.addr..code.addr_end(),
            align: code.align,
            offset: relative(code.offset),
            index: self.index,
            marker_size: sections[self.marker].size,
            zeroed: zeroed.into_iter().map(|index| relative(sections[index].offset)).collect(),
        }
    }

    /// The places for device code: the addresses that splitting freed, then those after everything else,
    /// where that is possible. Splitting left the former in a segment without content, or in none.
    fn places(&self, marker: &Range<u64>) -> Result<Vec<FreeRange>, BinaryError> {
        let image = &self.image;
        let Some((load, segment)) = image.load_of(&(marker.start..marker.start + 1)) else {
            refuse!("the marker is not in the file");
        };
        let occupied = image.occupied(self.fat, self.marker, marker);
        let freed = self.emptied(&occupied).unwrap_or_else(|| {
            let limit = limit(image, load, segment);
            FreeRange::new(image, load, largest_gap(&occupied, marker.end, limit))
        });
        let is_cleared = freed.free.start < self.found.end && self.found.start < freed.free.end;
        if !is_cleared || self.old.is_empty() {
            check_padding(image, &freed.free, &image.segments[freed.load])?;
        }
        Ok([Some(freed), self.last()].into_iter().flatten().collect())
    }

    /// The segment without content that has nothing but the addresses of `.hip_fatbin`, from its first page on.
    fn emptied(&self, occupied: &[Range<u64>]) -> Option<FreeRange> {
        let image = &self.image;
        let code = &image.sections[self.fat];
        let first = code.addr.next_multiple_of(image.machine.tool_page());
        let is_around = |s: &Segment| {
            let end = s.vaddr.saturating_add(s.memsz);
            s.is_load() && s.filesz == 0 && s.vaddr <= first && code.addr_end() <= end
        };
        let load = image.segments.iter().position(is_around).filter(|_| code.size > 0)?;
        let start = image.segments[load].vaddr.max(code.addr);
        let place = FreeRange::new(image, load, start..code.addr_end());
        let is_free = |range: &Range<u64>| range.end <= start || code.addr_end() <= range.start;
        (!place.free.is_empty() && occupied.iter().all(is_free)).then_some(place)
    }

    /// The place after everything else in memory. There is none if growing the last segment would tear
    /// something else in the file. Where several sections have markers, nothing would tell which one
    /// belongs to the code.
    fn last(&self) -> Option<FreeRange> {
        let image = &self.image;
        let load = image.segments.iter().rposition(Segment::is_load)?;
        let segment = &image.segments[load];
        let (at, memory) = (segment.file_end(), segment.vaddr + segment.memsz);
        let mut others = image.sections.iter().enumerate().filter(|s| s.0 != self.fat);
        let is_torn = others.any(|(_, s)| s.has_bytes() && s.offset < at && at < s.file_end());
        let own = &image.sections[self.marker];
        let is_marker = |s: &&Section| s.name == own.name;
        let markers = image.sections.iter().filter(is_marker).count();
        let can_grow = segment.filesz > 0 && segment.memsz - segment.filesz <= MOST_ZEROES;
        (markers == 1 && can_grow && !is_torn).then(|| FreeRange::new(image, load, memory..LIMIT))
    }

    /// The first place that the bundles and the record fit into.
    fn choose<'p>(
        &self,
        places: &'p [FreeRange],
        sizes: &[u64],
    ) -> Result<ChosenPlace<'p>, BinaryError> {
        let page = self.image.page_size();
        for place in places {
            let (bundles, end) = place_bundles(place.free.start, sizes, BUNDLE_ALIGN);
            let record = self.former(place, 0).size();
            let segment = &self.image.segments[place.load];
            let is_record_inside = end.saturating_add(record) <= place.free.end;
            if is_record_inside || segment.filesz == 0 && end <= place.free.end {
                let end = if is_record_inside { end + record } else { place.free.end };
                let least = if is_record_inside { 0 } else { record };
                let lead = match segment.filesz {
                    0 => {
                        let lead = segment.vaddr.wrapping_sub(place.at) % page;
                        lead + least.saturating_sub(lead).next_multiple_of(page)
                    }
                    _ => 0,
                };
                return Ok(ChosenPlace { place, bundles, end, is_record_inside, lead });
            }
        }
        let needed = sizes.iter().fold(0, |sum: u64, size| {
            let size = size.checked_next_multiple_of(BUNDLE_ALIGN);
            sum.saturating_add(size.unwrap_or(u64::MAX))
        });
        let free = &places[0].free;
        refuse!(
            "the device code needs {needed} bytes, and the addresses that the split freed have {}; join fewer \
             targets (--arch), or install the unsplit binary",
            free.end.saturating_sub(free.start)
        );
    }
}

impl FreeRange {
    fn new<S>(image: &Image<S>, load: usize, gap: Range<u64>) -> Self {
        let segments = &image.segments;
        let has_content = |s: &&Segment| s.is_load() && s.filesz > 0;
        let next = segments[load + 1..].iter().find(has_content);
        let at = match (segments[load].filesz, next) {
            (0, Some(next)) => next.offset,
            (0, None) => segments[..load].iter().rfind(has_content).map_or(0, Segment::file_end),
            _ => segments[load].file_end(),
        };
        Self { load, free: gap.start.next_multiple_of(BUNDLE_ALIGN)..gap.end, at }
    }
}

/// Refuses to overwrite anything but zeroes. Padding before the free addresses is in the file.
fn check_padding<S: ReadAt>(
    image: &Image<S>,
    free: &Range<u64>,
    segment: &Segment,
) -> Result<(), BinaryError> {
    let end = free.end.min(segment.file_backed_end());
    if free.start >= end {
        return Ok(());
    }
    let bytes = image.memory(free.start..end, "the place of the device code")?;
    if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
        refuse!("address {:#x}, where its device code was, is not zero", free.start + at as u64);
    }
    Ok(())
}

/// Whether it is the section that the marker begins in.
fn is_of_marker(section: &Section, marker: &Range<u64>) -> bool {
    marker::is_section(&section.name)
        && section.is_alloc()
        && section.has_bytes()
        && (section.addr..section.addr_end()).contains(&marker.start)
}

/// Where the addresses end that belonged to the segment before the split: at the next one, which
/// maps whole pages, or where its own memory ends.
fn limit<S>(image: &Image<S>, load: usize, segment: &Segment) -> u64 {
    let own_end = segment.vaddr + segment.memsz;
    if segment.memsz > segment.filesz {
        return own_end;
    }
    let mut later = image.segments[load + 1..].iter().filter(|s| s.is_load());
    later.next().map_or(own_end, |next| {
        let page = image.page_size();
        (next.vaddr - next.vaddr % page).max(own_end)
    })
}

/// The largest range between `start` and `limit` that no range of `occupied` touches.
fn largest_gap(occupied: &[Range<u64>], start: u64, limit: u64) -> Range<u64> {
    let mut largest = start..start;
    let mut at = start;
    let after = occupied.iter().filter(|range| range.end > start);
    for range in after.cloned().chain(std::iter::once(limit..u64::MAX)) {
        let free = at..range.start.min(limit);
        if free.end > free.start && free.end - free.start > largest.end - largest.start {
            largest = free;
        }
        at = at.max(range.end);
    }
    largest
}

/// The result: a split binary with device code in a place, or without. Positions are addresses, unless
/// marked as offsets.
struct Rearranged<'a, S> {
    split: &'a SplitImage<'a, S>,
    /// The place that the device code goes to.
    place: Option<&'a FreeRange>,
    /// `.hip_fatbin`.
    code: Range<u64>,
    gaps: Gaps,
    /// Address and output offset of the segment of that place.
    segment: (u64, u64),
    /// How the marker's segment grows.
    longer: Option<LongerMarker>,
}

impl<'a, S: ReadAt> Rearranged<'a, S> {
    /// With device code in a place.
    fn with_code(split: &'a SplitImage<'a, S>, chosen: &ChosenPlace<'a>) -> Self {
        let ChosenPlace { place, end, lead, .. } = *chosen;
        let image = &split.image;
        let segment = &image.segments[place.load];
        let kept = segment.file_backed_end();
        // Every mapped byte stays in a section.
        let end = if place.free.end <= kept {
            place.free.end
        } else {
            end.next_multiple_of(BUNDLE_ALIGN).min(place.free.end)
        };
        let added = end.saturating_sub(kept) + lead;
        let room = added.next_multiple_of(image.page_size());
        let new = Gap { cut: place.at..place.at, room };
        let gaps = Gaps::new([Gap::cut(split.cut.clone()), new]);
        let offset = match segment.filesz {
            0 => gaps.output_offset(place.at) - room + lead,
            _ => gaps.output_offset(segment.offset),
        };
        Self {
            gaps,
            split,
            place: Some(place),
            code: place.free.start..end,
            segment: (segment.vaddr, offset),
            longer: None,
        }
    }

    fn without_code(split: &'a SplitImage<'a, S>, longer: Option<LongerMarker>) -> Self {
        let code = &split.image.sections[split.fat];
        let room = longer.iter().map(|longer| longer.gap.clone());
        Self {
            gaps: Gaps::new([Gap::cut(split.cut.clone())].into_iter().chain(room)),
            split,
            place: None,
            code: code.addr..code.addr_end(),
            segment: (0, 0),
            longer,
        }
    }

    fn plan(
        &self,
        wrappers: Vec<PlannedWrapper>,
        marker: Range<u64>,
        mut edits: Edits,
    ) -> Result<ElfPlan, BinaryError> {
        let SplitImage { image, .. } = self.split;
        let dynamic = Dynamic::read(image)?;
        let mut table = self.section_table()?;
        let is_split = wrappers.iter().any(|wrapper| wrapper.magic == marker::MAGIC_SPLIT);
        let name = if is_split { marker::SECTION_NAME } else { marker::KEPT_SECTION_NAME };
        table.rename(image, self.split.marker, name);
        self.clear(&mut edits);
        redirect(image, &dynamic, &wrappers, &mut edits, &mut |other, _| {
            self.check_relocation(&other)
        })?;
        let found = &self.split.found;
        table.renumber_references(image, &mut edits, &|symbol, index| {
            let is_there = (found.start..=found.end).contains(&symbol.st_value.get(LE));
            if index == self.split.fat && is_there {
                symbol.st_value.set(LE, self.code.start);
            }
            table.renumber(index)
        })?;
        let Some(marker_offset) = image.offset_of(&(marker.start..marker.start + 1)) else {
            refuse!("the marker is not in the file");
        };
        let parts = Parts {
            input: self.split.input.clone(),
            wrappers,
            marker_offset,
            marker,
            gaps: self.gaps.clone(),
            segments: self.segments()?,
            table,
            edits,
        };
        ElfPlan::assemble(image, parts)
    }

    /// Output offset of an address in the segment of the place.
    fn offset_of(&self, address: u64) -> u64 {
        let (start, offset) = self.segment;
        offset + (address - start)
    }

    /// Zeroes device code of an earlier join that stays in the file.
    fn clear(&self, edits: &mut Edits) {
        let SplitImage { old, cut, .. } = self.split;
        let stays = if cut.is_empty() {
            [old.clone(), 0..0]
        } else {
            [old.start..cut.start, cut.end..old.end]
        };
        for range in stays {
            edits.zero(range.start, range.end.saturating_sub(range.start));
        }
    }

    fn check_relocation(&self, other: &Relocated) -> Result<(), BinaryError> {
        let old = &self.split.found;
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

    /// The sections: `.hip_fatbin` in its place by address, or in its former one.
    fn section_table(&self) -> Result<SectionTable, BinaryError> {
        let SplitImage { image, fat, .. } = self.split;
        let sections = &image.sections;
        let mut order: Vec<usize> = (0..sections.len()).filter(|i| i != fat).collect();
        let before =
            |index: &usize| sections[*index].is_alloc() && sections[*index].addr < self.code.start;
        let place = match self.place {
            Some(_) => order.iter().rposition(before).map_or(0, |last| last + 1),
            None => self.split.index,
        };
        order.insert(place, *fat);
        let rows = order.into_iter().map(|index| (Some(index), self.section(index)));
        SectionTable::new(image, rows.collect())
    }

    /// The new header of a section, with the old section numbers.
    fn section(&self, index: usize) -> Section {
        let SplitImage { image, .. } = self.split;
        let mut section = image.sections[index].clone();
        let Some(place) = self.place else {
            section.offset = self.gaps.output_offset(section.offset);
            if let Some(longer) = &self.longer
                && index == self.split.marker
            {
                section.size += longer.more;
            }
            return section;
        };
        if index == self.split.fat {
            section.empty(self.code.clone());
            section.kind = elf::SHT_PROGBITS;
            section.align = BUNDLE_ALIGN;
            section.offset = self.offset_of(self.code.start);
            return section;
        }
        if index == self.split.marker && section.addr < self.code.start {
            section.size = section.size.min(self.code.start - section.addr);
        }
        let kept = image.segments[place.load].file_backed_end();
        // Checkers look there for a section of zeroes that its segment now reads from the file.
        let is_zeroed = former::zeroed(image, place.load, kept..self.code.start, self.split.fat);
        section.offset = if is_zeroed.contains(&index) {
            self.offset_of(section.addr)
        } else {
            self.gaps.output_offset(section.offset)
        };
        section
    }

    fn segments(&self) -> Result<Vec<Segment>, BinaryError> {
        let mut segments = self.split.image.segments.clone();
        for (index, segment) in segments.iter_mut().enumerate() {
            let is_within =
                |gap: &&Gap| segment.offset < gap.cut.start && gap.cut.start < segment.file_end();
            if self.place.is_some_and(|place| place.load == index) {
                let loaded = self.code.end.max(segment.file_backed_end());
                let memory = loaded.max(segment.vaddr + segment.memsz);
                segment.filesz = loaded - segment.vaddr;
                segment.memsz = memory - segment.vaddr;
                segment.offset = self.segment.1;
                continue;
            }
            if let Some(gap) = self.gaps.iter().find(is_within) {
                unsupported!(
                    at gap.cut.start;
                    "program header {index} ({:?}) covers file offset {:#x}, where device code goes",
                    segment.kind,
                    gap.cut.start
                );
            }
            segment.offset = self.gaps.output_offset(segment.offset);
            if let Some(longer) = &self.longer
                && index == longer.load
            {
                segment.filesz += longer.more;
                segment.memsz += longer.more;
            }
        }
        Ok(segments)
    }
}

#[cfg(test)]
mod tests {
    use super::largest_gap;

    #[test]
    fn the_largest_gap_is_after_the_start_and_before_the_limit() {
        let occupied = [0..0x100, 0x120..0x200, 0x180..0x300, 0x1000..0x1100];
        assert_eq!(largest_gap(&occupied, 0x100, 0x1200), 0x300..0x1000);
        assert_eq!(largest_gap(&occupied, 0x100, 0x310), 0x100..0x120);
        assert_eq!(largest_gap(&occupied, 0x100, 0x2000), 0x1100..0x2000);
        assert_eq!(largest_gap(&occupied, 0x130, 0x250), 0x130..0x130);
    }
}
