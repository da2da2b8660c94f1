//! Finds device code: the wrappers in `.hipFatBinSegment`, and the bundle or marker of each.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use kpack_format::marker;
use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{Dynamic, Relocation, Relocations, dynamic_symbols};
use super::former;
use super::headers::Section;
use super::image::Image;
use super::records::{
    FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, VERSION, WRAPPER_SECTION, WRAPPER_SIZE, Wrapper,
    pods,
};
use super::refuse;
use super::{ElfError, ReadAt};

/// The device code of a linked ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceCode {
    /// It has none, for this reason.
    None(NoDeviceCode),
    /// A fat binary.
    Fat(FatBinary),
    /// Already split; the wrappers are sorted by address.
    Split(Vec<SplitWrapper>),
}

impl DeviceCode {
    /// The split wrappers: all those of a split binary, or in a fat binary, those of objects that
    /// were split before the link.
    pub fn split_wrappers(&self) -> &[SplitWrapper] {
        match self {
            Self::None(_) => &[],
            Self::Fat(fat) => &fat.split_before,
            Self::Split(wrappers) => wrappers,
        }
    }
}

/// Why a file has no device code to split off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDeviceCode {
    /// It has no sections for device code.
    Absent,
    /// A separate debug file, whose sections have no content (NOBITS).
    DebugFile,
    /// `.hip_fatbin` without a wrapper: the program loads its device code by other means.
    NoWrappers,
}

impl fmt::Display for NoDeviceCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "no device code",
            Self::DebugFile => {
                "a separate debug file: its sections for device code have no contents"
            }
            Self::NoWrappers => {
                "`.hip_fatbin` without wrappers: the program loads its device code by other means, \
                 so it stays in place"
            }
        })
    }
}

/// Where the device code of a fat binary is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatBinary {
    /// Addresses of `.hip_fatbin`.
    pub addresses: Range<u64>,
    /// File offset of `.hip_fatbin`.
    pub offset: u64,
    /// Its wrappers, sorted by address.
    pub wrappers: Vec<Wrapper>,
    /// Wrappers of objects that were split before the link, if others were not. Most fat binaries
    /// have none.
    pub split_before: Vec<SplitWrapper>,
    /// The marker that a joined binary keeps: some of its device code was put back after a split.
    pub joined: Option<Box<KeptMarker>>,
}

/// The marker of a binary whose wrappers do not point to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMarker {
    /// Its address.
    pub address: u64,
    /// Its file offset.
    pub offset: u64,
    /// Bytes from the marker to the end of its section.
    pub available: u64,
    /// Bytes of the record of the join, at the end of the device code.
    pub(crate) record: u64,
}

impl FatBinary {
    /// Size of `.hip_fatbin` in bytes.
    pub fn size(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }

    /// The range of the device code in the file: `.hip_fatbin` without the record of a join.
    pub(crate) fn section(&self) -> Range<u64> {
        let record = self.joined.as_ref().map_or(0, |joined| joined.record);
        self.offset..self.offset + self.size() - record
    }
}

/// A wrapper with magic HIPK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitWrapper {
    /// Its position among all wrappers of the file.
    pub position: u32,
    /// Address of the wrapper.
    pub address: u64,
    /// Code object index: the number after `#` in the kernel name.
    pub co_index: u32,
    /// Address of its marker.
    pub marker_address: u64,
    /// File offset of its marker.
    pub marker_offset: u64,
    /// Bytes from the marker to the end of the segment's content in the file.
    pub marker_available: u64,
}

/// A wrapper of either kind, as found.
struct RawWrapper {
    position: u32,
    address: u64,
    magic: u32,
    pointer: u64,
    reserved: u64,
}

impl<S: ReadAt> Image<S> {
    /// Finds the wrappers and follows each to its bundle or marker.
    pub fn device_code(&self) -> Result<DeviceCode, ElfError> {
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
        let found = self.find_wrappers(wrappers)?;
        let (bundles, markers): (Vec<RawWrapper>, Vec<RawWrapper>) =
            found.into_iter().partition(|w| w.magic == MAGIC_FAT);
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

    fn find_wrappers(&self, section: &Section) -> Result<Vec<RawWrapper>, ElfError> {
        let bytes = self.section_bytes(section)?;
        let pointers = self.pointers_in(section.addr..section.addr_end())?;
        let mut found = Vec::new();
        // Instrumented builds pad between wrappers, so each aligned slot may hold the next one.
        let mut at = section.addr.next_multiple_of(8) - section.addr;
        while let Some(slot) = slot(&bytes, at) {
            let address = section.addr + at;
            let magic = u32_at(slot, 0);
            let known = magic == MAGIC_FAT || magic == MAGIC_SPLIT;
            let in_place = u64_at(slot, POINTER as usize);
            let pointer = match pointers.get(&(address + POINTER)) {
                Some(relocated) => Some(*relocated),
                // A position-dependent executable is not relocated: it stores the pointer itself.
                None if self.is_position_dependent()
                    && self
                        .offset_of(&(in_place..in_place.saturating_add(1)))
                        .is_some() =>
                {
                    Some(in_place)
                }
                None => None,
            };
            let Some(pointer) = pointer.filter(|_| known) else {
                at += 8;
                continue;
            };
            let version = u32_at(slot, 4);
            if version != VERSION {
                refuse!("the wrapper at {address:#x} has version {version}; expected {VERSION}");
            }
            found.push(RawWrapper {
                position: found.len() as u32,
                address,
                magic,
                pointer,
                reserved: u64_at(slot, 16),
            });
            at += WRAPPER_SIZE;
        }
        Ok(found)
    }

    /// The targets of relocated words within `addresses`, by address.
    fn pointers_in(&self, addresses: Range<u64>) -> Result<BTreeMap<u64, u64>, ElfError> {
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
        found: &[RawWrapper],
    ) -> Result<FatBinary, ElfError> {
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
                "`{FAT_SECTION}` is at addresses {:#x}..{:#x} and file offset {:#x}, where no PT_LOAD maps it",
                addresses.start,
                addresses.end,
                fat.offset
            );
        }
        let mut starts: Vec<u64> = found.iter().map(|w| w.pointer).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut wrappers = Vec::with_capacity(found.len());
        for wrapper in found {
            if !addresses.contains(&wrapper.pointer) {
                refuse!(
                    "the wrapper at {:#x} points to {:#x}, outside `{FAT_SECTION}` ({:#x}..{:#x})",
                    wrapper.address,
                    wrapper.pointer,
                    addresses.start,
                    addresses.end
                );
            }
            let next = starts.partition_point(|start| *start <= wrapper.pointer);
            let end = starts.get(next).copied().unwrap_or(addresses.end);
            wrappers.push(Wrapper {
                co_index: wrapper.position,
                address: wrapper.address,
                bundle_address: wrapper.pointer,
                bundle_offset: fat.offset + (wrapper.pointer - fat.addr),
                bundle_available: end - wrapper.pointer,
            });
        }
        Ok(FatBinary {
            addresses,
            offset: fat.offset,
            wrappers,
            split_before: Vec::new(),
            joined: None,
        })
    }

    /// The marker before device code that was put back. The objects of other fat binaries have none, or
    /// wrappers that point to it.
    fn kept_marker(
        &self,
        fat: &FatBinary,
        code: Option<&Section>,
    ) -> Result<Option<Box<KeptMarker>>, ElfError> {
        let before = |s: &&Section| {
            s.name == marker::SECTION_NAME
                && s.is_alloc()
                && s.has_bytes()
                && s.addr_end() <= fat.addresses.start
        };
        let (Some(section), Some(code)) = (self.sections.iter().rfind(before), code) else {
            return Ok(None);
        };
        Ok(Some(Box::new(KeptMarker {
            address: section.addr,
            offset: section.offset,
            available: section.size,
            record: former::record_size(self, code)?,
        })))
    }

    fn follow_markers(&self, found: &[RawWrapper]) -> Result<Vec<SplitWrapper>, ElfError> {
        let mut wrappers = Vec::with_capacity(found.len());
        for wrapper in found {
            let marker = wrapper.pointer..wrapper.pointer.saturating_add(1);
            let Some((_, load)) = self.load_of(&marker) else {
                refuse!(
                    "the split wrapper at {:#x} points to {:#x}, which is not in the file",
                    wrapper.address,
                    wrapper.pointer
                );
            };
            let inside = wrapper.pointer - load.vaddr;
            wrappers.push(SplitWrapper {
                position: wrapper.position,
                address: wrapper.address,
                co_index: (wrapper.reserved & 0xffff_ffff) as u32,
                marker_address: wrapper.pointer,
                marker_offset: load.offset + inside,
                marker_available: load.filesz - inside,
            });
        }
        Ok(wrappers)
    }
}

/// The bytes of a complete wrapper at `at`, if there are enough.
fn slot(bytes: &[u8], at: u64) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    bytes.get(at..at.checked_add(WRAPPER_SIZE as usize)?)
}

fn u32_at(slot: &[u8], at: usize) -> u32 {
    pods::<object::U32<LE>>(&slot[at..])[0].get(LE)
}

fn u64_at(slot: &[u8], at: usize) -> u64 {
    pods::<object::U64<LE>>(&slot[at..])[0].get(LE)
}

/// Whether `kind` is a relocation against a symbol that [`Plan`](super::Plan) may turn into a
/// relative one.
pub(crate) fn is_absolute<S>(image: &Image<S>, kind: elf::RelocationType) -> bool {
    kind == image.machine.absolute()
}
