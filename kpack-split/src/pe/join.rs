//! Puts device code back into a split image, or takes it out again: the reverse of `layout`.
//!
//! First choice are the addresses that splitting freed, those of the device code's own section. Code that does not
//! fit there goes after everything else: that section moves to the end of the image, and the marker's grows over the
//! addresses that it leaves, since Windows loads no image with a hole. No address of anything else changes.

use std::fs::File;
use std::ops::Range;

use kpack_core::archives::KeptBundle;
use kpack_core::elf::{BinaryError, ReadAt, refuse, unsupported};
use kpack_format::marker::{MAGIC_SPLIT, MAX_SIZE, Marker};
use object::pe;

use super::check;
use super::checksum::Sums;
use super::former::{self, Former, FormerSection};
use super::image::{CODE_SECTIONS, Image, MARKER_SECTION, SECTION_HEADER, Section, moved};
use super::plan::{Parts, PePlan, can_be_rewritten};
use crate::device_code::{
    BUNDLE_ALIGN, FatBinary, KeptMarker, NewCode, PlannedWrapper, place_bundles,
};
use crate::plan::{self, WrappersAt};
use crate::rewrite::{Edits, Gap, Gaps};

/// How to make a joined binary from a split one.
pub type PeJoinPlan = plan::BinaryJoinPlan<PePlan>;

impl PeJoinPlan {
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
        check::sound(image)?;
        can_be_rewritten(image)?;
        let split = SplitImage::of(image)?;
        let joined = split.with_code(sizes)?;
        let (bundles, place) = (joined.bundles.clone(), joined.place.clone());
        let own = image
            .sections
            .iter()
            .find(|s| s.is_marker() && s.address == marker.start)
            .filter(|own| !own.in_file().is_empty());
        let Some(marker_offset) = own.map(|own| own.offset) else {
            refuse!(
                "the marker, at address {:#x}, is not at the start of a section `{MARKER_SECTION}`",
                marker.start
            );
        };
        let mut record = joined.former.to_bytes();
        if joined.former.has_saved {
            record.splice(..0, split.saved.iter().copied());
        }
        let mut edits = Edits::default();
        let former = split.code.map(|code| split.sections[code].1.address);
        if let Some(kept) = split.kept.filter(|_| former != Some(joined.address)) {
            edits.write(kept, split.saved.clone());
        }
        let mut plan = split.plan(Planned {
            sections: joined.sections,
            gaps: joined.gaps,
            headers_size: joined.headers_size,
            wrappers: wrappers(&bundles),
            marker: (marker.clone(), marker_offset),
            edits,
        })?;
        plan.write_at(place.end - record.len() as u64, record);
        let start = joined.address;
        let code = split.code.map(|code| &split.sections[code].1);
        Ok(Self {
            bundles: bundles.iter().map(|at| place.start + (at - start)).collect(),
            plan,
            room: code.map_or(0, Section::memory_size),
        })
    }

    /// For the checksum of a joined binary, if that has one.
    pub(crate) fn sums(&self) -> Option<Sums> {
        self.plan.sums()
    }

    /// Completes the joined binary when its bundles are written and recorded, then reads it back and checks it. `input`
    /// must be the planned file.
    pub(crate) fn finish(
        &self,
        input: &File,
        output: &File,
        sums: Option<&Sums>,
    ) -> Result<(), BinaryError> {
        if let Some(sums) = sums {
            sums.write(output)?;
        }
        self.plan.check(input, output)
    }
}

impl PePlan {
    /// The same plan, but these bundles of `input` and their wrappers stay.
    pub(crate) fn keeping<S: ReadAt>(
        self,
        input: &S,
        kept: &[KeptBundle],
    ) -> Result<Self, BinaryError> {
        self.keeping_by(input, kept, |result, marker, sizes, wrappers| {
            PeJoinPlan::with(&Image::read(result)?, marker, sizes, wrappers)
        })
    }
}

/// Plans the split binary of a joined one: its marker stays where it is.
pub(super) fn take_out<S: ReadAt>(
    image: &Image<S>,
    fat: &FatBinary,
    kept: &KeptMarker,
    marker: &[u8],
) -> Result<PePlan, BinaryError> {
    let size = marker.len() as u64;
    let mut edits = Edits::default();
    let read = |offset, size| image.bytes(offset, size, "the marker");
    let former = kept.replace(kept.available, read, marker, &mut edits)?;
    let split = SplitImage::of(image)?;
    if split.former.is_none() {
        unsupported!(
            "the device code is not where `kpack join` puts it; install the unsplit binary"
        );
    }
    let wrappers = fat
        .wrappers
        .iter()
        .map(|w| PlannedWrapper::split(w.address, Some(kept.address), w.co_index));
    let gaps = split.gaps([]);
    let sections = split.sections(&gaps);
    if let Some(kept) = split.kept {
        edits.write(kept, split.saved.clone());
    }
    let mut plan = split.plan(Planned {
        sections,
        gaps,
        headers_size: split.headers_size,
        wrappers: wrappers.collect(),
        marker: (kept.address..kept.address + size, kept.offset),
        edits,
    })?;
    plan.former_marker = former;
    Ok(plan)
}

/// A split image, or a joined one as if its device code were cut out. Offsets are those of the file as it is.
struct SplitImage<'a, S> {
    image: &'a Image<S>,
    /// The sections, each with its index in the image as it is.
    sections: Vec<(usize, Section)>,
    /// Index of the device code's section among them.
    code: Option<usize>,
    headers_size: u64,
    /// What a join changed before.
    former: Option<Former>,
    /// The file offsets of device code that was put back, without the place of what was saved.
    cut: Range<u64>,
    /// What the split image has in the device code's section, and where to restore it in the file.
    saved: Vec<u8>,
    kept: Option<u64>,
}

/// The layout of a joined image.
struct Joined {
    sections: Vec<(usize, Section)>,
    gaps: Gaps,
    headers_size: u64,
    former: Former,
    /// Address of the device code's section, and of each bundle.
    address: u64,
    bundles: Vec<u64>,
    /// Where the device code and the record are in the output.
    place: Range<u64>,
}

/// What a plan is made from.
struct Planned {
    sections: Vec<(usize, Section)>,
    gaps: Gaps,
    headers_size: u64,
    wrappers: Vec<PlannedWrapper>,
    marker: (Range<u64>, u64),
    edits: Edits,
}

/// The index of a section that the image as it is has not.
const NEW: usize = usize::MAX;

impl<'a, S: ReadAt> SplitImage<'a, S> {
    fn of(image: &'a Image<S>) -> Result<Self, BinaryError> {
        let mut split = Self {
            image,
            sections: image.sections.iter().cloned().enumerate().collect(),
            code: None,
            headers_size: image.headers_size(),
            former: None,
            cut: 0..0,
            saved: Vec::new(),
            kept: None,
        };
        let Some((index, code)) = image.section(&CODE_SECTIONS)? else {
            return Ok(split);
        };
        split.code = Some(index);
        let Some(former) = Former::read(image, code)? else {
            if let Some(left) = image.code_left()? {
                unsupported!("`{}` still has device code in the file", left.name);
            }
            split.saved =
                image.bytes(code.offset, code.file_size, "the rest of the device code")?;
            return Ok(split);
        };
        split.saved = former.saved(image, code)?;
        split.take_out(index, code, &former)?;
        split.former = Some(former);
        Ok(split)
    }

    /// Gives the headers their former values.
    fn take_out(
        &mut self,
        index: usize,
        code: &Section,
        former: &Former,
    ) -> Result<(), BinaryError> {
        let range = code.file_range();
        let is_moved = former.code.as_ref().is_none_or(|(_, old)| old.address != code.address);
        // What a section has in the file stays there if the section moves.
        let kept = former.code.as_ref().filter(|_| !is_moved).map_or(0, |(_, old)| old.file_size);
        self.cut = range.start + kept..range.end;
        self.kept = (!is_moved).then_some(range.start);
        // Strip has shorter headers for fewer sections.
        self.headers_size = former.headers_size.min(self.image.headers_size());
        let (own, _) = self.sections.remove(index);
        self.code = None;
        if is_moved {
            // Debug information comes after what is not in its former place.
            let align = self.image.section_alignment();
            let size = code.memory_size().next_multiple_of(align);
            for (_, debug) in &mut self.sections[index..] {
                debug.address = debug.address.saturating_sub(size);
            }
        }
        if let Some((position, old)) = &former.code {
            let fits = (1..=self.sections.len()).contains(position)
                && old.fits(code)
                && old.file_size <= self.image.section_alignment()
                && former.before >= self.least_size(&self.sections[position - 1].1)?;
            if !fits {
                return self.does_not_fit(code);
            }
            self.sections[position - 1].1.virtual_size = former.before;
            let mut restored = old.restore(code);
            if is_moved && old.file_size > 0 {
                restored.offset = self.file_end(&self.sections[..*position])?;
                let end = restored.offset.saturating_add(old.file_size);
                let there = if end <= self.image.size {
                    self.image.bytes(restored.offset, old.file_size, "device code")?
                } else {
                    Vec::new()
                };
                if there != self.saved {
                    return self.does_not_fit(code);
                }
            }
            self.sections.insert(*position, (own, restored));
            self.code = Some(*position);
        }
        let file_align = self.image.file_alignment();
        let sections = self.sections.iter().map(|(_, section)| section);
        // Debug information may have been removed since.
        let sizes = (self.headers_size, self.image_size(&self.sections));
        let fits = self.headers_size.is_multiple_of(file_align)
            && kept.is_multiple_of(file_align)
            && self.image.table().end <= self.headers_size + SECTION_HEADER
            && check::adjoining(sections, sizes, self.image.section_alignment()).is_ok();
        if fits { Ok(()) } else { self.does_not_fit(code) }
    }

    /// The least size in memory of a section: that of its bytes in the file without padding, or of its marker.
    fn least_size(&self, section: &Section) -> Result<u64, BinaryError> {
        let bytes = section.in_file().end - section.address;
        if !section.is_marker() {
            let padding = bytes.min(self.image.file_alignment());
            let start = section.offset + bytes - padding;
            let end = self.image.bytes(start, padding, "the end of a section")?;
            let zeroes = end.iter().rev().take_while(|byte| **byte == 0).count();
            return Ok(bytes - zeroes as u64);
        }
        let start = self.image.bytes(section.offset, bytes.min(MAX_SIZE as u64), "the marker")?;
        Ok(Marker::read(&start).map_or(bytes, |(_, size)| size as u64))
    }

    fn does_not_fit<T>(&self, code: &Section) -> Result<T, BinaryError> {
        refuse!(
            "the record of the join at the end of `{}` does not fit the sections: the file is damaged, or another \
             tool changed its sections; install the unsplit binary",
            code.name
        );
    }

    /// The size of an image of these sections.
    fn image_size(&self, sections: &[(usize, Section)]) -> u64 {
        let end = sections.last().map_or(0, |(_, last)| last.addresses().end);
        end.next_multiple_of(self.image.section_alignment())
    }

    /// The gaps of the output: what is cut out, and `more`.
    fn gaps(&self, more: impl IntoIterator<Item = Gap>) -> Gaps {
        let headers = Gap::cut(self.headers_size..self.image.headers_size());
        let own = [headers, Gap::cut(self.cut.clone())];
        Gaps::new(own.into_iter().chain(more))
    }

    /// The sections with offsets in the output.
    fn sections(&self, gaps: &Gaps) -> Vec<(usize, Section)> {
        let known = moved(self.image, gaps);
        let sections = self.sections.iter().map(|(index, section)| {
            let offset = match section.file_size {
                0 => section.offset,
                _ => gaps.output_offset(section.offset),
            };
            let Section { relocations, line_numbers, .. } = known[*index];
            let section = Section { offset, relocations, line_numbers, ..section.clone() };
            (*index, section)
        });
        sections.collect()
    }

    /// Lays out device code of these sizes at the first place where it fits.
    fn with_code(&self, sizes: &[u64]) -> Result<Joined, BinaryError> {
        if let Some(code) = self.code {
            let (_, section) = &self.sections[code];
            let is_last = code + 1 == self.sections.len();
            let room = section.memory_size().next_multiple_of(self.image.section_alignment());
            let (bundles, used) = self.bundles(section.address, sizes);
            if is_last || used <= room {
                return self.loadable(self.in_place(code, bundles, used)?);
            }
        }
        self.loadable(self.at_end(sizes)?)
    }

    /// Refuses a layout that Windows does not load.
    fn loadable(&self, joined: Joined) -> Result<Joined, BinaryError> {
        if self.image_size(&joined.sections) > check::LARGEST {
            unsupported!(
                "joined, the image would have more than the 2 GiB that Windows loads: the addresses of its former device \
                 code stay taken; join fewer targets (--arch), or install the unsplit binary"
            );
        }
        Ok(joined)
    }

    /// Whether a join has to save what the split image has in the device code's section.
    fn has_saved(&self) -> bool {
        self.saved.iter().any(|byte| *byte != 0)
    }

    /// The addresses of bundles of these sizes from `start` on, and the bytes with the record, in the file.
    fn bundles(&self, start: u64, sizes: &[u64]) -> (Vec<u64>, u64) {
        let (bundles, end) = place_bundles(start, sizes, BUNDLE_ALIGN);
        let saved = if self.has_saved() { self.saved.len() as u64 } else { 0 };
        let record = saved + former::SIZE;
        let end = end.min(2 * check::LARGEST).next_multiple_of(8) + record;
        let used = (end - start).next_multiple_of(self.image.file_alignment());
        (bundles, used)
    }

    /// With the code in its former section.
    fn in_place(&self, code: usize, bundles: Vec<u64>, used: u64) -> Result<Joined, BinaryError> {
        let section = &self.sections[code].1;
        let at = match section.file_size {
            0 => self.file_end(&self.sections[..code])?,
            _ => section.offset,
        };
        let new =
            Section { virtual_size: section.virtual_size.max(used), ..with_bytes(section, used) };
        let (index, address) = (self.sections[code].0, section.address);
        let replaced = at..at + section.file_size;
        let mut joined = self.joined((replaced, used), (address, bundles), self.headers_size)?;
        joined.sections[code] = (index, new);
        joined.sections[code].1.offset = joined.place.start;
        Ok(joined)
    }

    /// The sections before the debug information at the end of the image. Tools remove that, and leave no room for it.
    fn loaded(&self) -> &[(usize, Section)] {
        let is_debug = |(_, section): &&(usize, Section)| section.is_debug_information();
        let debug = self.sections.iter().rev().take_while(is_debug).count();
        &self.sections[..self.sections.len() - debug]
    }

    /// With the code after everything else that is loaded.
    fn at_end(&self, sizes: &[u64]) -> Result<Joined, BinaryError> {
        let address = self.image_size(self.loaded());
        let (bundles, used) = self.bundles(address, sizes);
        let at = self.file_end(self.loaded())?;
        let mut headers_size = self.headers_size;
        let (index, template) = match self.code {
            Some(code) => self.sections[code].clone(),
            None => {
                let end = self.image.table().end.max(self.table_end(1));
                if end > headers_size {
                    headers_size = end.next_multiple_of(self.image.file_alignment());
                }
                let Some(marker) = self.image.sections.iter().rfind(|s| s.is_marker()) else {
                    refuse!("no section `{MARKER_SECTION}`");
                };
                (NEW, new_section(marker))
            }
        };
        if headers_size > self.sections[0].1.address {
            unsupported!("no room for another section header");
        }
        let mut joined = self.joined((at..at, used), (address, bundles), headers_size)?;
        let mut own = self.loaded().len();
        for (_, debug) in &mut joined.sections[own..] {
            debug.address += used.next_multiple_of(self.image.section_alignment());
        }
        if let Some(code) = self.code {
            let next = self.sections[code]
                .1
                .addresses()
                .end
                .next_multiple_of(self.image.section_alignment());
            joined.sections.remove(code);
            own -= 1;
            let before = code.checked_sub(1).map(|before| &mut joined.sections[before].1);
            let Some(before) = before else {
                unsupported!(
                    "the device code is larger than its former section; join fewer targets (--arch), or install \
                     the unsplit binary"
                );
            };
            before.virtual_size = next - before.address;
        }
        let new = Section {
            address,
            virtual_size: used,
            offset: joined.place.start,
            ..with_bytes(&template, used)
        };
        joined.sections.insert(own, (index, new));
        Ok(joined)
    }

    /// The end of a table of `more` section headers than the split image has.
    fn table_end(&self, more: usize) -> u64 {
        let count = (self.sections.len() + more) as u64;
        self.image.table().start + SECTION_HEADER * count
    }

    /// The end of what these sections have in the file.
    fn file_end(&self, sections: &[(usize, Section)]) -> Result<u64, BinaryError> {
        let in_file = sections.iter().filter(|(_, s)| s.file_size > 0);
        let ends = in_file.map(|(_, section)| section.file_range().end);
        let end = ends.max().unwrap_or(self.image.headers_size());
        if !end.is_multiple_of(self.image.file_alignment()) {
            unsupported!(
                at end;
                "a section ends at offset {end:#x}, which is not aligned, so nothing can follow it"
            );
        }
        Ok(end)
    }

    /// The layout with `used` bytes in the place of file offsets `replaced`, before its own section is set.
    fn joined(
        &self,
        (replaced, used): (Range<u64>, u64),
        (address, bundles): (u64, Vec<u64>),
        headers_size: u64,
    ) -> Result<Joined, BinaryError> {
        let code = self.code.map(|code| (code, FormerSection::of(&self.sections[code].1)));
        let before = self.code.and_then(|code| self.sections.get(code.checked_sub(1)?));
        let former = Former {
            code,
            before: before.map_or(0, |(_, before)| before.virtual_size),
            image_size: self.image_size(&self.sections),
            headers_size: self.headers_size,
            has_saved: self.has_saved(),
        };
        let own = Gap { cut: replaced.clone(), room: used };
        let headers = Gap {
            cut: self.headers_size..self.headers_size,
            room: headers_size - self.headers_size,
        };
        let gaps = self.gaps([own, headers]);
        let start = gaps.output_offset(replaced.start - 1) + 1;
        Ok(Joined {
            sections: self.sections(&gaps),
            gaps,
            headers_size,
            former,
            address,
            bundles,
            place: start..start + used,
        })
    }

    /// Plans the image of these sections.
    fn plan(&self, planned: Planned) -> Result<PePlan, BinaryError> {
        let image_size = self.image_size(&planned.sections);
        let order = Vec::from_iter(planned.sections.iter().map(|(index, _)| *index));
        let renumbered = |number: u16, value: u32| {
            let index = usize::from(number) - 1;
            let new = order.iter().position(|own| *own == index);
            (new.map_or(number, |new| new as u16 + 1), value)
        };
        let (marker, marker_offset) = planned.marker;
        let is_split = planned.wrappers.iter().any(|wrapper| wrapper.magic == MAGIC_SPLIT);
        let sections = planned
            .sections
            .into_iter()
            .map(|(_, section)| match section.address {
                address if address == marker.start => section.with_marker(is_split),
                _ => section,
            })
            .collect();
        let parts = Parts {
            wrappers: planned.wrappers,
            marker,
            marker_offset,
            gaps: planned.gaps,
            sections,
            headers_size: planned.headers_size,
            image_size,
            renumbered: &renumbered,
            edits: planned.edits,
        };
        PePlan::assemble(self.image, parts)
    }
}

/// The section with bytes in the file.
fn with_bytes(section: &Section, size: u64) -> Section {
    let zeroed = pe::IMAGE_SCN_CNT_UNINITIALIZED_DATA.0;
    let flags = section.flags.0 & !zeroed | pe::IMAGE_SCN_CNT_INITIALIZED_DATA.0;
    Section { file_size: size, flags: pe::SectionFlags(flags), ..section.clone() }
}

/// A section for device code in an image that has none, with the flags of its marker's.
fn new_section(marker: &Section) -> Section {
    Section {
        name: CODE_SECTIONS[1].to_owned(),
        short_name: *b".hip_fat",
        relocations: (0, 0),
        line_numbers: (0, 0),
        ..marker.clone()
    }
}
