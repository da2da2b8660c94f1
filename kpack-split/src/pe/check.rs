//! Checks an image as Windows does when it loads it. Other systems' loaders are more lenient, so running an image
//! with them shows little.

use object::LittleEndian as LE;
use object::pe;

use kpack_core::elf::{BinaryError, ReadAt, refuse, unsupported};

use super::image::{Image, Section, debug_entries, other_debug_offset};

/// The most sections that Windows loads.
pub(super) const MOST_SECTIONS: usize = 96;
/// The largest image that Windows loads, in bytes.
pub(super) const LARGEST: u64 = 2 << 30;
/// Size of a page, in bytes.
const PAGE: u64 = 4096;
/// The file alignments that Windows knows.
const FILE_ALIGNMENTS: std::ops::RangeInclusive<u64> = 512..=64 << 10;

/// Checks headers and sections.
pub fn sound<S: ReadAt>(image: &Image<S>) -> Result<(), BinaryError> {
    alignments(image)?;
    headers(image)?;
    addresses(image)?;
    file_ranges(image)?;
    directories(image)
}

/// Checks what tools forget: file offsets outside of the headers.
pub(super) fn written<S: ReadAt>(image: &Image<S>) -> Result<(), BinaryError> {
    for (_, entry) in debug_entries(image)? {
        if let Some(expected) = other_debug_offset(image, &entry) {
            refuse!(
                expected format_args!("{expected:#x}"), found format_args!("{:#x}", entry.pointer_to_raw_data.get(LE));
                "the debug data at address {:#x} are at offset {expected:#x}, not at {:#x}, where the debug directory has them",
                entry.address_of_raw_data.get(LE),
                entry.pointer_to_raw_data.get(LE)
            );
        }
    }
    Ok(())
}

fn alignments<S>(image: &Image<S>) -> Result<(), BinaryError> {
    let (section, file) = (image.section_alignment(), image.file_alignment());
    let is_known = FILE_ALIGNMENTS.contains(&file) && file.is_power_of_two();
    if !section.is_power_of_two() || !is_known || file > section {
        refuse!(
            "sections are aligned to {section:#x} bytes in memory and {file:#x} in the file, which Windows does not load"
        );
    }
    if section < PAGE {
        unsupported!(
            expected format_args!("at least {PAGE:#x}"), found format_args!("{section:#x}");
            "sections are aligned to {section:#x} bytes in memory; expected at least {PAGE:#x}, a page"
        );
    }
    if !image.base().is_multiple_of(64 << 10) || image.base() > i64::MAX as u64 {
        refuse!(
            expected "a multiple of 64 KiB", found format_args!("{:#x}", image.base());
            "the image is linked for address {:#x}; expected a multiple of 64 KiB",
            image.base()
        );
    }
    Ok(())
}

fn headers<S>(image: &Image<S>) -> Result<(), BinaryError> {
    let size = image.headers_size();
    if size > image.size || image.table().end > size {
        refuse!(
            "the headers have {size:#x} bytes, but the section headers end at {:#x}, and the file at {:#x}",
            image.table().end,
            image.size
        );
    }
    if !size.is_multiple_of(image.file_alignment()) {
        refuse!("the headers have {size:#x} bytes, which is no multiple of the file alignment");
    }
    if image.size > u64::from(u32::MAX) {
        unsupported!("larger than 4 GiB");
    }
    let count = image.sections.len();
    if count == 0 || count > MOST_SECTIONS {
        refuse!(
            expected format_args!("1 to {MOST_SECTIONS}"), found count;
            "has {count} sections; Windows loads 1 to {MOST_SECTIONS}"
        );
    }
    Ok(())
}

/// Sections follow each other without gaps, and end below the limit.
fn addresses<S>(image: &Image<S>) -> Result<(), BinaryError> {
    let sizes = (image.headers_size(), image.image_size());
    adjoining(&image.sections, sizes, image.section_alignment())?;
    if sizes.1 > LARGEST {
        unsupported!(
            "the image has {:#x} bytes in memory; Windows loads at most {LARGEST:#x}",
            sizes.1
        );
    }
    Ok(())
}

/// Whether `sections` follow headers and each other without gaps. `sizes` are those of the headers and of the image.
pub(super) fn adjoining<'a>(
    sections: impl IntoIterator<Item = &'a Section>,
    sizes: (u64, u64),
    align: u64,
) -> Result<(), BinaryError> {
    let mut next = sizes.0.next_multiple_of(align);
    for section in sections {
        let name = &section.name;
        if section.address != next {
            refuse!(
                expected format_args!("{next:#x}"), found format_args!("{:#x}", section.address);
                "section `{name}` is at address {:#x}, not at {next:#x}, right after what is before it; Windows does not load the file",
                section.address
            );
        }
        let size = section.memory_size();
        if size == 0 {
            refuse!("section `{name}` is empty; Windows does not load the file");
        }
        next = (section.address + size).next_multiple_of(align);
    }
    if sizes.1 != next {
        refuse!(
            expected format_args!("{next:#x}"), found format_args!("{:#x}", sizes.1);
            "the image has {:#x} bytes by its header, and {next:#x} by its sections; Windows does not load the file",
            sizes.1
        );
    }
    Ok(())
}

/// What is loaded is in the file, and aligned there.
fn file_ranges<S>(image: &Image<S>) -> Result<(), BinaryError> {
    for section in image.sections.iter().filter(|s| s.file_size > 0) {
        let Section { name, offset, .. } = section;
        if section.file_range().end > image.size {
            refuse!(
                at *offset;
                "section `{name}` covers {:#x} bytes at offset {offset:#x}, but the file has only {:#x}, so it is truncated; build or copy it again",
                section.file_size,
                image.size
            );
        }
        if !offset.is_multiple_of(image.file_alignment()) {
            refuse!(
                at *offset;
                "section `{name}` is at offset {offset:#x}, which is not aligned; Windows does not load the file"
            );
        }
    }
    let symbols = image.symbols();
    if symbols.end > image.size {
        refuse!(
            at symbols.start;
            "the symbol table ends at {:#x}, past the end of the file at {:#x}, so the file is truncated; build or copy it again",
            symbols.end,
            image.size
        );
    }
    Ok(())
}

/// What Windows reads lies in sections.
fn directories<S>(image: &Image<S>) -> Result<(), BinaryError> {
    for (index, directory) in image.directories.iter().enumerate() {
        if directory.is_empty() {
            continue;
        }
        if index == pe::IMAGE_DIRECTORY_ENTRY_SECURITY {
            if directory.end > image.size {
                refuse!(
                    at directory.start;
                    "the certificates end past the end of the file, so the file is truncated; build or copy it again"
                );
            }
            continue;
        }
        let in_headers = directory.end <= image.headers_size();
        if !in_headers && image.section_at(directory).is_none() {
            refuse!(
                "data directory {index} is at {:#x}..{:#x}, which no section has",
                directory.start,
                directory.end
            );
        }
    }
    let entry = u64::from(image.optional.address_of_entry_point.get(LE));
    if entry != 0 && image.section_at(&(entry..entry + 1)).is_none() {
        refuse!("the entry point {entry:#x} is in no section");
    }
    Ok(())
}
