//! Reads linked ELF files.

use std::ops::Range;

use kpack_core::Reason;
use object::LittleEndian as LE;
use object::elf;

use super::headers::{SECTION_ENTRY, SEGMENT_ENTRY, Section, Segment};
use super::records::{pods, read_range};
use super::{BinaryError, ReadAt};
use super::{refuse, unsupported};

/// A linked ELF file with its headers in memory; everything else is read on demand.
#[derive(Debug, Clone)]
pub struct Image<S> {
    source: S,
    /// Size of the file in bytes.
    pub size: u64,
    /// The ELF header.
    pub header: elf::FileHeader64<LE>,
    /// The host architecture.
    pub machine: Machine,
    /// The program headers.
    pub segments: Vec<Segment>,
    /// The section headers.
    pub sections: Vec<Section>,
    /// Index of the section header string table.
    pub names_index: usize,
}

/// Smallest supported page size, in bytes.
pub(super) const MIN_PAGE: u64 = 4096;

/// Supported host architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// AArch64.
    AArch64,
    /// 64-bit POWER, little-endian.
    Ppc64Le,
}

impl Machine {
    /// The machine of a 64-bit little-endian file, if kpack splits its binaries.
    pub fn of(machine: elf::Machine) -> Option<Self> {
        match machine {
            elf::EM_X86_64 => Some(Self::X86_64),
            elf::EM_AARCH64 => Some(Self::AArch64),
            elf::EM_PPC64 => Some(Self::Ppc64Le),
            _ => None,
        }
    }

    /// `B + A`: base address plus addend (psABI).
    pub fn relative(self) -> elf::RelocationType {
        match self {
            Machine::X86_64 => elf::R_X86_64_RELATIVE,
            Machine::AArch64 => elf::R_AARCH64_RELATIVE,
            Machine::Ppc64Le => elf::R_PPC64_RELATIVE,
        }
    }

    /// The page that ROCm's tool cuts device code by.
    pub(super) fn tool_page(self) -> u64 {
        if self == Machine::X86_64 { MIN_PAGE } else { 1 << 16 }
    }

    /// `S + A` in 64 bits: symbol plus addend (psABI).
    pub fn absolute(self) -> elf::RelocationType {
        match self {
            Machine::X86_64 => elf::R_X86_64_64,
            Machine::AArch64 => elf::R_AARCH64_ABS64,
            Machine::Ppc64Le => elf::R_PPC64_ADDR64,
        }
    }

    /// Indirect function: the addend is the resolver's address.
    pub fn irelative(self) -> elf::RelocationType {
        match self {
            Machine::X86_64 => elf::R_X86_64_IRELATIVE,
            Machine::AArch64 => elf::R_AARCH64_IRELATIVE,
            Machine::Ppc64Le => elf::R_PPC64_IRELATIVE,
        }
    }
}

impl<S> Image<S> {
    /// The same headers over another source: the same file, opened again, or none.
    pub fn over<T>(&self, source: T) -> Image<T> {
        Image {
            source,
            size: self.size,
            header: self.header,
            machine: self.machine,
            segments: self.segments.clone(),
            sections: self.sections.clone(),
            names_index: self.names_index,
        }
    }

    /// The largest alignment of a PT_LOAD. What is cut out or inserted must be a multiple of it, so that
    /// later offsets and addresses stay congruent.
    pub(crate) fn page_size(&self) -> u64 {
        let loads = self.segments.iter().filter(|s| s.is_load());
        loads.map(|s| s.align).fold(MIN_PAGE, u64::max)
    }

    /// The address ranges that are in use, in order, without the device code in section `fat`. Of the
    /// section `own`, only the marker is in use; the rest is padding.
    pub(crate) fn occupied(&self, fat: usize, own: usize, marker: &Range<u64>) -> Vec<Range<u64>> {
        let sections = self
            .sections
            .iter()
            .enumerate()
            .filter(|(index, s)| *index != fat && s.occupies_memory())
            .map(|(index, s)| {
                let end = if index == own { marker.end.min(s.addr_end()) } else { s.addr_end() };
                s.addr..end
            });
        let segments =
            self.segments.iter().filter(|s| s.is_content()).map(|s| s.vaddr..s.file_backed_end());
        let mut ranges: Vec<Range<u64>> = sections.chain(segments).collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges
    }

    /// The addresses of the program headers; `None` if no PT_LOAD has them.
    pub(crate) fn headers(&self) -> Option<Range<u64>> {
        let offset = self.header.e_phoff.get(LE);
        let size = SEGMENT_ENTRY * self.segments.len() as u64;
        let load = self
            .segments
            .iter()
            .find(|s| s.is_load() && s.offset <= offset && offset < s.file_end())?;
        let start = load.vaddr + (offset - load.offset);
        Some(start..start + size)
    }

    /// The section header table in the file.
    pub fn table(&self) -> Range<u64> {
        let start = self.header.e_shoff.get(LE);
        start..start.saturating_add(SECTION_ENTRY * self.sections.len() as u64)
    }
}

impl<S: ReadAt> Image<S> {
    /// Reads the headers. Refuses anything but a linked 64-bit little-endian ELF file for one of the
    /// machines with section headers.
    pub fn read(source: S) -> Result<Self, BinaryError> {
        let mut image = Self::read_loaded(source)?;
        (image.sections, image.names_index) =
            section_headers(&image.source, image.size, &image.header)?;
        check_bounds(&[], &image.sections)?;
        Ok(image)
    }

    /// As [`Image::read`], but reads only what the dynamic linker reads: the image has no sections.
    pub fn read_loaded(source: S) -> Result<Self, BinaryError> {
        let size = source.size()?;
        let mut ident = [0u8; 16];
        if size < 16 {
            refuse!(
                expected "at least 64 bytes", found size;
                "has {size} bytes; an ELF file has at least 64"
            );
        }
        source.read_exact_at(0, &mut ident)?;
        if !ident.starts_with(&elf::ELFMAG) {
            let found = format!("{:02x?}", &ident[..4]);
            let expected = "7f 45 4c 46 at its start";
            let reason = Reason::mismatch("not an ELF file", expected, found).at(0);
            return Err(BinaryError::Refused(reason));
        }
        if ident[4] != elf::ELFCLASS64.0 || ident[5] != elf::ELFDATA2LSB.0 {
            let expected = "a 64-bit little-endian ELF file (class 2, data 1)";
            let found = format!("class {}, data {}", ident[4], ident[5]);
            return Err(BinaryError::Unsupported(Reason::mismatch("", expected, found).at(4)));
        }
        let header_bytes = read_range(&source, size, 0, 64, "the ELF header")?;
        let header: elf::FileHeader64<LE> = pods::<elf::FileHeader64<LE>>(&header_bytes)[0];
        let e_machine = header.e_machine.get(LE);
        let Some(machine) = Machine::of(e_machine) else {
            let expected = "a host binary for x86-64 (e_machine 62), AArch64 (183) or ppc64le (21)";
            let reason = Reason::mismatch("", expected, format!("e_machine {}", e_machine.0))
                .then("; kpack splits binaries for no other machine");
            return Err(BinaryError::Unsupported(reason.at(18)));
        };
        match header.e_type.get(LE) {
            elf::ET_EXEC | elf::ET_DYN => {}
            elf::ET_REL => return Err(BinaryError::Relocatable),
            other => {
                let expected = "an executable (e_type 2) or a shared object (3)";
                let reason = Reason::mismatch("", expected, format!("e_type {}", other.0));
                return Err(BinaryError::Refused(reason.at(16)));
            }
        }
        let segments = program_headers(&source, size, &header)?;
        check_bounds(&segments, &[])?;
        Ok(Self { source, size, header, machine, segments, sections: Vec::new(), names_index: 0 })
    }

    /// The file of the image.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The triple of the host that it is for.
    pub fn host_triple(&self) -> &'static str {
        match self.machine {
            Machine::X86_64 => "x86_64-unknown-linux",
            Machine::AArch64 => "aarch64-unknown-linux",
            Machine::Ppc64Le => "powerpc64le-unknown-linux",
        }
    }

    /// Whether it has the note of this type that belongs to kpack. Linkers may put it between others.
    pub fn has_note(&self, kind: u32) -> Result<bool, BinaryError> {
        const OWNER: &[u8] = b"kpack\0\0\0";
        let mut note = [6_u32, 0, kind].map(u32::to_le_bytes).concat();
        note.extend(OWNER);
        for segment in self.segments.iter().filter(|s| s.kind == elf::PT_NOTE) {
            let notes = self.bytes(segment.offset, segment.filesz, "a segment of notes")?;
            if notes.windows(note.len()).any(|window| window == note) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether it runs at its linked addresses, without relocation at run time.
    pub fn is_position_dependent(&self) -> bool {
        self.header.e_type.get(LE) == elf::ET_EXEC
    }

    /// Reads `size` bytes of `what` at `offset`; refused if they end past the end of the file.
    pub fn bytes(&self, offset: u64, size: u64, what: &str) -> Result<Vec<u8>, BinaryError> {
        read_range(&self.source, self.size, offset, size, what)
    }

    /// The contents of a section that has bytes.
    pub fn section_bytes(&self, section: &Section) -> Result<Vec<u8>, BinaryError> {
        self.bytes(section.offset, section.size, &format!("section `{}`", section.name))
    }

    /// The only section of that name.
    pub fn section(&self, name: &str) -> Result<Option<(usize, &Section)>, BinaryError> {
        let mut found = self.sections.iter().enumerate().filter(|(_, s)| s.name == name);
        let first = found.next();
        if found.next().is_some() {
            refuse!("has more than one section `{name}`; a linked binary has one");
        }
        Ok(first)
    }

    /// The PT_LOAD that loads all of `addresses` from the file.
    pub fn load_of(&self, addresses: &Range<u64>) -> Option<(usize, &Segment)> {
        self.segments.iter().enumerate().find(|(_, s)| {
            s.is_load() && s.vaddr <= addresses.start && addresses.end <= s.file_backed_end()
        })
    }

    /// File offset of `addresses`, if one PT_LOAD loads all of them from the file.
    pub fn offset_of(&self, addresses: &Range<u64>) -> Option<u64> {
        let (_, load) = self.load_of(addresses)?;
        Some(load.offset + (addresses.start - load.vaddr))
    }

    /// Reads memory as it is before relocations are applied.
    pub fn memory(&self, addresses: Range<u64>, what: &str) -> Result<Vec<u8>, BinaryError> {
        match self.offset_of(&addresses) {
            Some(offset) => self.bytes(offset, addresses.end - addresses.start, what),
            None => refuse!(
                "{what} is at addresses {:#x}..{:#x}, which no PT_LOAD loads from the file",
                addresses.start,
                addresses.end
            ),
        }
    }

    /// Checks what a rewrite relies on: segments and sections lie within the file, and segments
    /// ascend and are congruent modulo their alignment.
    pub fn validate(&self) -> Result<(), BinaryError> {
        let mut previous_end = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.offset.checked_add(segment.filesz).is_none_or(|end| end > self.size) {
                refuse!(
                    at segment.offset;
                    "program header {index} ({:?}) covers {:#x} bytes at offset {:#x}, but the file has only {:#x}, so it is truncated; build or copy it again",
                    segment.kind,
                    segment.filesz,
                    segment.offset,
                    self.size
                );
            }
            if !segment.is_load() {
                continue;
            }
            if segment.filesz > segment.memsz {
                refuse!(
                    at segment.offset;
                    "PT_LOAD {index} has more bytes in the file than in memory"
                );
            }
            let align = segment.align.max(1);
            if !align.is_power_of_two() || (segment.vaddr ^ segment.offset) & (align - 1) != 0 {
                refuse!(
                    at segment.offset;
                    "PT_LOAD {index}: address {:#x} and offset {:#x} are not congruent modulo the alignment {align:#x}",
                    segment.vaddr,
                    segment.offset
                );
            }
            if segment.vaddr < previous_end {
                refuse!(
                    at segment.offset;
                    "PT_LOAD {index} at {:#x} overlaps or precedes the one before it",
                    segment.vaddr
                );
            }
            previous_end = segment.vaddr + segment.memsz;
        }
        for section in &self.sections {
            let fits = section.offset.checked_add(section.size).is_some_and(|end| end <= self.size);
            if section.has_bytes() && !fits {
                refuse!(
                    at section.offset;
                    "section `{}` covers {:#x} bytes at offset {:#x}, but the file has only {:#x}, so it is truncated; build or copy it again",
                    section.name,
                    section.size,
                    section.offset,
                    self.size
                );
            }
        }
        Ok(())
    }
}

/// Upper limit for addresses and offsets, so that arithmetic on them cannot overflow. The address
/// space of every host is far smaller.
pub(crate) const LIMIT: u64 = 1 << 62;
/// The largest accepted alignment, far above the largest page.
pub(crate) const MAX_ALIGN: u64 = 1 << 32;

/// Refuses headers that could make arithmetic overflow.
fn check_bounds(segments: &[Segment], sections: &[Section]) -> Result<(), BinaryError> {
    let beyond = |start: u64, size: u64| start.checked_add(size).is_none_or(|end| end > LIMIT);
    for (index, s) in segments.iter().enumerate() {
        if beyond(s.vaddr, s.memsz) || beyond(s.offset, s.filesz) || s.align > MAX_ALIGN {
            refuse!(
                at s.offset;
                "program header {index} ({:?}) is out of bounds: address {:#x}, {:#x} bytes in memory; offset {:#x}, {:#x} bytes in the file; alignment {:#x}",
                s.kind,
                s.vaddr,
                s.memsz,
                s.offset,
                s.filesz,
                s.align
            );
        }
    }
    for s in sections {
        if beyond(s.addr, s.size) || beyond(s.offset, s.size) || s.align > MAX_ALIGN {
            refuse!(
                at s.offset;
                "section `{}` is out of bounds: address {:#x}, offset {:#x}, {:#x} bytes, alignment {:#x}",
                s.name,
                s.addr,
                s.offset,
                s.size,
                s.align
            );
        }
    }
    Ok(())
}

fn program_headers<S: ReadAt>(
    source: &S,
    size: u64,
    header: &elf::FileHeader64<LE>,
) -> Result<Vec<Segment>, BinaryError> {
    let count = header.e_phnum.get(LE);
    if count == 0 {
        refuse!("no program headers (expected an executable or shared object)");
    }
    if count == elf::PN_XNUM {
        unsupported!("has 65535 program headers or more, which is not supported");
    }
    let entry = u64::from(header.e_phentsize.get(LE));
    if entry != SEGMENT_ENTRY {
        refuse!(
            at header.e_phoff.get(LE), expected SEGMENT_ENTRY, found entry;
            "the program headers have {entry} bytes each; expected {SEGMENT_ENTRY}"
        );
    }
    let bytes = read_range(
        source,
        size,
        header.e_phoff.get(LE),
        u64::from(count) * entry,
        "the program header table",
    )?;
    Ok(pods(&bytes).iter().map(Segment::from_pod).collect())
}

fn section_headers<S: ReadAt>(
    source: &S,
    size: u64,
    header: &elf::FileHeader64<LE>,
) -> Result<(Vec<Section>, usize), BinaryError> {
    let offset = header.e_shoff.get(LE);
    if offset == 0 {
        refuse!(
            "no section headers, which kpack needs to find device code; split the file before its section headers are stripped"
        );
    }
    let count = header.e_shnum.get(LE);
    if count == 0 {
        unsupported!("has 65280 sections or more, which is not supported");
    }
    let entry = u64::from(header.e_shentsize.get(LE));
    if entry != SECTION_ENTRY {
        refuse!(
            at offset, expected SECTION_ENTRY, found entry;
            "the section headers have {entry} bytes each; expected {SECTION_ENTRY}"
        );
    }
    let bytes =
        read_range(source, size, offset, u64::from(count) * entry, "the section header table")?;
    let mut sections: Vec<Section> = pods(&bytes).iter().map(Section::from_pod).collect();
    let names_index = usize::from(header.e_shstrndx.get(LE).0);
    let Some(names) = sections.get(names_index).filter(|s| s.kind == elf::SHT_STRTAB) else {
        refuse!(
            "e_shstrndx is {names_index}, which is not a string table among its {count} sections"
        );
    };
    let names =
        read_range(source, size, names.offset, names.size, "the section header string table")?;
    for (index, section) in sections.iter_mut().enumerate() {
        let start = names.get(section.name_offset as usize..);
        let Some(name) = start.and_then(|s| s.split(|byte| *byte == 0).next()) else {
            refuse!("the name of section {index} is outside the string table");
        };
        section.name = String::from_utf8_lossy(name).into_owned();
    }
    Ok((sections, names_index))
}
