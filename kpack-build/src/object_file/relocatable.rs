//! A relocatable object: its headers, and the wrappers and bundles in it.

use std::collections::BTreeMap;

use object::LittleEndian as LE;
use object::elf;

use super::symbols::{Symbols, Target};
use crate::elf::{
    self as linked, ElfError, FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, ReadAt, VERSION,
    WRAPPER_SECTION, WRAPPER_SIZE, refuse,
};

/// `SHT_CREL`: relocations in LLVM's compact encoding (the number that LLVM uses until the gABI has
/// one; "llvm/BinaryFormat/ELF.h").
const CREL: u32 = 0x4000_0014;
/// `SHT_LLVM_OFFLOADING`: device code of clang's new offload driver (LLVM, "llvm/BinaryFormat/ELF.h").
const OFFLOADING: u32 = 0x6fff_4c0b;

pub(super) type Header = elf::FileHeader64<LE>;
pub(super) type SectionHeader = elf::SectionHeader64<LE>;

/// A relocatable object with its headers in memory.
pub(super) struct Relocatable<S> {
    pub(super) source: S,
    pub(super) size: u64,
    pub(super) header: Header,
    pub(super) sections: Vec<SectionHeader>,
    /// The section header string table, and its index.
    pub(super) names: Vec<u8>,
    pub(super) names_index: usize,
    absolute: elf::RelocationType,
}

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

impl<S: ReadAt> Relocatable<S> {
    /// Reads the headers.
    ///
    /// # Errors
    /// The file is not a 64-bit little-endian relocatable object for x86-64 or AArch64.
    pub(super) fn read(source: S) -> Result<Self, ElfError> {
        let size = source.size()?;
        let bytes = bytes(&source, size, 0, 64, "the ELF header")?;
        let header: Header = linked::pods::<Header>(&bytes)[0];
        let ident = &header.e_ident;
        if ident.magic != elf::ELFMAG
            || ident.class != elf::ELFCLASS64
            || ident.data != elf::ELFDATA2LSB
        {
            refuse!("expected a 64-bit little-endian ELF file (class 2, data 1)");
        }
        if header.e_type.get(LE) != elf::ET_REL {
            refuse!(
                "expected a relocatable object (e_type 1), found e_type {}; a linked binary is split when it is installed, by `kpack install`",
                header.e_type.get(LE).0
            );
        }
        let absolute = match header.e_machine.get(LE) {
            elf::EM_X86_64 => elf::R_X86_64_64,
            elf::EM_AARCH64 => elf::R_AARCH64_ABS64,
            other => refuse!(
                "expected an object for x86-64 (e_machine 62) or AArch64 (183), found e_machine {}",
                other.0
            ),
        };
        let sections = section_headers(&source, size, &header)?;
        // The gABI's escapes for more sections than fit ("ELF Header", e_shstrndx).
        let names_index = match header.e_shstrndx.get(LE) {
            elf::SHN_XINDEX => sections
                .first()
                .map_or(0, |first| first.sh_link.get(LE) as usize),
            index => usize::from(index.0),
        };
        let Some(table) = sections.get(names_index).filter(|_| names_index != 0) else {
            refuse!(
                "its header names section {names_index} as the section name table, which does \
                     not exist"
            );
        };
        let names = bytes_of(&source, size, table, "the section names")?;
        Ok(Self {
            source,
            size,
            header,
            sections,
            names,
            names_index,
            absolute,
        })
    }

    /// The name of a section; empty for one that has none.
    pub(super) fn name(&self, section: &SectionHeader) -> &[u8] {
        let start = section.sh_name.get(LE) as usize;
        let rest = self.names.get(start..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Finds the device code and checks every relocation.
    ///
    /// # Errors
    /// The object is damaged, or its device code cannot be split off before the link.
    pub(super) fn device_code(&self) -> Result<DeviceContent, ElfError> {
        self.refuse_device_link()?;
        let fat_sections = self.named(FAT_SECTION);
        let wrapper_sections = self.named(WRAPPER_SECTION);
        let without_wrappers = match fat_sections.is_empty() {
            true => DeviceContent::None,
            false => DeviceContent::NoWrappers,
        };
        if wrapper_sections.is_empty() {
            return Ok(without_wrappers);
        }
        self.check_ranges()?;
        for index in fat_sections.iter().chain(&wrapper_sections) {
            let section = &self.sections[*index];
            if section.sh_flags.get(LE).0 & elf::SHF_COMPRESSED.0 != 0
                || section.sh_type.get(LE) == elf::SHT_NOBITS
            {
                refuse!(
                    "`{}` is compressed or has no bytes in the file",
                    self.shown(*index)
                );
            }
        }
        let symbols = Symbols::read(self)?;
        let relocations = self.relocations(&symbols, &fat_sections, &wrapper_sections)?;

        let mut wrappers = Vec::new();
        let mut split = 0;
        for section in wrapper_sections {
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
                if magic == MAGIC_SPLIT {
                    split += 1;
                    continue;
                }
                wrappers.push((section, offset, relocation));
            }
        }
        if wrappers.is_empty() {
            return Ok(match split {
                0 => without_wrappers,
                _ => DeviceContent::Split,
            });
        }
        let used: Vec<(usize, u64)> = wrappers
            .iter()
            .filter_map(|(.., relocation)| match relocation.target {
                Target::Section(section, offset) => Some((section, offset)),
                Target::Undefined(_) => None,
            })
            .collect();
        let mut found = Vec::new();
        for (index, (section, offset, relocation)) in (0..).zip(&wrappers) {
            found.push(FatWrapper {
                section: *section,
                offset: *offset,
                relocation: relocation.place,
                bundle: self.bundle(
                    (index, *offset),
                    relocation,
                    &fat_sections,
                    &used,
                    &symbols,
                )?,
            });
        }
        for (place, relocation) in &relocations {
            let of_wrapper = wrappers
                .iter()
                .any(|(section, offset, _)| (*section, offset + POINTER) == *place);
            if let Target::Section(section, offset) = relocation.target
                && fat_sections.contains(&section)
                && !of_wrapper
            {
                refuse!(
                    "a relocation of `{}` at offset {:#x} points to offset {offset:#x} of `{FAT_SECTION}` but belongs to no wrapper",
                    self.shown(place.0),
                    place.1
                );
            }
        }
        Ok(DeviceContent::Fat(FatObject {
            symbols: symbols.defined_in(&fat_sections),
            fat_sections,
            wrappers: found,
        }))
    }

    /// Refuses sections that end past the end of the file.
    fn check_ranges(&self) -> Result<(), ElfError> {
        for (index, section) in self.sections.iter().enumerate().skip(1) {
            if matches!(section.sh_type.get(LE), elf::SHT_NOBITS | elf::SHT_NULL) {
                continue;
            }
            let (offset, size) = (section.sh_offset.get(LE), section.sh_size.get(LE));
            if offset.checked_add(size).is_none_or(|end| end > self.size) {
                refuse!(
                    "section {index} (`{}`, {size} bytes at offset {offset:#x}) ends past the \
                     end of the file ({} bytes): it is truncated or damaged; compile it again",
                    self.shown(index),
                    self.size
                );
            }
        }
        Ok(())
    }

    /// Refuses objects that need a device link: their device code is not complete yet.
    fn refuse_device_link(&self) -> Result<(), ElfError> {
        for section in &self.sections {
            if self
                .name(section)
                .starts_with(b"__CLANG_OFFLOAD_BUNDLE__hip")
            {
                refuse!(
                    "it was compiled with -fgpu-rdc, so its device code is complete only after \
                     the link; compile without -fgpu-rdc, or link it unchanged and split the \
                     linked binary (kpack install)"
                );
            }
            if section.sh_type.get(LE).0 == OFFLOADING || self.name(section) == b".llvm.offloading"
            {
                refuse!(
                    "it was compiled with --offload-new-driver and -fgpu-rdc, or with \
                     -foffload-lto: its device code is in `.llvm.offloading` until \
                     clang-linker-wrapper links it; compile without these options, or link it \
                     unchanged and split the linked binary (kpack install)"
                );
            }
        }
        Ok(())
    }

    /// Sections of that name, or of that name followed by a dot and a suffix.
    fn named(&self, name: &str) -> Vec<usize> {
        let is_named = |section: &SectionHeader| {
            let rest = self.name(section).strip_prefix(name.as_bytes());
            section.sh_type.get(LE) != elf::SHT_RELA
                && rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
        };
        let all = self.sections.iter().enumerate();
        all.filter(|(_, section)| is_named(section) && section.sh_size.get(LE) > 0)
            .map(|(index, _)| index)
            .collect()
    }

    /// A section's name for messages.
    fn shown(&self, index: usize) -> String {
        let section = self.sections.get(index);
        String::from_utf8_lossy(section.map_or(&[], |section| self.name(section))).into_owned()
    }

    /// Offset, magic and version of each possible wrapper in a section. Instrumented builds pad
    /// between wrappers, so each aligned slot may hold the next one.
    fn wrappers_in(&self, section: usize) -> Result<Vec<(u64, u32, u32)>, ElfError> {
        let bytes = self.bytes_of(section)?;
        let word = |at: usize| {
            let bytes = bytes
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
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
        (co_index, wrapper): (u32, u64),
        relocation: &Relocation,
        fat_sections: &[usize],
        used: &[(usize, u64)],
        symbols: &Symbols,
    ) -> Result<linked::Wrapper, ElfError> {
        let (section, offset) = match relocation.target {
            Target::Section(section, offset) => (section, offset),
            Target::Undefined(symbol) => refuse!(
                "the wrapper at offset {wrapper:#x} of `{WRAPPER_SECTION}` points to symbol \
                 `{}` of another object, as -fgpu-rdc makes it, so its device code is complete \
                 only after the link; compile without -fgpu-rdc, or link it unchanged and split \
                 the linked binary (kpack install)",
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
        if relocation.kind != self.absolute {
            refuse!(
                "the pointer of the wrapper at offset {wrapper:#x} is relocated by {:?}; expected {:?}",
                relocation.kind,
                self.absolute
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
    ) -> Result<BTreeMap<(usize, u64), Relocation>, ElfError> {
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

    /// The bytes of a section.
    pub(super) fn bytes_of(&self, index: usize) -> Result<Vec<u8>, ElfError> {
        match self.sections.get(index) {
            Some(section) => bytes_of(&self.source, self.size, section, "a section"),
            None => refuse!("there is no section {index}"),
        }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self, offset: u64, size: u64) -> Result<Vec<u8>, ElfError> {
        bytes(&self.source, self.size, offset, size, "part of the object")
    }
}

fn section_headers<S: ReadAt>(
    source: &S,
    size: u64,
    header: &Header,
) -> Result<Vec<SectionHeader>, ElfError> {
    let entry = size_of::<SectionHeader>() as u64;
    if u64::from(header.e_shentsize.get(LE)) != entry {
        refuse!(
            "its section headers have {} bytes each; expected {entry}",
            header.e_shentsize.get(LE)
        );
    }
    let offset = header.e_shoff.get(LE);
    let first = bytes(source, size, offset, entry, "the first section header")?;
    let count = match header.e_shnum.get(LE) {
        0 => linked::pods::<SectionHeader>(&first)[0].sh_size.get(LE),
        count => u64::from(count),
    };
    let all = bytes(
        source,
        size,
        offset,
        count.saturating_mul(entry),
        "the section headers",
    )?;
    Ok(linked::pods::<SectionHeader>(&all).to_vec())
}

fn bytes_of<S: ReadAt>(
    source: &S,
    size: u64,
    section: &SectionHeader,
    what: &str,
) -> Result<Vec<u8>, ElfError> {
    if section.sh_type.get(LE) == elf::SHT_NOBITS {
        return Ok(Vec::new());
    }
    bytes(
        source,
        size,
        section.sh_offset.get(LE),
        section.sh_size.get(LE),
        what,
    )
}

fn bytes<S: ReadAt>(
    source: &S,
    available: u64,
    offset: u64,
    size: u64,
    what: &str,
) -> Result<Vec<u8>, ElfError> {
    if offset.checked_add(size).is_none_or(|end| end > available) {
        refuse!(
            "{what} ({size} bytes at offset {offset:#x}) ends past the end of the file \
             ({available} bytes)"
        );
    }
    let mut bytes = vec![0; size as usize];
    source.read_exact_at(offset, &mut bytes)?;
    Ok(bytes)
}
