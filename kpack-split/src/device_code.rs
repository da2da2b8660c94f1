//! The device code of a linked file, whatever the host format: wrappers, and the bundle or marker of each.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use kpack_core::archives::KeptBundle;
use kpack_core::elf::{
    BinaryError, MAGIC_FAT, MAGIC_SPLIT, POINTER, VERSION, WRAPPER_SIZE, Wrapper, pods, refuse,
    unsupported,
};
use kpack_format::marker::{MAX_SIZE, Marker};
use object::LittleEndian as LE;

use crate::rewrite::Edits;

/// The device code of a linked file.
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
    /// Whether a linker laid the file out around device code that may have another size elsewhere: all of it is moved
    /// into archives, or the file has the debug information of such a binary. Device code that a program loads by other
    /// means stays in the file, so it counts as data.
    pub fn is_moved(&self) -> bool {
        !matches!(self, Self::None(NoDeviceCode::Absent | NoDeviceCode::NoWrappers))
    }

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
    /// A section for device code without a wrapper: the program loads its device code by other means.
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
    /// Addresses of its device code.
    pub addresses: Range<u64>,
    /// Its file offset.
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

impl KeptMarker {
    /// Writes `marker` over it, and zeroes over the rest of a longer one. Its section may grow to `room` bytes. `read`
    /// gets an offset and a size. Returns as many bytes of the old one.
    pub(crate) fn replace(
        &self,
        room: u64,
        read: impl FnOnce(u64, u64) -> Result<Vec<u8>, BinaryError>,
        marker: &[u8],
        edits: &mut Edits,
    ) -> Result<Vec<u8>, BinaryError> {
        let size = marker.len() as u64;
        if size > room {
            unsupported!(
                at self.offset;
                "the marker has room for {room} bytes, but the new one needs {size}; split it into the module that it was in, \
                 use a shorter module name, or install the unsplit binary"
            );
        }
        let available = self.available.min(MAX_SIZE as u64);
        let mut former = read(self.offset, available)?;
        let old = Marker::read(&former).map_or(0, |(_, old)| old as u64);
        edits.zero(self.offset + size, old.saturating_sub(size));
        edits.write(self.offset, marker.to_vec());
        former.truncate(marker.len());
        Ok(former)
    }
}

impl FatBinary {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }

    /// The range of the device code in the file, without the record of a join.
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
pub(crate) struct FoundWrapper {
    position: u32,
    address: u64,
    magic: u32,
    pointer: u64,
    reserved: u64,
}

impl FoundWrapper {
    /// What it points to.
    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }
}

/// The wrappers in `bytes`, the contents of a section at the address `start`: those of bundles, then those of
/// markers. `pointer` tells what the word at an address points to, if it is a pointer; it gets the address and
/// the word in the file.
pub(crate) fn find_wrappers(
    bytes: &[u8],
    start: u64,
    pointer: &dyn Fn(u64, u64) -> Option<u64>,
) -> Result<(Vec<FoundWrapper>, Vec<FoundWrapper>), BinaryError> {
    let mut found = Vec::new();
    // Instrumented builds pad between wrappers, so each aligned slot may hold the next one.
    let mut at = start.next_multiple_of(8) - start;
    while let Some(slot) = slot(bytes, at) {
        let address = start + at;
        let magic = u32_at(slot, 0);
        let known = magic == MAGIC_FAT || magic == MAGIC_SPLIT;
        let pointer = pointer(address + POINTER, u64_at(slot, POINTER as usize));
        let Some(pointer) = pointer.filter(|_| known) else {
            at += 8;
            continue;
        };
        let version = u32_at(slot, 4);
        if version != VERSION {
            refuse!(
                expected VERSION, found version;
                "the wrapper at {address:#x} has version {version}; expected {VERSION}"
            );
        }
        found.push(FoundWrapper {
            position: found.len() as u32,
            address,
            magic,
            pointer,
            reserved: u64_at(slot, 16),
        });
        at += WRAPPER_SIZE;
    }
    Ok(found.into_iter().partition(|w| w.magic == MAGIC_FAT))
}

impl FatBinary {
    /// The wrappers `found`, whose bundles are in the section `name` at `addresses` and `offset`.
    pub(crate) fn of(
        name: &str,
        addresses: Range<u64>,
        offset: u64,
        found: &[FoundWrapper],
    ) -> Result<Self, BinaryError> {
        let mut starts: Vec<u64> = found.iter().map(|w| w.pointer).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut wrappers = Vec::with_capacity(found.len());
        for wrapper in found {
            if !addresses.contains(&wrapper.pointer) {
                refuse!(
                    expected format_args!("{:#x}..{:#x}", addresses.start, addresses.end), found format_args!("{:#x}", wrapper.pointer);
                    "the wrapper at {:#x} points to {:#x}, outside `{name}` ({:#x}..{:#x})",
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
                bundle_offset: offset + (wrapper.pointer - addresses.start),
                bundle_available: end - wrapper.pointer,
            });
        }
        Ok(Self { addresses, offset, wrappers, split_before: Vec::new(), joined: None })
    }
}

/// The split wrappers `found`. `in_file` tells the file offset of an address, and how many bytes follow it there.
pub(crate) fn split_wrappers(
    found: &[FoundWrapper],
    in_file: &dyn Fn(u64) -> Option<(u64, u64)>,
) -> Result<Vec<SplitWrapper>, BinaryError> {
    let mut wrappers = Vec::with_capacity(found.len());
    for wrapper in found {
        let Some((offset, available)) = in_file(wrapper.pointer) else {
            refuse!(
                "the split wrapper at {:#x} points to {:#x}, which is not in the file",
                wrapper.address,
                wrapper.pointer
            );
        };
        wrappers.push(SplitWrapper {
            position: wrapper.position,
            address: wrapper.address,
            co_index: (wrapper.reserved & 0xffff_ffff) as u32,
            marker_address: wrapper.pointer,
            marker_offset: offset,
            marker_available: available,
        });
    }
    Ok(wrappers)
}

/// The expected content of a wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedWrapper {
    pub(crate) address: u64,
    pub(crate) magic: u32,
    /// Address of the marker or bundle that it points to. `None` if it keeps its own marker.
    pub(crate) pointer: Option<u64>,
    /// Its last word: the code object index, or 0.
    pub(crate) reserved: u64,
}

impl PlannedWrapper {
    /// A wrapper that points to the marker.
    pub(crate) fn split(address: u64, marker: Option<u64>, index: u32) -> Self {
        Self { address, magic: MAGIC_SPLIT, pointer: marker, reserved: u64::from(index) }
    }

    /// A wrapper that points to its bundle.
    pub(crate) fn fat(address: u64, bundle: u64) -> Self {
        Self { address, magic: MAGIC_FAT, pointer: Some(bundle), reserved: 0 }
    }
}

/// What the bundles of these wrappers are aligned to, in bytes; at most [`BUNDLE_ALIGN`]. Compressed ones need not begin on a
/// page, since runtimes decompress them elsewhere. Smaller bundles in their places have room if they are aligned no more.
pub(crate) fn bundle_align(fat: &FatBinary) -> u64 {
    let starts = fat.wrappers.iter().map(|wrapper| wrapper.bundle_address);
    starts.map(|start| 1 << start.trailing_zeros().min(63)).fold(BUNDLE_ALIGN, u64::min)
}

/// The wrappers of the host binary, in order of address. Those of objects that were split before
/// the link keep their own markers.
pub(crate) fn planned_wrappers(fat: &FatBinary, marker: u64) -> Vec<PlannedWrapper> {
    let own =
        fat.wrappers.iter().map(|w| PlannedWrapper::split(w.address, Some(marker), w.co_index));
    let before =
        fat.split_before.iter().map(|w| PlannedWrapper::split(w.address, None, w.position));
    let mut wrappers: Vec<PlannedWrapper> = own.chain(before).collect();
    wrappers.sort_by_key(|wrapper| wrapper.address);
    wrappers
}

/// What clang aligns bundles and code objects to, and the runtime maps, in bytes.
pub(crate) const BUNDLE_ALIGN: u64 = 4096;

/// Places bundles of these `sizes` one after another, from `start` on. Returns where each begins and where the last one ends.
pub(crate) fn place_bundles(start: u64, sizes: &[u64], align: u64) -> (Vec<u64>, u64) {
    let mut end = start;
    let starts = sizes.iter().map(|size| {
        let start = end.checked_next_multiple_of(align).unwrap_or(u64::MAX);
        end = start.saturating_add(*size);
        start
    });
    (starts.collect(), end)
}

/// Device code to put back.
#[derive(Debug, Clone)]
pub struct NewCode<'a> {
    /// The address of each wrapper, in order, and the position of its bundle in `sizes`.
    pub wrappers: &'a [(u64, usize)],
    /// The size of each bundle in bytes.
    pub sizes: &'a [u64],
    /// Address of the marker, and the room that a marker of another split needs.
    pub marker: Range<u64>,
}

impl NewCode<'_> {
    /// The wrappers, if the bundles get these addresses.
    pub(crate) fn wrappers_at(&self, bundles: &[u64]) -> Vec<PlannedWrapper> {
        let wrappers = self.wrappers.iter();
        wrappers.map(|(address, bundle)| PlannedWrapper::fat(*address, bundles[*bundle])).collect()
    }
}

/// What becomes of `planned` wrappers if those of `kept` bundles get these addresses.
pub(crate) fn keeping_wrappers(
    planned: &[PlannedWrapper],
    kept: &[KeptBundle],
    bundles: &[u64],
) -> Vec<PlannedWrapper> {
    let own = kept.iter().enumerate().flat_map(|(bundle, kept)| {
        let wrappers = kept.wrappers.iter();
        wrappers.map(move |wrapper| (*wrapper, bundle))
    });
    let bundle_of = BTreeMap::from_iter(own);
    let wrapper =
        |(position, planned): (usize, &PlannedWrapper)| match bundle_of.get(&(position as u32)) {
            Some(bundle) => PlannedWrapper::fat(planned.address, bundles[*bundle]),
            None => *planned,
        };
    planned.iter().enumerate().map(wrapper).collect()
}

/// The bytes of `marker` for a place of `room` bytes; drops code IDs that do not fit. One that says the same as the
/// `former` one keeps its bytes: other tools write it differently, and in a DLL, what a join padded has more room.
pub(crate) fn marker_bytes(
    marker: &Marker,
    former: &[u8],
    room: usize,
) -> Result<Vec<u8>, BinaryError> {
    let Some(bytes) = marker.to_bytes_within(room) else {
        refuse!("the marker does not fit the planned {room} bytes");
    };
    let is_same = match (Marker::read(former), Marker::read(&bytes)) {
        (Ok((old, _)), Ok((new, _))) => old == *marker || old == new,
        _ => false,
    };
    Ok(if is_same { former.to_vec() } else { bytes })
}

/// Refuses a result whose wrappers are not as planned.
pub(crate) fn check_wrappers(
    code: &DeviceCode,
    planned: &[PlannedWrapper],
) -> Result<(), BinaryError> {
    let bundles = match code {
        DeviceCode::Fat(fat) => &fat.wrappers[..],
        DeviceCode::Split(_) => &[],
        DeviceCode::None(_) => refuse!("it is recognised neither as a split nor as a fat binary"),
    };
    let split = code
        .split_wrappers()
        .iter()
        .map(|w| PlannedWrapper::split(w.address, Some(w.marker_address), w.co_index));
    let fat = bundles.iter().map(|w| PlannedWrapper::fat(w.address, w.bundle_address));
    let mut found = Vec::from_iter(split.chain(fat));
    found.sort_by_key(|wrapper| wrapper.address);
    let as_planned = |(found, planned): (&PlannedWrapper, &PlannedWrapper)| {
        let pointer = planned.pointer.or(found.pointer);
        *found == PlannedWrapper { pointer, ..*planned }
    };
    let pairs = found.iter().zip(planned);
    if found.len() != planned.len() || !pairs.into_iter().all(as_planned) {
        refuse!("one of its wrappers points to a wrong address");
    }
    Ok(())
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
