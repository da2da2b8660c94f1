//! Checks a linked binary: one that would not load is an error here, not for its user.

use std::ops::Range;

use object::elf;

use super::dynamic::{Dynamic, is_address};
use super::headers::{Section, Segment};
use super::image::Image;
use super::records::FAT_SECTION;
use super::{BinaryError, ReadAt, refuse, unsupported};

/// Checks what a rewrite keeps, in its input and in its result.
pub(crate) fn sound<S: ReadAt>(image: &Image<S>) -> Result<(), BinaryError> {
    loaded(image)?;
    dynamic_addresses(image)
}

/// Checks that PT_LOADs map all sections and all contents of program headers where they belong.
pub fn loaded<S>(image: &Image<S>) -> Result<(), BinaryError> {
    sections_in_segments(image)?;
    segments_are_loaded(&image.segments)
}

/// What is left of the device code in a split binary, in its section or in the loaded segments; `None` if nothing is.
pub fn code_left<S: ReadAt>(image: &Image<S>) -> Result<Option<String>, BinaryError> {
    let Some((_, section)) = image.section(FAT_SECTION)? else {
        return Ok(None);
    };
    // Tools give an empty section other types.
    if section.size == 0 {
        return Ok(None);
    }
    // ROCm's tool leaves what frees no page, and nothing reads it.
    let page = image.machine.tool_page();
    if section.has_bytes() && section.size <= page {
        return Ok(None);
    }
    if section.has_bytes() {
        return Ok(Some(format!(
            "`{FAT_SECTION}` still has {} bytes in the file; expected none (NOBITS)",
            section.size
        )));
    }
    let (start, end) = (section.addr, section.addr_end());
    let backed = image
        .segments
        .iter()
        .find(|segment| {
            let backed = segment.vaddr.max(start)..segment.file_backed_end().min(end);
            let is_before_page =
                backed.start == start && backed.end == start.next_multiple_of(page);
            segment.is_load() && !backed.is_empty() && !is_before_page
        })
        .filter(|_| section.is_alloc());
    Ok(backed.map(|segment| {
        format!(
            "`{FAT_SECTION}` ({start:#x}..{end:#x}) is NOBITS, but the file still has bytes for \
             addresses {:#x}..{:#x}",
            segment.vaddr.max(start),
            segment.file_backed_end().min(end)
        )
    }))
}

/// Checks sections loaded from the file. Sections without bytes in the file did not move, so they
/// need no check.
fn sections_in_segments<S>(image: &Image<S>) -> Result<(), BinaryError> {
    let loaded = |s: &&Section| s.is_alloc() && s.has_bytes() && s.size > 0;
    for section in image.sections.iter().filter(loaded) {
        let mapped = image.segments.iter().any(|s| {
            s.is_load()
                && s.vaddr <= section.addr
                && section.addr_end() <= s.file_backed_end()
                && section.offset.wrapping_sub(s.offset) == section.addr - s.vaddr
        });
        if !mapped {
            refuse!(
                "section `{}`, at address {:#x} and offset {:#x}, is not where a PT_LOAD maps it",
                section.name,
                section.addr,
                section.offset
            );
        }
    }
    Ok(())
}

/// Checks that everything the dynamic loader, the C library and debuggers find through program
/// headers is mapped from the file, and that the whole range the dynamic loader protects after
/// relocation is mapped.
fn segments_are_loaded(segments: &[Segment]) -> Result<(), BinaryError> {
    let loads = || segments.iter().filter(|s| s.is_load());
    for segment in segments {
        let mapped = match segment.kind {
            elf::PT_PHDR
            | elf::PT_INTERP
            | elf::PT_DYNAMIC
            | elf::PT_NOTE
            | elf::PT_TLS
            | elf::PT_GNU_EH_FRAME
            | elf::PT_GNU_PROPERTY => {
                segment.filesz == 0
                    || loads().any(|load| {
                        load.vaddr <= segment.vaddr
                            && segment.file_backed_end() <= load.file_backed_end()
                            && segment.offset.wrapping_sub(load.offset)
                                == segment.vaddr - load.vaddr
                    })
            }
            elf::PT_GNU_RELRO => is_mapped(segment, loads()),
            _ => true,
        };
        if !mapped {
            refuse!(
                "{:?}, {:#x} bytes at address {:#x} and offset {:#x}, is not entirely where a PT_LOAD maps it; tools that \
                 remove sections, such as `strip -R`, and some versions of patchelf leave that",
                segment.kind,
                segment.memsz,
                segment.vaddr,
                segment.offset
            );
        }
    }
    Ok(())
}

/// Whether PT_LOADs, sorted by address, map all addresses of a segment. They map whole pages, and
/// linkers may let RELRO end at a page boundary.
fn is_mapped<'a>(segment: &Segment, loads: impl Iterator<Item = &'a Segment>) -> bool {
    let end = segment.vaddr.saturating_add(segment.memsz);
    let mut mapped_to = segment.vaddr;
    for load in loads {
        let page = load.align.max(1);
        let start = load.vaddr - load.vaddr % page;
        let load_end = load.vaddr.saturating_add(load.memsz);
        if start <= mapped_to {
            mapped_to = mapped_to.max(load_end.next_multiple_of(page));
        }
    }
    end <= mapped_to
}

fn dynamic_addresses<S: ReadAt>(image: &Image<S>) -> Result<(), BinaryError> {
    for (tag, value) in Dynamic::read(image)?.entries {
        let known = |s: &Section| s.is_alloc() && (s.addr..=s.addr_end()).contains(&value);
        if is_address(tag) && value != 0 && !image.sections.iter().any(known) {
            refuse!("{tag:?} is {value:#x}, which is in no section");
        }
    }
    Ok(())
}

/// Refuses files in which device code, at the file offsets `fat` of segment `load`, shares bytes with
/// another section or segment.
pub(crate) fn overlaps<S>(
    image: &Image<S>,
    fat: &Range<u64>,
    load: usize,
) -> Result<(), BinaryError> {
    let overlaps = |offset: u64, end: u64| offset < fat.end && fat.start < end;
    for section in &image.sections {
        if section.has_bytes()
            && section.name != FAT_SECTION
            && overlaps(section.offset, section.file_end())
        {
            unsupported!(
                "section `{}` shares bytes of the file with `{FAT_SECTION}`",
                section.name
            );
        }
    }
    for (index, segment) in image.segments.iter().enumerate() {
        let harmless = index == load || segment.kind == elf::PT_GNU_RELRO;
        if !harmless && segment.filesz > 0 && overlaps(segment.offset, segment.file_end()) {
            unsupported!(
                "program header {index} ({:?}) shares bytes of the file with `{FAT_SECTION}`",
                segment.kind
            );
        }
    }
    let table = image.table();
    if overlaps(table.start, table.end) {
        unsupported!("the section header table shares bytes of the file with `{FAT_SECTION}`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use object::elf;

    use super::{Segment, segments_are_loaded};

    fn segment(kind: elf::ProgramType, start: u64, size: u64) -> Segment {
        Segment {
            kind,
            flags: elf::PF_R,
            offset: start,
            vaddr: start,
            paddr: start,
            filesz: size,
            memsz: size,
            align: 0x1000,
        }
    }

    #[test]
    fn what_program_headers_name_has_to_be_mapped() {
        // Nothing is mapped from 0x3000 to 0x8000.
        let loads = [segment(elf::PT_LOAD, 0, 0x2800), segment(elf::PT_LOAD, 0x8000, 0x1800)];
        let is_sound = |extra: Segment| {
            let segments = [&loads[..], &[extra]].concat();
            segments_are_loaded(&segments).map_err(|error| error.to_string())
        };
        for kind in [elf::PT_DYNAMIC, elf::PT_NOTE, elf::PT_TLS] {
            assert_eq!(is_sound(segment(kind, 0x8100, 0x200)), Ok(()));
            assert!(is_sound(segment(kind, 0x2700, 0x200)).is_err(), "{kind:?}");
            let elsewhere = Segment { offset: 0x100, ..segment(kind, 0x8100, 0x200) };
            assert!(is_sound(elsewhere).is_err(), "{kind:?}");
        }
        // To the end of a page, as with some linkers, and across the hole.
        assert_eq!(is_sound(segment(elf::PT_GNU_RELRO, 0x8000, 0x2000)), Ok(()));
        let error = is_sound(segment(elf::PT_GNU_RELRO, 0x2000, 0x7000)).unwrap_err();
        assert!(error.contains("PT_GNU_RELRO"), "{error}");
    }
}
