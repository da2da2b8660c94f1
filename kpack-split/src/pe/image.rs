//! Reads PE images: the headers of DLLs and programs for Windows.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;

use kpack_core::Reason;
use kpack_core::archives::debug_sections::is_debug_section;
use kpack_core::elf::{BinaryError, ReadAt, pods, read_range, refuse, unsupported};
use kpack_core::files::first_difference;

use crate::rewrite::Gaps;

/// Size of a section header, in bytes.
pub(super) const SECTION_HEADER: u64 = size_of::<pe::ImageSectionHeader>() as u64;
/// Size of a COFF symbol, in bytes.
pub(super) const SYMBOL: u64 = pe::IMAGE_SIZEOF_SYMBOL as u64;
/// Size of the PE signature, in bytes.
const SIGNATURE: u64 = 4;
/// The longest name of a section that is read, in bytes.
const LONGEST_NAME: u64 = 4 << 10;
/// The most data directories.
const MOST_DIRECTORIES: u64 = pe::IMAGE_NUMBEROF_DIRECTORY_ENTRIES as u64;

/// The section with the marker.
pub const MARKER_SECTION: &str = ".kpackrf";
/// Its name while the device code is in the image: other tools take an image with [`MARKER_SECTION`] for split.
pub(super) const KEPT_MARKER_SECTION: &str = ".keptref";
/// The sections with the bundles. Some linkers cut names to eight bytes.
pub const CODE_SECTIONS: [&str; 2] = [".hip_fatbin", ".hip_fat"];
/// The sections with the wrappers.
pub const WRAPPER_SECTIONS: [&str; 2] = [".hipFatBinSegment", ".hipFatB"];

/// A PE image with its headers in memory; everything else is read on demand. All addresses are relative to
/// where it is loaded.
#[derive(Debug, Clone)]
pub struct Image<S> {
    source: S,
    /// Size of the file in bytes.
    pub size: u64,
    /// Offset of the COFF header.
    pub(super) header_offset: u64,
    /// The COFF header.
    pub header: pe::ImageFileHeader,
    /// The optional header, without the data directories.
    pub optional: pe::ImageOptionalHeader64,
    /// Addresses and sizes of the data directories; the certificates' is a file offset.
    pub directories: Vec<Range<u64>>,
    /// The section headers.
    pub sections: Vec<Section>,
}

/// A section header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name, from the string table if it is long.
    pub name: String,
    /// The name in the header, or where in the string table the name is.
    pub(super) short_name: [u8; 8],
    /// Its address.
    pub address: u64,
    /// Bytes in memory, as the header has them.
    pub virtual_size: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Offsets and numbers of relocations and line numbers; zero in what linkers write today.
    pub(super) relocations: (u32, u16),
    pub(super) line_numbers: (u32, u16),
    /// What it contains, and how it may be accessed.
    pub flags: pe::SectionFlags,
}

impl Section {
    fn read(header: &pe::ImageSectionHeader) -> Self {
        Self {
            name: String::new(),
            short_name: header.name,
            address: header.virtual_address.get(LE).into(),
            virtual_size: header.virtual_size.get(LE).into(),
            offset: header.pointer_to_raw_data.get(LE).into(),
            file_size: header.size_of_raw_data.get(LE).into(),
            relocations: (
                header.pointer_to_relocations.get(LE),
                header.number_of_relocations.get(LE),
            ),
            line_numbers: (
                header.pointer_to_linenumbers.get(LE),
                header.number_of_linenumbers.get(LE),
            ),
            flags: header.characteristics.get(LE),
        }
    }

    /// The header. Its values fit, since the file is checked to be below 4 GiB.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let word = |value: u64| object::U32::new(LE, value as u32);
        let header = pe::ImageSectionHeader {
            name: self.short_name,
            virtual_size: word(self.virtual_size),
            virtual_address: word(self.address),
            size_of_raw_data: word(self.file_size),
            pointer_to_raw_data: word(self.offset),
            pointer_to_relocations: object::U32::new(LE, self.relocations.0),
            pointer_to_linenumbers: object::U32::new(LE, self.line_numbers.0),
            number_of_relocations: object::U16::new(LE, self.relocations.1),
            number_of_linenumbers: object::U16::new(LE, self.line_numbers.1),
            characteristics: object::U32::new(LE, self.flags),
        };
        object::pod::bytes_of(&header).to_vec()
    }

    /// Bytes in memory.
    pub fn memory_size(&self) -> u64 {
        match self.virtual_size {
            // As old linkers left it.
            0 => self.file_size,
            size => size,
        }
    }

    /// Its addresses.
    pub fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.memory_size()
    }

    /// The addresses that have bytes in the file.
    pub fn in_file(&self) -> Range<u64> {
        self.address..self.address + self.memory_size().min(self.file_size)
    }

    /// Whether it has device code, or what replaces it.
    pub(super) fn is_device(&self) -> bool {
        self.is_marker() || CODE_SECTIONS.contains(&self.name.as_str())
    }

    /// The section with a marker, with the name of those that are split or joined.
    pub(super) fn with_marker(self, is_split: bool) -> Self {
        let name = if is_split { MARKER_SECTION } else { KEPT_MARKER_SECTION };
        let mut short_name = [0; 8];
        short_name.copy_from_slice(name.as_bytes());
        Self { name: name.to_owned(), short_name, ..self }
    }

    /// Whether it has a marker, be the image split or joined.
    pub(crate) fn is_marker(&self) -> bool {
        [MARKER_SECTION, KEPT_MARKER_SECTION].contains(&self.name.as_str())
    }

    /// Whether it has code.
    pub(super) fn is_code(&self) -> bool {
        self.flags.0 & pe::IMAGE_SCN_MEM_EXECUTE.0 != 0
    }

    /// Whether only debuggers read it.
    pub(super) fn is_debug_information(&self) -> bool {
        is_debug_section(self.name.as_bytes())
    }

    /// Where its bytes are in the file.
    pub fn file_range(&self) -> Range<u64> {
        self.offset..self.offset + self.file_size
    }
}

impl<S> Image<S> {
    /// The same headers over another source: the same file, opened again, or none.
    pub fn over<T>(&self, source: T) -> Image<T> {
        Image {
            source,
            size: self.size,
            header_offset: self.header_offset,
            header: self.header,
            optional: self.optional,
            directories: self.directories.clone(),
            sections: self.sections.clone(),
        }
    }

    /// The file of the image.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The triple of the host that it is for.
    pub fn host_triple(&self) -> &'static str {
        "x86_64-pc-windows-msvc"
    }

    /// The address that it is linked for.
    pub fn base(&self) -> u64 {
        self.optional.image_base.get(LE)
    }

    /// Alignment of sections in memory, in bytes.
    pub(super) fn section_alignment(&self) -> u64 {
        self.optional.section_alignment.get(LE).into()
    }

    /// Alignment of sections in the file, in bytes.
    pub(super) fn file_alignment(&self) -> u64 {
        self.optional.file_alignment.get(LE).into()
    }

    /// Bytes of the headers, rounded up.
    pub(super) fn headers_size(&self) -> u64 {
        self.optional.size_of_headers.get(LE).into()
    }

    /// Bytes of the image in memory.
    pub(super) fn image_size(&self) -> u64 {
        self.optional.size_of_image.get(LE).into()
    }

    /// Offset of the optional header.
    pub(super) fn optional_offset(&self) -> u64 {
        self.header_offset + size_of::<pe::ImageFileHeader>() as u64
    }

    /// Offset of the checksum.
    pub(super) fn checksum_offset(&self) -> u64 {
        self.optional_offset() + 64
    }

    /// The section headers in the file.
    pub(super) fn table(&self) -> Range<u64> {
        let optional = u64::from(self.header.size_of_optional_header.get(LE));
        let start = self.optional_offset() + optional;
        start..start + SECTION_HEADER * self.sections.len() as u64
    }

    /// The COFF symbols in the file. The string table follows them.
    fn symbol_table(&self) -> Range<u64> {
        let start = u64::from(self.header.pointer_to_symbol_table.get(LE));
        match start {
            0 => 0..0,
            start => start..start + SYMBOL * u64::from(self.header.number_of_symbols.get(LE)),
        }
    }

    /// The same, or 0..0 if the image has neither symbols nor sections with long names: wherever the table is, nothing
    /// reads it.
    pub(super) fn symbols(&self) -> Range<u64> {
        let table = self.symbol_table();
        let has_long_names = self.sections.iter().any(|s| s.short_name[0] == b'/');
        if table.is_empty() && !has_long_names { 0..0 } else { table }
    }

    /// A data directory; empty if there is none.
    pub(super) fn directory(&self, index: usize) -> Range<u64> {
        self.directories.get(index).cloned().unwrap_or(0..0)
    }

    /// The certificates in the file.
    pub(super) fn certificates(&self) -> Range<u64> {
        self.directory(pe::IMAGE_DIRECTORY_ENTRY_SECURITY)
    }

    /// Whether it has a signature.
    pub fn is_signed(&self) -> bool {
        !self.certificates().is_empty()
    }

    /// The section that has all of these addresses.
    pub fn section_at(&self, addresses: &Range<u64>) -> Option<&Section> {
        let mut sections = self.sections.iter();
        sections.find(|section| {
            let own = section.addresses();
            own.start <= addresses.start
                && addresses.end <= own.end
                && own.contains(&addresses.start)
        })
    }

    /// File offset of `addresses`, if one section has all of them in the file.
    pub fn offset_of(&self, addresses: &Range<u64>) -> Option<u64> {
        let section = self.section_at(addresses)?;
        let is_in_file = addresses.end <= section.in_file().end;
        is_in_file.then(|| section.offset + (addresses.start - section.address))
    }
}

impl<S: ReadAt> Image<S> {
    /// Reads the headers. Refuses anything but an image for x86-64.
    pub fn read(source: S) -> Result<Self, BinaryError> {
        let size = source.size()?;
        let bytes = read_range(&source, size, 0, 64, "the DOS header")?;
        let dos: pe::ImageDosHeader = pods(&bytes)[0];
        if dos.e_magic.get(LE) != pe::IMAGE_DOS_SIGNATURE {
            refuse!(at 0; "not a PE file (expected `MZ` at its start)");
        }
        let signature = u64::from(dos.e_lfanew.get(LE));
        let found = read_range(&source, size, signature, SIGNATURE, "the PE signature")?;
        if found != pe::IMAGE_NT_SIGNATURE.to_le_bytes() {
            let expected = format!("`PE\\0\\0` at offset {signature:#x}");
            let reason = Reason::mismatch("not a PE file", expected, format!("{found:02x?}"));
            return Err(BinaryError::Refused(reason.at(signature)));
        }
        let header_offset = signature + SIGNATURE;
        let bytes = read_range(&source, size, header_offset, 20, "the COFF header")?;
        let header: pe::ImageFileHeader = pods(&bytes)[0];
        let machine = header.machine.get(LE);
        if machine != pe::IMAGE_FILE_MACHINE_AMD64 {
            unsupported!(
                "a Windows binary for {}; expected x86-64 (machine {:#x})",
                machine_name(machine),
                pe::IMAGE_FILE_MACHINE_AMD64.0
            );
        }
        let optional = optional_header(&source, size, header_offset + 20, &header)?;
        let directories = directories(&source, size, header_offset + 20, &header, &optional)?;
        let mut image = Self {
            source,
            size,
            header_offset,
            header,
            optional,
            directories,
            sections: Vec::new(),
        };
        image.sections = image.section_headers()?;
        Ok(image)
    }

    fn section_headers(&self) -> Result<Vec<Section>, BinaryError> {
        let count = u64::from(self.header.number_of_sections.get(LE));
        let bytes =
            self.bytes(self.table().start, SECTION_HEADER * count, "the section headers")?;
        let headers: &[pe::ImageSectionHeader] = pods(&bytes);
        let mut sections = Vec::with_capacity(headers.len());
        for header in headers {
            let mut section = Section::read(header);
            section.name = self.section_name(&section.short_name)?;
            sections.push(section);
        }
        Ok(sections)
    }

    /// A name of up to eight bytes, or `/` and an offset in the string table, which follows the symbols.
    fn section_name(&self, short: &[u8; 8]) -> Result<String, BinaryError> {
        let end = short.iter().position(|byte| *byte == 0).unwrap_or(8);
        let short = String::from_utf8_lossy(&short[..end]).into_owned();
        let Some(at) = short.strip_prefix('/').and_then(|at| at.parse::<u64>().ok()) else {
            return Ok(short);
        };
        let table = self.symbol_table();
        let start = table.end + at;
        let mut name: Vec<u8> = Vec::new();
        loop {
            let next = start + name.len() as u64;
            // Most names are shorter; no table is longer than the file.
            let more = self.size.saturating_sub(next).min(32);
            if more == 0 || at == 0 || table.end == 0 {
                refuse!("the name of section `{short}` is outside of the string table");
            }
            if name.len() as u64 >= LONGEST_NAME {
                refuse!("the name of section `{short}` has more than {LONGEST_NAME} bytes");
            }
            let piece = self.bytes(next, more, "a section's name")?;
            let end = piece.iter().position(|byte| *byte == 0);
            name.extend(&piece[..end.unwrap_or(piece.len())]);
            if end.is_some() {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// Reads `size` bytes of `what` at `offset`; refused if they end past the end of the file.
    pub fn bytes(&self, offset: u64, size: u64, what: &str) -> Result<Vec<u8>, BinaryError> {
        read_range(&self.source, self.size, offset, size, what)
    }

    /// The offset and the bytes of a data directory, which `what` names; `None` if it is empty.
    pub(super) fn directory_bytes(
        &self,
        index: usize,
        what: &str,
    ) -> Result<Option<(u64, Vec<u8>)>, BinaryError> {
        let Range { start, end } = self.directory(index);
        if start == end {
            return Ok(None);
        }
        let Some(offset) = self.offset_of(&(start..end)) else {
            refuse!("no section has {what}, at {start:#x}..{end:#x}, in the file");
        };
        Ok(Some((offset, self.bytes(offset, end - start, what)?)))
    }

    /// The contents of a section in the file, without padding.
    pub fn section_bytes(&self, section: &Section) -> Result<Vec<u8>, BinaryError> {
        let in_file = section.in_file();
        let what = format!("section `{}`", section.name);
        self.bytes(section.offset, in_file.end - in_file.start, &what)
    }

    /// The bytes that follow everything else, without certificates and padding.
    pub(super) fn overlay(&self) -> Result<Range<u64>, BinaryError> {
        let ends = self
            .sections
            .iter()
            .filter(|s| s.file_size > 0)
            .map(|section| section.file_range().end);
        let mut start = ends.fold(self.headers_size(), u64::max);
        let names = self.symbols().end;
        if names != 0 && names + 4 <= self.size {
            let bytes = self.bytes(names, 4, "the size of the names of symbols")?;
            let size: object::U32<LE> = pods(&bytes)[0];
            start = start.max(names + u64::from(size.get(LE)).max(4));
        }
        let start = start.min(self.size);
        let certificates = self.certificates();
        let mut end = self.size;
        if !certificates.is_empty() && certificates.end == end && certificates.start >= start {
            end = certificates.start;
        }
        // Tools fill up the file with zeroes.
        let size = (end - start).min(self.file_alignment().saturating_sub(1));
        let padding = self.bytes(end - size, size, "padding")?;
        end -= padding.iter().rev().take_while(|byte| **byte == 0).count() as u64;
        Ok(start..end)
    }

    /// Whether the bytes that follow everything else are the same.
    pub(super) fn has_same_overlay<T: ReadAt>(
        &self,
        other: &Image<T>,
    ) -> Result<bool, BinaryError> {
        let (own, theirs) = (self.overlay()?, other.overlay()?);
        if own.end - own.start != theirs.end - theirs.start {
            return Ok(false);
        }
        let found = first_difference(
            own.end - own.start,
            |at, out| self.source.read_exact_at(own.start + at, out),
            |at, out| other.source.read_exact_at(theirs.start + at, out),
        );
        Ok(found?.is_none())
    }

    /// The records of the symbol table, and the indices of those that are symbols: others add to the one before them.
    pub(super) fn symbol_records(&self) -> Result<(Vec<u8>, Vec<usize>), BinaryError> {
        let range = self.symbols();
        if range.is_empty() {
            return Ok(Default::default());
        }
        let bytes = self.bytes(range.start, range.end - range.start, "the symbol table")?;
        let records: &[pe::ImageSymbol] = pods(&bytes);
        let (mut symbols, mut next) = (Vec::new(), 0);
        while let Some(symbol) = records.get(next) {
            symbols.push(next);
            next += 1 + usize::from(symbol.number_of_aux_symbols);
        }
        Ok((bytes, symbols))
    }

    /// The only section with one of these names.
    pub fn section(&self, names: &[&str]) -> Result<Option<(usize, &Section)>, BinaryError> {
        let sections = self.sections.iter().enumerate();
        let mut found = sections.filter(|(_, section)| names.contains(&section.name.as_str()));
        let first = found.next();
        if let (Some((_, section)), Some(_)) = (first, found.next()) {
            refuse!("has more than one section `{}`; expected one", section.name);
        }
        Ok(first)
    }

    /// The contents of memory before it is relocated, zeroes where the file has none.
    pub(super) fn memory(&self, addresses: &Range<u64>) -> Result<Option<Vec<u8>>, BinaryError> {
        let Some(section) = self.section_at(addresses) else {
            return Ok(None);
        };
        let in_file = section.in_file().end.clamp(addresses.start, addresses.end);
        let offset = section.offset + (addresses.start - section.address);
        let mut bytes = match in_file - addresses.start {
            0 => Vec::new(),
            size => self.bytes(offset, size, "loaded memory")?,
        };
        bytes.resize((addresses.end - addresses.start) as usize, 0);
        Ok(Some(bytes))
    }
}

/// The name of a machine, as users know it.
fn machine_name(machine: pe::Machine) -> String {
    match machine {
        pe::IMAGE_FILE_MACHINE_I386 => "32-bit x86".to_owned(),
        pe::IMAGE_FILE_MACHINE_ARM64
        | pe::IMAGE_FILE_MACHINE_ARM64EC
        | pe::IMAGE_FILE_MACHINE_ARM64X => "ARM64".to_owned(),
        other => format!("machine {:#x}", other.0),
    }
}

fn optional_header<S: ReadAt>(
    source: &S,
    file_size: u64,
    offset: u64,
    header: &pe::ImageFileHeader,
) -> Result<pe::ImageOptionalHeader64, BinaryError> {
    let fixed = size_of::<pe::ImageOptionalHeader64>() as u64;
    let size = u64::from(header.size_of_optional_header.get(LE));
    if size < fixed {
        refuse!("the optional header has {size} bytes; expected at least {fixed}");
    }
    let bytes = read_range(source, file_size, offset, fixed, "the optional header")?;
    let optional: pe::ImageOptionalHeader64 = pods(&bytes)[0];
    let magic = optional.magic.get(LE);
    if magic != pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC {
        refuse!(
            "the optional header has magic {magic:#x}; expected {:#x} (64 bit)",
            pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC
        );
    }
    Ok(optional)
}

fn directories<S: ReadAt>(
    source: &S,
    file_size: u64,
    offset: u64,
    header: &pe::ImageFileHeader,
    optional: &pe::ImageOptionalHeader64,
) -> Result<Vec<Range<u64>>, BinaryError> {
    let fixed = size_of::<pe::ImageOptionalHeader64>() as u64;
    let count = u64::from(optional.number_of_rva_and_sizes.get(LE)).min(MOST_DIRECTORIES);
    let room = u64::from(header.size_of_optional_header.get(LE)) - fixed;
    let size = count * size_of::<pe::ImageDataDirectory>() as u64;
    if size > room {
        refuse!("{count} data directories do not fit the optional header");
    }
    let bytes = read_range(source, file_size, offset + fixed, size, "the data directories")?;
    let directories = pods::<pe::ImageDataDirectory>(&bytes).iter().map(|directory| {
        // Without a size there is none, whatever the address says.
        match u64::from(directory.size.get(LE)) {
            0 => 0..0,
            size => {
                let start = u64::from(directory.virtual_address.get(LE));
                start..start + size
            }
        }
    });
    Ok(directories.collect())
}

/// The entries of the debug directory, with their offsets in the file.
pub(super) fn debug_entries<S: ReadAt>(
    image: &Image<S>,
) -> Result<Vec<(u64, pe::ImageDebugDirectory)>, BinaryError> {
    let index = pe::IMAGE_DIRECTORY_ENTRY_DEBUG;
    let Some((offset, bytes)) = image.directory_bytes(index, "the debug directory")? else {
        return Ok(Vec::new());
    };
    let entries: &[pe::ImageDebugDirectory] = pods(&bytes);
    let step = size_of::<pe::ImageDebugDirectory>() as u64;
    let offsets = (0..).map(|index| offset + index * step);
    Ok(offsets.zip(entries.iter().copied()).collect())
}

/// The offset of an entry's debug data by their address, if the entry has another one.
pub(super) fn other_debug_offset<S>(
    image: &Image<S>,
    entry: &pe::ImageDebugDirectory,
) -> Option<u64> {
    let start = u64::from(entry.address_of_raw_data.get(LE));
    let end = start + u64::from(entry.size_of_data.get(LE));
    let offset = u64::from(entry.pointer_to_raw_data.get(LE));
    let found = image.offset_of(&(start..end));
    found.filter(|found| start != 0 && offset != 0 && *found != offset)
}

/// The section headers, with their offsets in the output.
pub(super) fn moved<S>(image: &Image<S>, gaps: &Gaps) -> Vec<Section> {
    let mut sections = image.sections.clone();
    let output = |offset: u32| match offset {
        0 => 0,
        offset => gaps.output_offset(offset.into()) as u32,
    };
    for section in &mut sections {
        if section.file_size > 0 {
            section.offset = gaps.output_offset(section.offset);
        }
        section.relocations.0 = output(section.relocations.0);
        section.line_numbers.0 = output(section.line_numbers.0);
    }
    sections
}
