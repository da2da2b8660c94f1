//! Finds device code in an image: the wrappers, and the bundle or marker of each.

use kpack_core::elf::{BinaryError, MAGIC_FAT, MAGIC_SPLIT, ReadAt, VERSION, refuse, unsupported};

use kpack_format::offload_bundle::{COMPRESSED_MAGIC, PLAIN_MAGIC};
use object::elf::ELFMAG;

use super::check;
use super::former::{self, Former};
use super::image::{
    CODE_SECTIONS, Image, KEPT_MARKER_SECTION, MARKER_SECTION, Section, WRAPPER_SECTIONS,
};
use super::relocations::{Relocations, has_words};
use crate::device_code::{
    DeviceCode, FatBinary, FoundWrapper, KeptMarker, NoDeviceCode, find_wrappers, split_wrappers,
};

impl<S: ReadAt> Image<S> {
    /// Finds the wrappers and follows each to its bundle or marker.
    pub fn device_code(&self) -> Result<DeviceCode, BinaryError> {
        let code = self.section(&CODE_SECTIONS)?.map(|(_, section)| section);
        let Some((_, wrappers)) = self.section(&WRAPPER_SECTIONS)? else {
            return self.without_wrappers(code).map(DeviceCode::None);
        };
        let bytes = self.section_bytes(wrappers)?;
        if bytes.is_empty() {
            return Ok(DeviceCode::None(NoDeviceCode::DebugFile));
        }
        let relocations = Relocations::read(self)?;
        let pointer = |address, in_place| relocations.target(self, address, in_place);
        let (bundles, markers) = find_wrappers(&bytes, wrappers.address, &pointer)?;
        let markers = split_wrappers(&markers, &|address| {
            let section = self.section_at(&(address..address + 1))?;
            let inside = address - section.address;
            let available = section.in_file().end.checked_sub(address)?;
            (available > 0).then_some((section.offset + inside, available))
        })?;
        if bundles.is_empty() && markers.is_empty() {
            // If the headers understate the image, pointers to its end are not recognised.
            self.check_tools()?;
            return self.without_wrappers(code).map(|found| {
                DeviceCode::None(match found {
                    NoDeviceCode::Absent => NoDeviceCode::NoWrappers,
                    found => found,
                })
            });
        }
        if bundles.is_empty() {
            return Ok(DeviceCode::Split(markers));
        }
        let mut binary = self.follow_bundles(code, &bundles)?;
        if markers.is_empty() {
            binary.joined = self.kept_marker(code)?;
        }
        binary.split_before = markers;
        Ok(DeviceCode::Fat(binary))
    }

    /// Refuses an image that a tool left with wrong headers.
    fn check_tools(&self) -> Result<(), BinaryError> {
        match check::sound(self) {
            Err(BinaryError::Truncated(reason) | BinaryError::Refused(reason)) => {
                let more = ". `llvm-objcopy --add-section` writes such files; install the original";
                Err(BinaryError::Refused(reason.then(more)))
            }
            sound => sound,
        }
    }

    /// Why an image without wrappers in a section of their own has no device code to split off.
    fn without_wrappers(&self, code: Option<&Section>) -> Result<NoDeviceCode, BinaryError> {
        if code.is_some_and(|code| code.file_size == 0) {
            return Ok(NoDeviceCode::DebugFile);
        }
        if let Some(section) = self.merged_wrappers(code)? {
            if WRAPPER_SECTIONS.contains(&section) {
                refuse!("the wrappers in section `{section}` have no base relocations");
            }
            unsupported!(
                "the linker merged the wrappers of its device code into section `{section}`; link without /MERGE for {}",
                WRAPPER_SECTIONS[1]
            );
        }
        Ok(match code {
            None => NoDeviceCode::Absent,
            Some(_) => NoDeviceCode::NoWrappers,
        })
    }

    /// The section that wrappers were merged into.
    fn merged_wrappers(&self, code: Option<&Section>) -> Result<Option<&str>, BinaryError> {
        let is_wrapper = |word: u64| {
            let (magic, version) = (word as u32, (word >> 32) as u32);
            [MAGIC_FAT, MAGIC_SPLIT].contains(&magic) && version == VERSION
        };
        let relocations = match Relocations::read(self) {
            Ok(relocations) => Some(relocations),
            Err(BinaryError::Io(error)) => return Err(error.into()),
            // Separate debug files have a directory of relocations without bytes.
            Err(_) => None,
        };
        let is_fixed = relocations.as_ref().is_some_and(Relocations::is_fixed);
        if code.is_some() || is_fixed {
            // The pointer tells them from other data, also without relocations.
            let is_bundle = |word: u64| match (word.checked_sub(self.base()), code) {
                (None, _) => false,
                (Some(address), Some(code)) => code.in_file().contains(&address),
                (Some(address), None) => self.is_bundle(address),
            };
            for section in &self.sections {
                if has_words(self, section, &|first, second| {
                    is_wrapper(first) && is_bundle(second)
                })? {
                    return Ok(Some(&section.name));
                }
            }
        }
        let Some(relocations) = relocations else {
            return Ok(None);
        };
        let mut found = None;
        for section in self.sections.iter().filter(|section| !section.is_code()) {
            relocations.for_each(self, section, &mut |_, _, before| {
                if is_wrapper(before) {
                    found = Some(section.name.as_str());
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Whether a bundle is at an address.
    fn is_bundle(&self, address: u64) -> bool {
        let is_there = |magic: &[u8]| {
            let range = address..address.saturating_add(magic.len() as u64);
            let start = self.memory(&range).ok().flatten();
            start.is_some_and(|start| start == magic)
        };
        is_there(PLAIN_MAGIC) || is_there(COMPRESSED_MAGIC) || is_there(&ELFMAG)
    }

    fn follow_bundles(
        &self,
        code: Option<&Section>,
        found: &[FoundWrapper],
    ) -> Result<FatBinary, BinaryError> {
        let Some(code) = code else {
            let first = found[0].pointer();
            if let Some(section) = self.section_at(&(first..first + 1)) {
                unsupported!(
                    "the linker merged its device code into section `{}`; link without /MERGE for {}",
                    section.name,
                    CODE_SECTIONS[1]
                );
            }
            refuse!(
                "the device code is gone: its wrappers (magic HIPF) refer to section `{}`, which is missing; \
                 build or install the binary again",
                CODE_SECTIONS[1]
            );
        };
        let in_file = code.in_file();
        if in_file.is_empty() {
            refuse!(
                "the wrappers are unsplit (magic HIPF), but `{}` has no bytes in the file",
                code.name
            );
        }
        FatBinary::of(&code.name, in_file, code.offset, found)
    }

    /// The section of a split image that still has device code in the file.
    pub(crate) fn code_left(&self) -> Result<Option<&Section>, BinaryError> {
        let section = self.section(&CODE_SECTIONS)?.map(|(_, section)| section);
        // ROCm's tool leaves the first page, which nothing reads.
        Ok(section.filter(|section| section.file_size > self.section_alignment()))
    }

    /// The marker of an image that device code was put back into.
    fn kept_marker(&self, code: Option<&Section>) -> Result<Option<Box<KeptMarker>>, BinaryError> {
        // Another tool may have split what was joined, and left the marker of that.
        let kept = self.sections.iter().rfind(|s| s.name == KEPT_MARKER_SECTION);
        let section = match kept {
            None => self.section(&[MARKER_SECTION])?.map(|(_, section)| section),
            kept => kept,
        };
        let (Some(section), Some(code)) = (section, code) else {
            return Ok(None);
        };
        let in_file = section.in_file();
        let former = Former::read(self, code)?;
        let size = former.and_then(|former| former.size_before_join(self, section));
        Ok(Some(Box::new(KeptMarker {
            address: section.address,
            offset: section.offset,
            available: (in_file.end - in_file.start).min(size.unwrap_or(u64::MAX)),
            record: former::record_size(self, code)?,
        })))
    }
}
