//! The device code of a relocatable object: its wrappers, and the bundles that relocations lead to.

use std::collections::BTreeMap;
use std::io;
use std::io::ErrorKind::{InvalidData, UnexpectedEof};

use kpack_format::offload_binary::{self, OffloadImage};
use object::LittleEndian as LE;
use object::elf;

use super::relocatable::{Relocatable, SectionHeader, pointer_relocation};
use super::symbols::{Symbols, Target};
use kpack_core::elf::{
    self as linked, BinaryError, DeviceSection, FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER,
    ReadAt, VERSION, WRAPPER_SECTION, WRAPPER_SIZE, refuse, unsupported,
};

/// `SHT_CREL`: relocations in LLVM's compact encoding (the number that LLVM uses until the gABI has
/// one; "llvm/BinaryFormat/ELF.h").
const CREL: u32 = 0x4000_0014;

/// The device code of an object.
pub(super) enum DeviceContent {
    /// None.
    None,
    /// `.hip_fatbin` has bytes, but no wrapper points to them: the program or another object loads
    /// them by other means.
    NoWrappers,
    /// Already split.
    Split,
    /// Bundles.
    Fat(FatObject),
}

/// Where the device code of an object is.
pub(super) struct FatObject {
    /// Indices of the sections with bundles.
    pub(super) fat_sections: Vec<usize>,
    /// Sorted by section and offset; the position is the code object index.
    pub(super) wrappers: Vec<FatWrapper>,
    /// File offsets of the symbols defined in these sections, except section symbols.
    pub(super) symbols: Vec<u64>,
}

/// A wrapper with magic HIPF.
pub(super) struct FatWrapper {
    /// Index of its section.
    pub(super) section: usize,
    /// Its offset in that section.
    pub(super) offset: u64,
    /// Its pointer's relocation: the section, and the offset of the entry in it.
    pub(super) relocation: (usize, u64),
    /// Location of its bundle.
    pub(super) bundle: linked::Wrapper,
}

/// A relocation with its resolved symbol.
struct Relocation {
    place: (usize, u64),
    kind: elf::RelocationType,
    target: Target,
}

/// Relocations by the location they apply to: a section, and the offset in it.
type Relocations = BTreeMap<(usize, u64), Relocation>;

/// A wrapper, with the relocation of its pointer.
struct Found<'a> {
    section: usize,
    offset: u64,
    is_split: bool,
    relocation: &'a Relocation,
}

impl<S: ReadAt> Relocatable<S> {
    /// Finds the device code and checks every relocation.
    ///
    /// # Errors
    /// The object is damaged, or its device code cannot be split off before the link.
    pub(super) fn device_code(&self) -> Result<DeviceContent, BinaryError> {
        self.refuse_device_link()?;
        let fat_sections = self.sections_of(DeviceSection::Bundles);
        let wrapper_sections = self.sections_of(DeviceSection::Wrappers);
        let without_wrappers =
            if fat_sections.is_empty() { DeviceContent::None } else { DeviceContent::NoWrappers };
        if wrapper_sections.is_empty() {
            return Ok(without_wrappers);
        }
        self.check_ranges()?;
        self.refuse_without_bytes(&[&fat_sections[..], &wrapper_sections].concat())?;
        let symbols = Symbols::read(self)?;
        let relocations = self.relocations(&symbols, &fat_sections, &wrapper_sections)?;
        let all = self.wrappers(&wrapper_sections, &relocations)?;
        let found: Vec<&Found<'_>> = all.iter().filter(|wrapper| !wrapper.is_split).collect();
        if found.is_empty() {
            return Ok(if all.is_empty() { without_wrappers } else { DeviceContent::Split });
        }
        let targets = found.iter().map(|wrapper| wrapper.relocation.target);
        let used: Vec<(usize, u64)> = targets
            .filter_map(|target| match target {
                Target::Section(section, offset) => Some((section, offset)),
                Target::Undefined(_) => None,
            })
            .collect();
        let mut wrappers = Vec::new();
        for (index, wrapper) in (0..).zip(&found) {
            wrappers.push(FatWrapper {
                section: wrapper.section,
                offset: wrapper.offset,
                relocation: wrapper.relocation.place,
                bundle: self.bundle(index, wrapper, &fat_sections, &used, &symbols)?,
            });
        }
        self.refuse_other_pointers(&relocations, &wrappers, &fat_sections)?;
        Ok(DeviceContent::Fat(FatObject {
            symbols: symbols.defined_in(&fat_sections),
            fat_sections,
            wrappers,
        }))
    }

    /// The wrappers in these sections.
    fn wrappers<'a>(
        &self,
        sections: &[usize],
        relocations: &'a Relocations,
    ) -> Result<Vec<Found<'a>>, BinaryError> {
        let mut found = Vec::new();
        for &section in sections {
            for (offset, magic, version) in self.wrappers_in(section)? {
                let Some(relocation) = relocations.get(&(section, offset + POINTER)) else {
                    refuse!(
                        "the wrapper at offset {offset:#x} of `{}` has no relocation for its pointer",
                        self.shown(section)
                    );
                };
                if version != VERSION {
                    refuse!(
                        "the wrapper at offset {offset:#x} of `{}` has version {version}; expected {VERSION}",
                        self.shown(section)
                    );
                }
                found.push(Found { section, offset, is_split: magic == MAGIC_SPLIT, relocation });
            }
        }
        Ok(found)
    }

    /// Refuses sections of device code or wrappers whose bytes are not in the file as they are.
    fn refuse_without_bytes(&self, sections: &[usize]) -> Result<(), BinaryError> {
        for index in sections {
            let section = &self.sections[*index];
            if section.sh_flags.get(LE).0 & elf::SHF_COMPRESSED.0 != 0
                || section.sh_type.get(LE) == elf::SHT_NOBITS
            {
                refuse!("`{}` is compressed or has no bytes in the file", self.shown(*index));
            }
        }
        Ok(())
    }

    /// Refuses relocations of anything but `wrappers` that point to device code.
    fn refuse_other_pointers(
        &self,
        relocations: &Relocations,
        wrappers: &[FatWrapper],
        fat_sections: &[usize],
    ) -> Result<(), BinaryError> {
        for (place, relocation) in relocations {
            let of_wrapper = wrappers
                .iter()
                .any(|wrapper| (wrapper.section, wrapper.offset + POINTER) == *place);
            match relocation.target {
                Target::Section(section, offset)
                    if fat_sections.contains(&section) && !of_wrapper =>
                {
                    refuse!(
                        "a relocation of `{}` at offset {:#x} points to offset {offset:#x} of `{FAT_SECTION}` but belongs to no wrapper",
                        self.shown(place.0),
                        place.1
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses objects that need a device link: their device code is not complete yet.
    fn refuse_device_link(&self) -> Result<(), BinaryError> {
        for (_, section, kind) in self.device_sections() {
            match kind {
                DeviceSection::ForDeviceLink => unsupported!(
                    "was compiled with -fgpu-rdc, so its device code is complete only after \
                     the link; compile without -fgpu-rdc, or link it unchanged and split the \
                     linked binary (kpack split)"
                ),
                // Images for other runtimes, such as OpenMP's, stay where they are.
                DeviceSection::ForLinkerWrapper
                    if offload_binary::may_be_hip(&self.images(section)?) =>
                {
                    unsupported!(
                        "was compiled with --offload-new-driver and -fgpu-rdc, or with \
                     -foffload-lto: its device code is in `.llvm.offloading` until \
                     clang-linker-wrapper links it; compile without these options, or link it \
                     unchanged and split the linked binary (kpack split)"
                    )
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The images in a section for any offloading runtime; none of a damaged section.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn images(&self, section: &SectionHeader) -> io::Result<Vec<OffloadImage>> {
        let start = section.sh_offset.get(LE);
        let images = offload_binary::read(section.sh_size.get(LE), &mut |at, buffer| {
            self.source.read_exact_at(start.saturating_add(at), buffer)
        });
        match images {
            Err(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => Ok(Vec::new()),
            images => images,
        }
    }

    /// The sections that have to do with device code, with their indices.
    pub(super) fn device_sections(
        &self,
    ) -> impl Iterator<Item = (usize, &SectionHeader, DeviceSection)> {
        self.sections.iter().enumerate().filter_map(|(index, section)| {
            let kind = DeviceSection::of(self.name(section), section.sh_type.get(LE))?;
            Some((index, section, kind))
        })
    }

    /// Sections with content of this kind.
    fn sections_of(&self, kind: DeviceSection) -> Vec<usize> {
        self.device_sections()
            .filter(|(_, section, own)| *own == kind && section.sh_size.get(LE) > 0)
            .map(|(index, ..)| index)
            .collect()
    }

    /// Offset, magic and version of each possible wrapper in a section. Instrumented builds pad
    /// between wrappers, so each aligned slot may hold the next one.
    fn wrappers_in(&self, section: usize) -> Result<Vec<(u64, u32, u32)>, BinaryError> {
        let bytes = self.bytes_of(section)?;
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        let mut found = Vec::new();
        let mut at = 0;
        while at + WRAPPER_SIZE as usize <= bytes.len() {
            let magic = word(at);
            if magic == MAGIC_FAT || magic == MAGIC_SPLIT {
                found.push((at as u64, magic, word(at + 4)));
                at += WRAPPER_SIZE as usize;
            } else {
                at += 8;
            }
        }
        Ok(found)
    }

    /// The bundle that a wrapper's relocation points to.
    fn bundle(
        &self,
        co_index: u32,
        wrapper: &Found<'_>,
        fat_sections: &[usize],
        used: &[(usize, u64)],
        symbols: &Symbols,
    ) -> Result<linked::Wrapper, BinaryError> {
        let (wrapper, relocation) = (wrapper.offset, wrapper.relocation);
        let (section, offset) = match relocation.target {
            Target::Section(section, offset) => (section, offset),
            Target::Undefined(symbol) => refuse!(
                "the wrapper at offset {wrapper:#x} of `{WRAPPER_SECTION}` points to symbol \
                 `{}` of another object, as -fgpu-rdc makes it, so its device code is complete \
                 only after the link; compile without -fgpu-rdc, or link it unchanged and split \
                 the linked binary (kpack split)",
                symbols.name(symbol)
            ),
        };
        let header = match self.sections.get(section) {
            Some(header) if fat_sections.contains(&section) => header,
            _ => refuse!(
                "the wrapper at offset {wrapper:#x} points into `{}`; expected `{FAT_SECTION}`",
                self.shown(section)
            ),
        };
        let size = header.sh_size.get(LE);
        if offset >= size {
            refuse!(
                "the wrapper at offset {wrapper:#x} points to offset {offset:#x} of `{FAT_SECTION}`, which has {size:#x} bytes"
            );
        }
        let Some(absolute) = pointer_relocation(self.header.e_machine.get(LE)) else {
            unsupported!("an object for a CPU that kpack does not know");
        };
        if relocation.kind != absolute {
            refuse!(
                "the pointer of the wrapper at offset {wrapper:#x} is relocated by {:?}; expected {absolute:?}",
                relocation.kind
            );
        }
        let next = used
            .iter()
            .filter(|(other, start)| *other == section && *start > offset)
            .map(|(_, start)| *start)
            .min();
        Ok(linked::Wrapper {
            co_index,
            address: wrapper,
            bundle_address: offset,
            bundle_offset: header.sh_offset.get(LE) + offset,
            bundle_available: next.unwrap_or(size).min(size) - offset,
        })
    }

    /// The relocations of wrappers and all relocations that point into `fat_sections`, by the
    /// location they apply to.
    fn relocations(
        &self,
        symbols: &Symbols,
        fat_sections: &[usize],
        wrapper_sections: &[usize],
    ) -> Result<Relocations, BinaryError> {
        let mut found = BTreeMap::new();
        for (index, section) in self.sections.iter().enumerate() {
            let applies_to = section.sh_info.get(LE) as usize;
            let of_wrapper = wrapper_sections.contains(&applies_to);
            match section.sh_type.get(LE) {
                elf::SHT_RELA => {}
                kind if kind.0 == CREL => refuse!(
                    "`{}` has compact relocations (SHT_CREL), which kpack does not support; \
                     compile without -Wa,--crel",
                    self.shown(index)
                ),
                elf::SHT_REL if of_wrapper => refuse!(
                    "`{}` has relocations without addends; expected SHT_RELA",
                    self.shown(index)
                ),
                _ => continue,
            }
            let bytes = self.bytes_of(index)?;
            for (number, rela) in linked::pods::<elf::Rela64<LE>>(&bytes).iter().enumerate() {
                let symbol = rela.r_sym(LE, false);
                let target = symbols.target(symbol, rela.r_addend.get(LE));
                let into_fat = matches!(target, Some(Target::Section(section, _)) if fat_sections.contains(&section));
                if fat_sections.contains(&applies_to) {
                    refuse!("a relocation applies to `{FAT_SECTION}`, which kpack removes");
                }
                if !of_wrapper && !into_fat {
                    continue;
                }
                let Some(target) = target else {
                    continue;
                };
                let at = (applies_to, rela.r_offset.get(LE));
                let relocation = Relocation {
                    place: (index, number as u64 * size_of::<elf::Rela64<LE>>() as u64),
                    kind: rela.r_type(LE, false),
                    target,
                };
                if found.insert(at, relocation).is_some() {
                    refuse!(
                        "offset {:#x} of `{}` is relocated twice",
                        at.1,
                        self.shown(applies_to)
                    );
                }
            }
        }
        Ok(found)
    }
}
