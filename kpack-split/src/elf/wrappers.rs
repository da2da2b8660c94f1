//! Finds device code: the wrappers in `.hipFatBinSegment`, and the bundle or marker of each.

use std::collections::BTreeMap;
use std::ops::Range;

use kpack_format::marker;
use object::elf;

use super::dynamic::{Dynamic, Relocation, Relocations, dynamic_symbols};
use super::former;
use super::headers::Section;
use super::image::Image;
use super::records::{FAT_SECTION, WRAPPER_SECTION, pods};
use super::refuse;
use super::{BinaryError, ReadAt};
use crate::device_code::{
    DeviceCode, FatBinary, FoundWrapper, KeptMarker, NoDeviceCode, SplitWrapper, find_wrappers,
    split_wrappers,
};

impl<S: ReadAt> Image<S> {
    /// Finds the wrappers and follows each to its bundle or marker.
    pub fn device_code(&self) -> Result<DeviceCode, BinaryError> {
        let fat = self.section(FAT_SECTION)?.map(|(_, section)| section);
        let Some((_, wrappers)) = self.section(WRAPPER_SECTION)? else {
            return Ok(DeviceCode::None(match fat {
                None => NoDeviceCode::Absent,
                Some(fat) if !fat.has_bytes() => NoDeviceCode::DebugFile,
                Some(_) => NoDeviceCode::NoWrappers,
            }));
        };
        if !wrappers.has_bytes() {
            return Ok(DeviceCode::None(NoDeviceCode::DebugFile));
        }
        let (bundles, markers) = self.find_wrappers(wrappers)?;
        match (bundles.is_empty(), markers.is_empty()) {
            (true, true) => Ok(DeviceCode::None(NoDeviceCode::NoWrappers)),
            (true, false) => self.follow_markers(&markers).map(DeviceCode::Split),
            (false, _) => {
                let mut binary = self.follow_bundles(fat, &bundles)?;
                if markers.is_empty() {
                    binary.joined = self.kept_marker(&binary, fat)?;
                }
                binary.split_before = self.follow_markers(&markers)?;
                Ok(DeviceCode::Fat(binary))
            }
        }
    }

    fn find_wrappers(
        &self,
        section: &Section,
    ) -> Result<(Vec<FoundWrapper>, Vec<FoundWrapper>), BinaryError> {
        let bytes = self.section_bytes(section)?;
        let pointers = self.pointers_in(section.addr..section.addr_end())?;
        let pointer = |address: u64, in_place: u64| match pointers.get(&address) {
            Some(relocated) => Some(*relocated),
            // A position-dependent executable is not relocated: it stores the pointer itself.
            None if self.is_position_dependent() => {
                let is_loaded = self.offset_of(&(in_place..in_place.saturating_add(1)));
                is_loaded.map(|_| in_place)
            }
            None => None,
        };
        find_wrappers(&bytes, section.addr, &pointer)
    }

    /// The targets of relocated words within `addresses`, by address.
    fn pointers_in(&self, addresses: Range<u64>) -> Result<BTreeMap<u64, u64>, BinaryError> {
        let dynamic = Dynamic::read(self)?;
        let relocations = Relocations::read(self, &dynamic)?;
        let symbols = dynamic_symbols(self, &dynamic)?;
        let mut pointers = BTreeMap::new();
        for relocation in relocations.iter() {
            let relocation: Relocation = relocation?;
            if !addresses.contains(&relocation.address) {
                continue;
            }
            let Some(target) = relocations.target(&relocation, pods(&symbols)) else {
                refuse!(
                    "the word at {:#x} in `{WRAPPER_SECTION}` is relocated ({:?}) against a symbol that this file does not define",
                    relocation.address,
                    relocation.kind
                );
            };
            if pointers.insert(relocation.address, target).is_some() {
                refuse!(
                    "the word at {:#x} in `{WRAPPER_SECTION}` is relocated twice",
                    relocation.address
                );
            }
        }
        Ok(pointers)
    }

    fn follow_bundles(
        &self,
        fat: Option<&Section>,
        found: &[FoundWrapper],
    ) -> Result<FatBinary, BinaryError> {
        let Some(fat) = fat else {
            refuse!(
                "the device code is gone: its wrappers (magic HIPF) refer to section `{FAT_SECTION}`, which is missing, as \
                 after `strip -R {FAT_SECTION}`; build or install the binary again"
            );
        };
        if !fat.has_bytes() || !fat.is_alloc() {
            refuse!(
                "the wrappers are unsplit (magic HIPF), but `{FAT_SECTION}` has no loaded bytes ({:?})",
                fat.kind
            );
        }
        self.validate()?;
        let addresses = fat.addr..fat.addr_end();
        if self.offset_of(&addresses) != Some(fat.offset) {
            refuse!(
                at fat.offset;
                "`{FAT_SECTION}` is at addresses {:#x}..{:#x} and file offset {:#x}, where no PT_LOAD maps it",
                addresses.start,
                addresses.end,
                fat.offset
            );
        }
        FatBinary::of(FAT_SECTION, addresses, fat.offset, found)
    }

    /// The marker of device code that was put back: by its name or, where the join could not give it one, the last
    /// marker before the code, or the first one after it. The objects of other fat binaries have none, or wrappers
    /// that point to it.
    fn kept_marker(
        &self,
        fat: &FatBinary,
        code: Option<&Section>,
    ) -> Result<Option<Box<KeptMarker>>, BinaryError> {
        let is_marker = |s: &&Section| marker::is_section(&s.name) && s.is_alloc() && s.has_bytes();
        let markers = self.sections.iter().filter(is_marker);
        // Another tool may have split what was joined, and left the name of that join's.
        let kept = markers.clone().rfind(|s| s.name == marker::KEPT_SECTION_NAME);
        let is_before = |s: &&Section| s.addr_end() <= fat.addresses.start;
        let (before, after): (Vec<_>, Vec<_>) = markers.partition(is_before);
        let section = kept.or(before.last().copied()).or(after.first().copied());
        let (Some(section), Some(code)) = (section, code) else {
            return Ok(None);
        };
        Ok(Some(Box::new(KeptMarker {
            address: section.addr,
            offset: section.offset,
            available: section.size,
            record: former::record_size(self, code)?,
        })))
    }

    fn follow_markers(&self, found: &[FoundWrapper]) -> Result<Vec<SplitWrapper>, BinaryError> {
        split_wrappers(found, &|address| {
            let (_, load) = self.load_of(&(address..address.saturating_add(1)))?;
            let inside = address - load.vaddr;
            Some((load.offset + inside, load.filesz - inside))
        })
    }
}

/// Whether `kind` is a relocation against a symbol that [`ElfPlan`](super::ElfPlan) may turn into a
/// relative one.
pub(crate) fn is_absolute<S>(image: &Image<S>, kind: elf::RelocationType) -> bool {
    kind == image.machine.absolute()
}
