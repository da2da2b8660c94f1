//! The layout of a host image: what stays, and what is cut out.
//!
//! No address changes. The marker takes the first bytes of the device code, in a section `.kpackrf`. The device
//! code's own section keeps the rest of the addresses, without bytes in the file: Windows loads no image with a hole
//! between sections. `docs/dev/elf-layout.md` has this byte by byte.

use std::ops::Range;

use object::pe;

use kpack_core::elf::{BinaryError, POINTER, ReadAt, refuse, unsupported};

use super::check;
use super::image::{CODE_SECTIONS, Image, MARKER_SECTION, SECTION_HEADER, Section, moved};
use super::join::{self, PeJoinPlan};
use super::plan::{Parts, PePlan, can_be_rewritten};
use super::relocations::Relocations;
use crate::device_code::{FatBinary, NewCode, bundle_align, place_bundles, planned_wrappers};
use crate::rewrite::{Edits, Gap, Gaps};

impl PePlan {
    /// Plans the host binary of `image`, replacing the device code `fat` by `marker` (at most 64 KiB).
    pub fn new<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        marker: &[u8],
    ) -> Result<Self, BinaryError> {
        check::sound(image)?;
        can_be_rewritten(image)?;
        if let Some(kept) = &fat.joined {
            return join::take_out(image, fat, kept, marker);
        }
        let Some((index, code)) = image.section(&CODE_SECTIONS)? else {
            refuse!("no section `{}`", CODE_SECTIONS[1]);
        };
        check_references(image, fat, code)?;
        let size = marker.len() as u64;
        if size > fat.size() {
            unsupported!(
                "the marker needs {size} bytes, more than the {} of the device code",
                fat.size()
            );
        }
        let split = SplitCode::new(image, code, size);
        let headers = ResultHeaders::with(image, split.rest.iter().len())?;
        let gaps = Gaps::new([headers.gap(), Gap::cut(split.cut.clone())]);

        let mut edits = Edits::default();
        let room = split.marker.file_size;
        edits.zero(code.offset, room);
        edits.write(code.offset, marker.to_vec());
        let mut sections = moved(image, &gaps);
        let own = [&split.marker].into_iter().chain(&split.rest).cloned();
        sections.splice(index..=index, own);
        sections[index].offset = gaps.output_offset(code.offset);

        let (number, more) = (index as u16 + 1, split.rest.iter().len() as u16);
        let rest = split.rest.as_ref().map(|rest| rest.address - code.address);
        let renumbered = |own: u16, value: u32| match rest {
            Some(rest) if own == number && u64::from(value) >= rest => {
                (number + 1, value - rest as u32)
            }
            _ if own > number => (own + more, value),
            _ => (own, value),
        };
        let parts = Parts {
            wrappers: planned_wrappers(fat, code.address),
            marker: code.address..code.address + size,
            marker_offset: code.offset,
            gaps,
            sections,
            headers_size: headers.size,
            image_size: image.image_size(),
            renumbered: &renumbered,
            edits,
        };
        Self::assemble(image, parts)
    }
}

impl PeJoinPlan {
    /// Plans the binary of `image` whose device code `fat` becomes the smaller bundles of `code`, in its place. The section
    /// keeps its addresses, of which the last ones have no bytes in the file.
    pub fn trimmed<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        code: &NewCode<'_>,
    ) -> Result<Self, BinaryError> {
        check::sound(image)?;
        can_be_rewritten(image)?;
        let Some((index, section)) = image.section(&CODE_SECTIONS)? else {
            refuse!("no section `{}`", CODE_SECTIONS[1]);
        };
        check_references(image, fat, section)?;
        let (starts, end) = place_bundles(section.address, code.sizes, bundle_align(fat));
        let used = end - section.address;
        if used > fat.size() {
            refuse!(
                "`{}` has {} bytes; the bundles that replace it need {used}",
                section.name,
                fat.size()
            );
        }
        let room = used.next_multiple_of(image.file_alignment()).min(section.file_size);
        let gaps = Gaps::new([Gap { cut: section.file_range(), room }]);
        let mut sections = moved(image, &gaps);
        sections[index] = Section {
            virtual_size: section.memory_size(),
            // With the padding, since what follows stays aligned if another run cuts this out.
            file_size: room,
            offset: section.offset,
            ..sections[index].clone()
        };
        let parts = Parts {
            wrappers: code.wrappers_at(&starts),
            marker: section.address..section.address,
            marker_offset: section.offset,
            gaps,
            sections,
            headers_size: image.headers_size(),
            image_size: image.image_size(),
            renumbered: &|number, value| (number, value),
            edits: Edits::default(),
        };
        let plan = PePlan::assemble(image, parts)?;
        let bundles = starts.iter().map(|start| section.offset + (start - section.address));
        Ok(Self { bundles: bundles.collect(), plan, room: fat.size() })
    }
}

/// The device code's section, split in two.
struct SplitCode {
    marker: Section,
    /// The rest of its addresses, if it has another page.
    rest: Option<Section>,
    /// The file offsets to cut out.
    cut: Range<u64>,
}

impl SplitCode {
    fn new<S>(image: &Image<S>, code: &Section, size: u64) -> Self {
        let kept = size.next_multiple_of(image.file_alignment()).min(code.file_size);
        let marker = Section {
            name: MARKER_SECTION.to_owned(),
            short_name: *b".kpackrf",
            virtual_size: size,
            file_size: kept,
            ..code.clone()
        };
        let pages = size.next_multiple_of(image.section_alignment());
        let rest = (code.memory_size() > pages).then(|| Section {
            address: code.address + pages,
            virtual_size: code.memory_size() - pages,
            offset: 0,
            file_size: 0,
            flags: zeroed(code.flags),
            ..code.clone()
        });
        Self { marker, rest, cut: code.offset + kept..code.file_range().end }
    }
}

/// The flags of a section whose memory is zeroed.
pub(super) fn zeroed(flags: pe::SectionFlags) -> pe::SectionFlags {
    let contents = pe::IMAGE_SCN_CNT_CODE.0 | pe::IMAGE_SCN_CNT_INITIALIZED_DATA.0;
    pe::SectionFlags(flags.0 & !contents | pe::IMAGE_SCN_CNT_UNINITIALIZED_DATA.0)
}

/// The headers of the result.
pub(super) struct ResultHeaders {
    /// Their size in the input.
    old: u64,
    pub(super) size: u64,
}

impl ResultHeaders {
    /// With `more` section headers. If they do not fit, everything after the headers moves.
    pub(super) fn with<S: ReadAt>(image: &Image<S>, more: usize) -> Result<Self, BinaryError> {
        let old = image.headers_size();
        if image.sections.len() + more > check::MOST_SECTIONS {
            unsupported!(
                "has {} sections; with {more} more Windows would not load it",
                image.sections.len()
            );
        }
        let end = image.table().end + SECTION_HEADER * more as u64;
        let size = match end.checked_sub(old) {
            None | Some(0) => old,
            Some(missing) => old + missing.next_multiple_of(image.file_alignment()),
        };
        let first = old.next_multiple_of(image.section_alignment());
        if size > first {
            unsupported!("no room for another section header before address {first:#x}");
        }
        let free = image.table().end..end.min(old);
        let bytes = image.bytes(free.start, free.end - free.start, "the headers")?;
        if bytes.iter().any(|byte| *byte != 0) {
            unsupported!(
                at free.start;
                "no room for another section header: there are other data at offset {:#x}",
                free.start
            );
        }
        Ok(Self { old, size })
    }

    /// What is inserted after them.
    pub(super) fn gap(&self) -> Gap {
        Gap { cut: self.old..self.old, room: self.size - self.old }
    }
}

/// Refuses an image with other references to its device code than its wrappers', since they would lead to zeroes.
fn check_references<S: ReadAt>(
    image: &Image<S>,
    fat: &FatBinary,
    code: &Section,
) -> Result<(), BinaryError> {
    let addresses = code.addresses();
    let relocations = Relocations::read(image)?;
    if let Some(word) = relocations.within(&addresses).first() {
        unsupported!("the word at {word:#x} in the device code is relocated");
    }
    for (index, directory) in image.directories.iter().enumerate() {
        // That of the certificates is an offset in the file.
        let has_addresses = index != pe::IMAGE_DIRECTORY_ENTRY_SECURITY;
        if has_addresses && directory.start < addresses.end && addresses.start < directory.end {
            unsupported!(
                "the data directory at {:#x} is in section `{}`",
                directory.start,
                code.name
            );
        }
    }
    let mut wrappers = Vec::from_iter(fat.wrappers.iter().map(|w| w.address + POINTER));
    wrappers.sort_unstable();
    for section in &image.sections {
        relocations.for_each(image, section, &mut |address, word, _| {
            let target = word.wrapping_sub(image.base());
            if addresses.contains(&target) && wrappers.binary_search(&address).is_err() {
                unsupported!(
                    "the word at {address:#x} in section `{}` refers to the device code, and belongs to no wrapper",
                    section.name
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}
