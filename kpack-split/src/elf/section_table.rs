//! The section header table of the host binary.

use object::elf;

use kpack_format::marker;

use super::headers::Section;
use super::image::Image;
use super::layout::Geometry;
use super::plan::Gaps;
use super::records::FAT_SECTION;
use super::refuse;
use super::{ElfError, ReadAt};

/// Section indices from here on are reserved (gABI, `SHN_LORESERVE`).
const INDEX_LIMIT: usize = elf::SHN_LORESERVE as usize;

/// The new table without the offset of the section names, which is known last.
#[derive(Debug)]
pub(crate) struct SectionTable {
    sections: Vec<Section>,
    names: Vec<u8>,
    names_index: usize,
    marker_index: usize,
    /// New index by old index.
    renumbered: Vec<usize>,
}

impl SectionTable {
    pub(crate) fn new<S: ReadAt>(image: &Image<S>, geometry: &Geometry) -> Result<Self, ElfError> {
        let count = image.sections.len() + 1;
        if count >= INDEX_LIMIT {
            refuse!(
                "it has {} sections; at most {} are supported",
                count - 1,
                INDEX_LIMIT - 2
            );
        }
        let mut names = names(image)?;
        let marker_section = Section {
            name: marker::SECTION_NAME.to_owned(),
            name_offset: names.len() as u32,
            kind: elf::SHT_PROGBITS,
            flags: elf::SHF_ALLOC,
            addr: geometry.marker_section.start,
            offset: geometry.fat_offset,
            size: geometry.marker_section.end - geometry.marker_section.start,
            link: 0,
            info: 0,
            align: 1,
            entsize: 0,
        };
        names.extend_from_slice(marker::SECTION_NAME.as_bytes());
        names.push(0);

        // Sections stay in order of address.
        let row = |index: usize| (Some(index), relocated(&image.sections[index], geometry));
        let moved: &[usize] = geometry.moved.as_ref().map_or(&[], |moved| &moved.sections);
        let mut rows = Vec::with_capacity(count);
        for index in (0..image.sections.len()).filter(|index| !moved.contains(index)) {
            let fat = image.sections[index].name == FAT_SECTION;
            if fat {
                rows.push((None, marker_section.clone()));
                // The rest of the device code is empty, or comes last.
                if geometry.unmapped().is_some() {
                    rows.push(row(index));
                }
                rows.extend(moved.iter().copied().map(row));
            }
            if !fat || geometry.unmapped().is_none() {
                rows.push(row(index));
            }
        }
        let marker_index = rows.iter().position(|(old, _)| old.is_none());
        Ok(Self::of(image, names, rows, marker_index.unwrap_or(0)))
    }

    /// The same sections in another order, with new headers.
    pub(crate) fn reordered<S: ReadAt>(
        image: &Image<S>,
        rows: Vec<(usize, Section)>,
    ) -> Result<Self, ElfError> {
        let rows = rows.into_iter().map(|(old, section)| (Some(old), section));
        Ok(Self::of(image, names(image)?, rows.collect(), 0))
    }

    /// The table with these sections, each with its old index and its new header. The headers have the old
    /// section numbers.
    fn of<S>(
        image: &Image<S>,
        names: Vec<u8>,
        rows: Vec<(Option<usize>, Section)>,
        marker_index: usize,
    ) -> Self {
        let mut renumbered = vec![0; image.sections.len()];
        for (new, (old, _)) in rows.iter().enumerate() {
            if let Some(old) = old {
                renumbered[*old] = new;
            }
        }
        let mut this = Self {
            sections: Vec::with_capacity(rows.len()),
            names,
            names_index: renumbered[image.names_index],
            marker_index,
            renumbered,
        };
        for (_, mut section) in rows {
            section.link = this.renumber(section.link as usize) as u32;
            let info_is_section = section.flags.0 & elf::SHF_INFO_LINK.0 != 0
                || matches!(section.kind, elf::SHT_REL | elf::SHT_RELA);
            if info_is_section {
                section.info = this.renumber(section.info as usize) as u32;
            }
            this.sections.push(section);
        }
        this
    }

    /// New index of section `old`. Reserved indices stay unchanged.
    pub(crate) fn renumber(&self, old: usize) -> usize {
        self.renumbered.get(old).copied().unwrap_or(old)
    }

    pub(crate) fn marker_index(&self) -> usize {
        self.marker_index
    }

    pub(crate) fn names_index(&self) -> usize {
        self.names_index
    }

    /// Returns the sections, the tail of the file from `offset` (names, then headers), and the
    /// offset of the headers in the tail.
    pub(crate) fn finish(&self, offset: u64) -> (Vec<Section>, Vec<u8>, u64) {
        let mut sections = self.sections.clone();
        sections[self.names_index].offset = offset;
        sections[self.names_index].size = self.names.len() as u64;
        let mut tail = self.names.clone();
        let headers_at = (offset + tail.len() as u64).next_multiple_of(8) - offset;
        tail.resize(headers_at as usize, 0);
        sections.iter().for_each(|section| section.write(&mut tail));
        (sections, tail, headers_at)
    }
}

/// End of the input's kept bytes. Section names and headers are rewritten; if they come last in the
/// file, as linkers place them, the old ones are dropped.
pub(crate) fn kept_end<S>(image: &Image<S>, gaps: &Gaps) -> u64 {
    let table = image.table();
    let names = &image.sections[image.names_index];
    let sections = image
        .sections
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != image.names_index);
    let content = sections
        .map(|(_, s)| s.file_end())
        .chain(image.segments.iter().map(|s| s.file_end()))
        .chain(gaps.iter().map(|gap| gap.cut.end))
        .fold(0, u64::max);
    let (first, last) = (
        table.start.min(names.offset),
        table.end.max(names.file_end()),
    );
    // Keep what is in no section, such as a signature or an appended archive. A rewritten file has it before
    // its tables.
    let is_padding = |from: u64, to: u64| to.saturating_sub(from) < 16;
    match first >= content && is_padding(last, image.size) {
        true if is_padding(content, first) => content,
        true => first,
        false => image.size,
    }
}

/// The section's new header, with the old section numbers.
fn relocated(old: &Section, geometry: &Geometry) -> Section {
    let mut section = old.clone();
    if section.name == FAT_SECTION {
        section.empty(geometry.nobits.clone());
        section.offset = geometry.output_offset(geometry.kept_offset(geometry.nobits.start));
    } else if let Some(to) = geometry.map(section.addr).filter(|_| section.is_alloc()) {
        section.addr = to;
        section.offset = geometry.kept_offset(to);
    } else {
        section.offset = geometry.output_offset(section.offset);
    }
    section
}

/// The names of the sections, each with its end.
fn names<S: ReadAt>(image: &Image<S>) -> Result<Vec<u8>, ElfError> {
    let section = &image.sections[image.names_index];
    if section.is_alloc() {
        refuse!("its section header string table is loaded, which is not supported");
    }
    let mut names = image.section_bytes(section)?;
    if names.last().is_some_and(|byte| *byte != 0) {
        names.push(0);
    }
    Ok(names)
}
