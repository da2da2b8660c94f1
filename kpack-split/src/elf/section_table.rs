//! The section header table of a rewritten binary, and what refers to sections by their index.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::Dynamic;
use super::headers::Section;
use super::image::Image;
use super::records::pods_mut;
use super::{BinaryError, ReadAt};
use super::{refuse, unsupported};
use crate::rewrite::{Edits, Gaps};

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
    /// The bytes of `names` that are another name of the same size.
    renamed: Option<Range<usize>>,
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
    /// The table with these sections, each with its old index and its new header. Of the marker's section,
    /// which is new, only the name is still unknown. The headers have the old section numbers.
    pub(crate) fn new<S: ReadAt>(
        image: &Image<S>,
        mut rows: Vec<(Option<usize>, Section)>,
    ) -> Result<Self, BinaryError> {
        let mut names = names(image)?;
        let marker = rows.iter().position(|(old, _)| old.is_none());
        if let Some(marker) = marker {
            if rows.len() >= INDEX_LIMIT {
                refuse!(
                    "has {} sections; at most {} are supported",
                    rows.len() - 1,
                    INDEX_LIMIT - 2
                );
            }
            let section = &mut rows[marker].1;
            section.name_offset = names.len() as u32;
            names.extend_from_slice(section.name.as_bytes());
            names.push(0);
        }
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
            marker_index: marker.unwrap_or(0),
            renumbered,
            fits: marker.is_none(),
            renamed: None,
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
        Ok(this)
    }

    /// New index of section `old`. Reserved indices stay unchanged.
    pub(crate) fn renumber(&self, old: usize) -> usize {
        self.renumbered.get(old).copied().unwrap_or(old)
    }

    /// Renumbers everything that refers to a section by index. `change` may also change a symbol; it
    /// returns the index of the symbol's section.
    pub(crate) fn renumber_references<S: ReadAt>(
        &self,
        image: &Image<S>,
        edits: &mut Edits,
        change: &dyn Fn(&mut elf::Sym64<LE>, usize) -> usize,
    ) -> Result<(), BinaryError> {
        let dynamic = Dynamic::read(image)?.symbol_section(image);
        for section in &image.sections {
            let is_table = matches!(section.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM)
                || dynamic.is_some_and(|dynamic| std::ptr::eq(dynamic, section));
            if !is_table || section.size == 0 {
                continue;
            }
            let mut bytes = image.section_bytes(section)?;
            for symbol in pods_mut::<elf::Sym64<LE>>(&mut bytes) {
                let index = symbol.st_shndx.get(LE);
                if index == elf::SHN_UNDEF || index.is_reserved() {
                    continue;
                }
                let new_index = change(symbol, usize::from(index.0));
                symbol.st_shndx.set(LE, elf::SymbolSection(new_index as u16));
            }
            edits.write(section.offset, bytes);
        }
        for section in image.sections.iter().filter(|s| s.has_bytes() && s.size > 0) {
            // Both are arrays of section indices; a group has a word of flags first (gABI).
            let first = match section.kind {
                elf::SHT_SYMTAB_SHNDX => 0,
                elf::SHT_GROUP => 1,
                _ => continue,
            };
            let mut bytes = image.section_bytes(section)?;
            for index in pods_mut::<object::U32<LE>>(&mut bytes).iter_mut().skip(first) {
                index.set(LE, self.renumber(index.get(LE) as usize) as u32);
            }
            edits.write(section.offset, bytes);
        }
        Ok(())
    }

    /// Gives section `old` another name of the same size, unless something else is in the place of the name: tools let
    /// sections share names, and a tool may have put them into loaded memory, which may not change.
    pub(crate) fn rename<S>(&mut self, image: &Image<S>, old: usize, name: &str) {
        let index = self.renumber(old);
        let section = &self.sections[index];
        let start = section.name_offset as usize;
        let end = start + section.name.len();
        let is_elsewhere = |(other, s): (usize, &Section)| {
            let at = s.name_offset as usize;
            other == index || at + s.name.len() < start || end < at
        };
        let is_alone = self.sections.iter().enumerate().all(is_elsewhere);
        let names = &image.sections[image.names_index];
        let mut loads = image.segments.iter().filter(|s| s.is_load());
        let is_loaded = loads.any(|s| s.offset < names.file_end() && names.offset < s.file_end());
        if section.name == name || section.name.len() != name.len() || !is_alone || is_loaded {
            return;
        }
        self.names[start..end].copy_from_slice(name.as_bytes());
        self.renamed = Some(start..end);
        self.sections[index].name = name.to_owned();
    }

    pub(crate) fn marker_index(&self) -> usize {
        self.marker_index
    }

    pub(crate) fn names_index(&self) -> usize {
        self.names_index
    }

    /// Writes the table: over the old one if it fits, or with the names to the end of the file. An old one in loaded
    /// memory, where patchelf 0.19 puts it, stays as it is.
    pub(crate) fn write<S>(
        &self,
        image: &Image<S>,
        gaps: &Gaps,
        edits: &mut Edits,
    ) -> WrittenTable {
        let mut sections = self.sections.clone();
        let mut headers = Vec::new();
        let old = image.table();
        let mut loads = image.segments.iter().filter(|s| s.is_load());
        let is_loaded = loads.any(|s| s.offset < old.end && old.start < s.file_end());
        if self.fits && !is_loaded {
            sections.iter().for_each(|s| s.write(&mut headers));
            edits.write(old.start, headers);
            if let Some(renamed) = &self.renamed {
                let at = image.sections[image.names_index].offset + renamed.start as u64;
                edits.write(at, self.names[renamed.clone()].to_vec());
            }
            return WrittenTable {
                sections,
                headers: gaps.output_offset(old.start),
                kept_end: image.size,
                tail: Vec::new(),
            };
        }
        let kept_end = kept_end(image, gaps);
        if old.start < kept_end && !is_loaded {
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
        WrittenTable { sections, headers: headers_at, kept_end, tail }
    }
}

/// End of the input's kept bytes. Section names and headers are rewritten; if they come last in the
/// file, as linkers place them, the old ones are dropped.
fn kept_end<S>(image: &Image<S>, gaps: &Gaps) -> u64 {
    let table = image.table();
    let names = &image.sections[image.names_index];
    let others = image
        .sections
        .iter()
        .enumerate()
        .filter(|(index, s)| *index != image.names_index && s.has_bytes());
    let content = others
        .map(|(_, s)| s.file_end())
        .chain(image.segments.iter().map(|s| s.file_end()))
        .chain(gaps.iter().map(|gap| gap.cut.end))
        .fold(0, u64::max);
    let (first, last) = (table.start.min(names.offset), table.end.max(names.file_end()));
    // Keep what is in no section, such as a signature or an appended archive. A rewritten file has it before
    // its tables.
    let is_padding = |from: u64, to: u64| to.saturating_sub(from) < 16;
    if first < content || !is_padding(last, image.size) {
        image.size
    } else if is_padding(content, first) {
        content
    } else {
        first
    }
}

/// The names of the sections, each with its end.
fn names<S: ReadAt>(image: &Image<S>) -> Result<Vec<u8>, BinaryError> {
    let section = &image.sections[image.names_index];
    if section.is_alloc() {
        unsupported!("the section header string table is loaded, which is not supported");
    }
    let mut names = image.section_bytes(section)?;
    if names.last().is_some_and(|byte| *byte != 0) {
        names.push(0);
    }
    Ok(names)
}
