//! A look at what was written: a host binary that would not load is an error here, not at its
//! user's.

use std::fs::File;

use super::dynamic::{Dynamic, is_address};
use super::error::refuse;
use super::headers::Section;
use super::image::Image;
use super::{DeviceCode, ElfError, Plan};

/// Reads the host binary back and compares it with its plan.
pub(crate) fn host_binary(output: &File, plan: &Plan) -> Result<(), ElfError> {
    let image = Image::read(output)?;
    image.validate()?;
    if image.segments != plan.segments || image.sections != plan.sections {
        refuse!("the headers of the host binary are not those that were planned");
    }
    sections_in_segments(&image)?;
    dynamic_addresses(&image)?;
    wrappers(&image, plan)
}

/// What is loaded from the file. What is not in the file stays where it was, right or wrong.
fn sections_in_segments(image: &Image<&File>) -> Result<(), ElfError> {
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
                "section `{}` of the host binary, at address {:#x} and offset {:#x}, is not where a PT_LOAD maps it",
                section.name,
                section.addr,
                section.offset
            );
        }
    }
    Ok(())
}

fn dynamic_addresses(image: &Image<&File>) -> Result<(), ElfError> {
    for (tag, value) in Dynamic::read(image)?.entries {
        let known = |s: &Section| s.is_alloc() && (s.addr..=s.addr_end()).contains(&value);
        if is_address(tag) && value != 0 && !image.sections.iter().any(known) {
            refuse!("{tag:?} of the host binary is {value:#x}, which is in no section");
        }
    }
    Ok(())
}

fn wrappers(image: &Image<&File>, plan: &Plan) -> Result<(), ElfError> {
    let DeviceCode::Split(split) = image.device_code()? else {
        refuse!("the host binary does not read as a split one");
    };
    let right = split.wrappers.iter().enumerate().all(|(index, wrapper)| {
        let has_own = plan.split_before.contains(&wrapper.address);
        wrapper.co_index as usize == index
            && (has_own || wrapper.marker_address == plan.geometry.marker.start)
    });
    if !right || split.wrappers.len() != plan.wrapper_count {
        refuse!("the wrappers of the host binary do not all point to its marker");
    }
    Ok(())
}
