//! A relocatable object: its headers and sections.

use object::LittleEndian as LE;
use object::elf;

use kpack_core::elf::{BinaryError, ReadAt, pods, read_range, refuse, unsupported};

pub(super) type Header = elf::FileHeader64<LE>;
pub(super) type SectionHeader = elf::SectionHeader64<LE>;

/// An ELF file with its headers in memory. `examine` checks that it is a relocatable object.
pub(super) struct Relocatable<S> {
    pub(super) source: S,
    pub(super) size: u64,
    pub(super) header: Header,
    pub(super) sections: Vec<SectionHeader>,
    /// The section header string table, and its index.
    pub(super) names: Vec<u8>,
    pub(super) names_index: usize,
}

impl<S: ReadAt> Relocatable<S> {
    /// Reads the headers.
    ///
    /// # Errors
    /// The file is damaged, or not a 64-bit little-endian ELF file.
    pub(super) fn read(source: S) -> Result<Self, BinaryError> {
        let size = source.size()?;
        let bytes = read_range(&source, size, 0, 64, "the ELF header")?;
        let header: Header = pods::<Header>(&bytes)[0];
        let ident = &header.e_ident;
        if ident.magic != elf::ELFMAG
            || ident.class != elf::ELFCLASS64
            || ident.data != elf::ELFDATA2LSB
        {
            unsupported!("expected a 64-bit little-endian ELF file (class 2, data 1)");
        }
        let sections = section_headers(&source, size, &header)?;
        // The gABI's escapes for more sections than fit ("ELF Header", e_shstrndx).
        let names_index = match header.e_shstrndx.get(LE) {
            elf::SHN_XINDEX => sections.first().map_or(0, |first| first.sh_link.get(LE) as usize),
            index => usize::from(index.0),
        };
        let Some(table) = sections.get(names_index).filter(|_| names_index != 0) else {
            refuse!(
                "the header names section {names_index} as the section name table, which does \
                     not exist"
            );
        };
        let names = bytes_of(&source, size, table, "the section names")?;
        Ok(Self { source, size, header, sections, names, names_index })
    }

    /// The name of a section; empty for one that has none.
    pub(super) fn name(&self, section: &SectionHeader) -> &[u8] {
        text_at(&self.names, section.sh_name.get(LE))
    }

    /// Refuses sections that end past the end of the file.
    pub(super) fn check_ranges(&self) -> Result<(), BinaryError> {
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

    /// A section's name for messages.
    pub(super) fn shown(&self, index: usize) -> String {
        let section = self.sections.get(index);
        String::from_utf8_lossy(section.map_or(&[], |section| self.name(section))).into_owned()
    }

    /// The bytes of a section.
    pub(super) fn bytes_of(&self, index: usize) -> Result<Vec<u8>, BinaryError> {
        match self.sections.get(index) {
            Some(section) => bytes_of(&self.source, self.size, section, "a section"),
            None => refuse!("there is no section {index}"),
        }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self, offset: u64, size: u64) -> Result<Vec<u8>, BinaryError> {
        read_range(&self.source, self.size, offset, size, "part of the object")
    }
}

/// The relocation that writes a pointer, on the CPUs whose objects can be split.
pub(super) fn pointer_relocation(machine: elf::Machine) -> Option<elf::RelocationType> {
    match machine {
        elf::EM_X86_64 => Some(elf::R_X86_64_64),
        elf::EM_AARCH64 => Some(elf::R_AARCH64_ABS64),
        elf::EM_PPC64 => Some(elf::R_PPC64_ADDR64),
        _ => None,
    }
}

fn section_headers<S: ReadAt>(
    source: &S,
    size: u64,
    header: &Header,
) -> Result<Vec<SectionHeader>, BinaryError> {
    let entry = size_of::<SectionHeader>() as u64;
    if u64::from(header.e_shentsize.get(LE)) != entry {
        refuse!(
            "the section headers have {} bytes each; expected {entry}",
            header.e_shentsize.get(LE)
        );
    }
    let offset = header.e_shoff.get(LE);
    let first = read_range(source, size, offset, entry, "the first section header")?;
    let count = match header.e_shnum.get(LE) {
        0 => pods::<SectionHeader>(&first)[0].sh_size.get(LE),
        count => u64::from(count),
    };
    let all = read_range(source, size, offset, count.saturating_mul(entry), "the section headers")?;
    Ok(pods::<SectionHeader>(&all).to_vec())
}

fn bytes_of<S: ReadAt>(
    source: &S,
    size: u64,
    section: &SectionHeader,
    what: &str,
) -> Result<Vec<u8>, BinaryError> {
    if section.sh_type.get(LE) == elf::SHT_NOBITS {
        return Ok(Vec::new());
    }
    read_range(source, size, section.sh_offset.get(LE), section.sh_size.get(LE), what)
}

/// The text at `start` of a string table, without the NUL; empty past the table's end.
pub(super) fn text_at(table: &[u8], start: u32) -> &[u8] {
    let rest = table.get(start as usize..).unwrap_or_default();
    rest.split(|byte| *byte == 0).next().unwrap_or_default()
}
