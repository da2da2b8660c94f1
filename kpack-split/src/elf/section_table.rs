//! The section header table of the host binary.

use object::elf;

use kpack_format::marker;

use super::edits::Edits;
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
    /// Whether it has the same sections as before, so that it fits the place of the old one.
    fits: bool,
}

/// The new table in the file.
pub(crate) struct WrittenTable {
    pub(crate) sections: Vec<Section>,
    /// Output offset of the section headers.
    pub(crate) headers: u64,
    /// End of the input's kept bytes.
    pub(crate) kept_end: u64,
    /// What follows them.
    pub(crate) tail: Vec<u8>,
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
        let fits = false;
        Ok(Self::of(
            image,
            names,
            rows,
            (marker_index.unwrap_or(0), fits),
        ))
    }

    /// The same sections in another order, with new headers.
    pub(crate) fn reordered<S: ReadAt>(
        image: &Image<S>,
        rows: Vec<(usize, Section)>,
    ) -> Result<Self, ElfError> {
        let rows = rows.into_iter().map(|(old, section)| (Some(old), section));
        Ok(Self::of(image, names(image)?, rows.collect(), (0, true)))
    }

    /// The table with these sections, each with its old index and its new header. The headers have the old
    /// section numbers.
    fn of<S>(
        image: &Image<S>,
        names: Vec<u8>,
        rows: Vec<(Option<usize>, Section)>,
        (marker_index, fits): (usize, bool),
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
            fits,
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

    /// Writes the table: over the old one if it fits, or with the names to the end of the file.
    pub(crate) fn write<S>(
        &self,
        image: &Image<S>,
        gaps: &Gaps,
        edits: &mut Edits,
    ) -> WrittenTable {
        let mut sections = self.sections.clone();
        let mut headers = Vec::new();
        let old = image.table();
        if self.fits {
            sections.iter().for_each(|s| s.write(&mut headers));
            edits.write(old.start, headers);
            return WrittenTable {
                sections,
                headers: gaps.output_offset(old.start),
                kept_end: image.size,
                tail: Vec::new(),
            };
        }
        let kept_end = kept_end(image, gaps);
        if old.start < kept_end {
            // The old table stays in the middle of the file; overwrite the stale copy.
            edits.zero(old.start, old.end - old.start);
        }
        let offset = gaps.output_offset(kept_end);
        let names = &mut sections[self.names_index];
        (names.offset, names.size) = (offset, self.names.len() as u64);
        sections.iter().for_each(|s| s.write(&mut headers));
        let mut tail = self.names.clone();
        let headers_at = (offset + tail.len() as u64).next_multiple_of(8);
        tail.resize((headers_at - offset) as usize, 0);
        tail.extend_from_slice(&headers);
        WrittenTable {
            sections,
            headers: headers_at,
            kept_end,
            tail,
        }
    }
}

/// End of the input's kept bytes. Section names and headers are rewritten; if they come last in the
/// file, as linkers place them, the old ones are dropped.
fn kept_end<S>(image: &Image<S>, gaps: &Gaps) -> u64 {
    let table = image.table();
    let names = &image.sections[image.names_index];
    let others = image.sections.iter().enumerate();
    let others = others.filter(|(index, s)| *index != image.names_index && s.has_bytes());
    let content = others
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
