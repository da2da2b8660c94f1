//! Wrappers and byte records, which relocatable objects and linked files share.

use object::elf::{SHT_RELA, SectionType};
use object::pod::{self, Pod};

pub use kpack_format::marker::{MAGIC_FAT, MAGIC_SPLIT, WRAPPER_VERSION as VERSION};

/// The section that holds the bundles.
pub const FAT_SECTION: &str = ".hip_fatbin";
/// The section that holds the wrappers.
pub const WRAPPER_SECTION: &str = ".hipFatBinSegment";

/// Size of a wrapper (`__CudaFatBinaryWrapper`), in bytes.
pub const WRAPPER_SIZE: u64 = 24;
/// Offset of the pointer in a wrapper, in bytes.
pub const POINTER: u64 = 8;

/// `SHT_LLVM_OFFLOADING`: device code of clang's new offload driver (LLVM, "llvm/BinaryFormat/ELF.h").
const OFFLOADING: SectionType = SectionType(0x6fff_4c0b);

/// What a section of an object has to do with device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSection {
    /// It holds bundles.
    Bundles,
    /// It holds wrappers.
    Wrappers,
    /// It holds device code for a device link, as `-fgpu-rdc` makes it.
    ForDeviceLink,
    /// It holds device code for `clang-linker-wrapper`.
    ForLinkerWrapper,
}

impl DeviceSection {
    /// Tells by the name and the type of a section. The names of bundles and wrappers may have a suffix after a dot.
    pub fn of(name: &[u8], kind: SectionType) -> Option<Self> {
        let is = |section: &str| {
            let rest = name.strip_prefix(section.as_bytes());
            kind != SHT_RELA && rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
        };
        if is(FAT_SECTION) {
            Some(Self::Bundles)
        } else if is(WRAPPER_SECTION) {
            Some(Self::Wrappers)
        } else if name.starts_with(b"__CLANG_OFFLOAD_BUNDLE__hip") {
            Some(Self::ForDeviceLink)
        } else if kind == OFFLOADING || name == b".llvm.offloading" {
            Some(Self::ForLinkerWrapper)
        } else {
            None
        }
    }
}

/// A wrapper with magic HIPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrapper {
    /// Its position among all wrappers of the file, which is its code object index when it is split.
    pub co_index: u32,
    /// Address of the wrapper.
    pub address: u64,
    /// Address of its bundle.
    pub bundle_address: u64,
    /// File offset of its bundle.
    pub bundle_offset: u64,
    /// How many bytes the bundle may occupy: up to the next bundle that another wrapper points to,
    /// or the end of the section.
    pub bundle_available: u64,
}

/// The records in `bytes`; ignores an incomplete one at the end.
pub fn pods<T: Pod>(bytes: &[u8]) -> &[T] {
    let count = bytes.len() / size_of::<T>();
    // The length fits, and `object`'s ELF records have alignment 1.
    pod::slice_from_bytes(bytes, count).map_or(&[], |(records, _)| records)
}

/// The records in `bytes`, to be changed in place.
pub fn pods_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    let count = bytes.len() / size_of::<T>();
    pod::slice_from_bytes_mut(bytes, count).map_or(&mut [], |(records, _)| records)
}

#[cfg(test)]
mod tests {
    use object::elf::{SHT_NOBITS, SHT_NOTE, SHT_PROGBITS};
    use object::{LittleEndian, U32};

    use super::*;

    /// Given a section's name and type, then this is what it has to do with device code.
    #[test]
    fn sections_of_device_code() {
        use DeviceSection::{Bundles, ForDeviceLink, ForLinkerWrapper, Wrappers};
        for (name, kind, expected) in [
            (".hip_fatbin", SHT_PROGBITS, Some(Bundles)),
            // The linker and `objcopy` give it other types.
            (".hip_fatbin", SHT_NOBITS, Some(Bundles)),
            (".hip_fatbin", SHT_NOTE, Some(Bundles)),
            (".hip_fatbin.1f2e", SHT_PROGBITS, Some(Bundles)),
            (".hip_fatbinary", SHT_PROGBITS, None),
            ("hip_fatbin", SHT_PROGBITS, None),
            (".hip_fatbin", SHT_RELA, None),
            (".rela.hip_fatbin", SHT_RELA, None),
            (".hipFatBinSegment", SHT_PROGBITS, Some(Wrappers)),
            (".hipFatBinSegment.1f2e", SHT_PROGBITS, Some(Wrappers)),
            (".hipFatBinSegment", SHT_RELA, None),
            (".hipfatbinsegment", SHT_PROGBITS, None),
            (
                "__CLANG_OFFLOAD_BUNDLE__hip-amdgcn-amd-amdhsa--gfx942",
                SHT_PROGBITS,
                Some(ForDeviceLink),
            ),
            ("__CLANG_OFFLOAD_BUNDLE__host-x86_64-unknown-linux", SHT_PROGBITS, None),
            (".llvm.offloading", SHT_PROGBITS, Some(ForLinkerWrapper)),
            (".other", OFFLOADING, Some(ForLinkerWrapper)),
            (".text", SHT_PROGBITS, None),
            ("", SHT_PROGBITS, None),
        ] {
            assert_eq!(DeviceSection::of(name.as_bytes(), kind), expected, "{name} {kind:?}");
        }
    }

    #[test]
    fn an_incomplete_record_is_ignored() {
        let mut bytes = [1, 0, 0, 0, 2, 0, 0, 0, 3];
        for (length, expected) in [(0, &[][..]), (3, &[]), (4, &[1]), (7, &[1]), (9, &[1, 2])] {
            let words = pods_mut::<U32<LittleEndian>>(&mut bytes[..length]);
            let read = Vec::from_iter(words.iter().map(|word| word.get(LittleEndian)));
            assert_eq!(read, expected, "{length}");
            let words = pods::<U32<LittleEndian>>(&bytes[..length]);
            assert_eq!(words.len(), expected.len(), "{length}");
        }
    }
}
