//! What two images have in common that were linked from the same host code with other device code, and which of their
//! numbers are addresses: linkers lay out an image around its device code.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;

use kpack_core::elf::{BinaryError, ReadAt, pods};

use super::image::{CODE_SECTIONS, Image, MARKER_SECTION, Section, debug_entries};
use super::memory::Kind;
use super::relocations::Relocations;

/// An address: the index of its section among those of host code, and how far from its start it is.
pub type Place = (usize, u64);

/// The index of what is in no such section.
const ELSEWHERE: usize = usize::MAX;

/// The most libraries that an image imports from.
const MOST_IMPORTS: usize = 1 << 12;
/// Sections that consist of addresses, texts and numbers that linkers and compilers make of the code.
const TABLES: [&str; 7] = [
    ".pdata", ".xdata", ".edata", ".idata", ".didat", ".rsrc", ".reloc",
];
/// The data directories whose addresses are not relocated.
const DIRECTORIES: [usize; 8] = [
    pe::IMAGE_DIRECTORY_ENTRY_EXPORT,
    pe::IMAGE_DIRECTORY_ENTRY_IMPORT,
    pe::IMAGE_DIRECTORY_ENTRY_RESOURCE,
    pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION,
    pe::IMAGE_DIRECTORY_ENTRY_BASERELOC,
    pe::IMAGE_DIRECTORY_ENTRY_DEBUG,
    pe::IMAGE_DIRECTORY_ENTRY_IAT,
    pe::IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT,
];

impl Section {
    /// Whether it has device code, or what replaces it.
    pub(super) fn is_device(&self) -> bool {
        self.name == MARKER_SECTION || CODE_SECTIONS.contains(&self.name.as_str())
    }

    /// Whether it has code.
    pub fn is_code(&self) -> bool {
        self.flags.0 & pe::IMAGE_SCN_MEM_EXECUTE.0 != 0
    }

    /// Whether only debuggers read it.
    pub fn is_debug_information(&self) -> bool {
        self.name.starts_with(".debug") || self.name.starts_with(".gnu_debug")
    }
}

/// What is in the headers and tables of an image, wherever its sections are.
#[derive(Debug)]
pub struct Shape {
    headers: Kind,
    /// Names, sizes and flags.
    sections: Vec<(String, u64, u32)>,
    /// The entry point and the data directories, with their sizes.
    directories: Vec<(Place, u64)>,
    relocated: Vec<Place>,
    /// The symbols, except for those of device code.
    pub symbols: Vec<Symbol>,
}

impl Shape {
    /// What differs from `other`, without symbols.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let mut found = Vec::new();
        for (differs, what) in [
            (self.headers != other.headers, "the headers"),
            (
                self.sections != other.sections,
                "names, sizes or flags of sections",
            ),
            (
                self.directories != other.directories,
                "the data directories",
            ),
            (self.relocated != other.relocated, "the base relocations"),
        ] {
            if differs {
                found.push(what);
            }
        }
        found
    }
}

/// A symbol that debuggers read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Its name; empty if it is that of an object file, which may be a temporary one.
    pub name: Vec<u8>,
    place: Place,
    kind: u16,
    class: u8,
}

impl<S> Image<S> {
    /// The sections without device code, and without what replaces it.
    pub fn host_sections(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| !section.is_device())
    }

    fn place(&self, address: u64) -> Place {
        let sections = self.host_sections().enumerate();
        let mut own = sections.filter(|(_, section)| section.addresses().contains(&address));
        match own.next() {
            Some((index, section)) => (index, address - section.address),
            None => (ELSEWHERE, address),
        }
    }
}

impl<S: ReadAt> Image<S> {
    /// Reads what is in the headers and tables.
    pub fn shape(&self) -> Result<Shape, BinaryError> {
        let sections = self.host_sections();
        let entry = u64::from(self.optional.address_of_entry_point.get(LE));
        let directories = self.directories.iter().enumerate();
        // A signature comes after a split.
        let directories = directories.filter(|(i, _)| *i != pe::IMAGE_DIRECTORY_ENTRY_SECURITY);
        let directories = directories.map(|(_, own)| (own.start, own.end - own.start));
        let directories = [(entry, 0)].into_iter().chain(directories);
        let relocations = Relocations::read(self)?;
        let words = relocations.within(&(0..u64::MAX)).iter();
        let mut symbols = self.coff_symbols()?;
        symbols.sort();
        Ok(Shape {
            headers: Kind::of(self),
            sections: sections
                .map(|s| (s.name.clone(), s.memory_size(), s.flags.0))
                .collect(),
            directories: directories
                .map(|(start, size)| (self.place(start), size))
                .collect(),
            relocated: words.map(|word| self.place(u64::from(*word))).collect(),
            symbols,
        })
    }

    fn coff_symbols(&self) -> Result<Vec<Symbol>, BinaryError> {
        let range = self.symbols();
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = self.bytes(range.start, range.end - range.start, "the symbol table")?;
        let names = self.bytes(range.end, self.size - range.end, "the names of symbols")?;
        let records: &[pe::ImageSymbol] = pods(&bytes);
        let mut symbols = Vec::new();
        let mut index = 0;
        while let Some(symbol) = records.get(index) {
            index += 1 + usize::from(symbol.number_of_aux_symbols);
            let number = usize::from(symbol.section_number.get(LE));
            let value = u64::from(symbol.value.get(LE));
            let place = match number.checked_sub(1).and_then(|at| self.sections.get(at)) {
                Some(section) if section.is_device() => continue,
                Some(section) => (self.place(section.address).0, value),
                None => (ELSEWHERE - number, value),
            };
            let name = match symbol.storage_class {
                pe::IMAGE_SYM_CLASS_FILE => Vec::new(),
                _ => symbol_name(&symbol.name, &names),
            };
            symbols.push(Symbol {
                name,
                place,
                kind: symbol.typ.get(LE).0,
                class: symbol.storage_class.0,
            });
        }
        Ok(symbols)
    }

    /// The time of the build, its ID, and the file with its debug information.
    pub fn identity(&self) -> Result<Vec<Vec<u8>>, BinaryError> {
        let time = self.header.time_date_stamp.get(LE);
        let mut found = vec![time.to_le_bytes().to_vec()];
        for range in self.identifiers()? {
            found.push(self.in_file(&range)?);
        }
        Ok(found)
    }

    /// The addresses of what another build changes: what identifies the build, and the file offsets in tables.
    pub fn varying(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        Ok([self.identifiers()?, self.file_offsets()?].concat())
    }

    /// The addresses of what identifies a build.
    fn identifiers(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        let mut found = Vec::new();
        let debug = self.directory(pe::IMAGE_DIRECTORY_ENTRY_DEBUG);
        for (index, (_, entry)) in debug_entries(self)?.into_iter().enumerate() {
            let own = debug.start + (index * size_of::<pe::ImageDebugDirectory>()) as u64;
            found.push(own + 4..own + 8);
            let data = u64::from(entry.address_of_raw_data.get(LE));
            let end = data + u64::from(entry.size_of_data.get(LE));
            match entry.typ.get(LE) {
                // `RSDS`, then a GUID and a number, then the file's path.
                pe::IMAGE_DEBUG_TYPE_CODEVIEW => {
                    found.push((data + 4).min(end)..(data + 24).min(end))
                }
                pe::IMAGE_DEBUG_TYPE_REPRO => found.push(data..end),
                _ => {}
            }
        }
        let exports = self.directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT);
        if !exports.is_empty() {
            found.push(exports.start + 4..exports.start + 8);
        }
        let links = self.sections.iter().filter(|s| s.name == ".gnu_debuglink");
        found.extend(links.map(Section::addresses));
        Ok(found)
    }

    /// The addresses of the file offsets in the debug directory.
    pub(super) fn file_offsets(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        let debug = self.directory(pe::IMAGE_DIRECTORY_ENTRY_DEBUG);
        let entries = 0..debug_entries(self)?.len() as u64;
        let size = size_of::<pe::ImageDebugDirectory>() as u64;
        let offsets = entries.map(|index| debug.start + index * size + 24);
        Ok(offsets.map(|offset| offset..offset + 4).collect())
    }

    /// Which numbers are addresses.
    pub fn addresses(&self) -> Result<Addresses, BinaryError> {
        let mut tables = Vec::new();
        let named = self.sections.iter();
        let named = named.filter(|section| TABLES.contains(&section.name.as_str()));
        tables.extend(named.map(Section::addresses));
        tables.extend(DIRECTORIES.map(|index| self.directory(index)));
        // Some have addresses of parts of sections.
        for (_, entry) in debug_entries(self)? {
            let start = u64::from(entry.address_of_raw_data.get(LE));
            tables.push(start..start + u64::from(entry.size_of_data.get(LE)));
        }
        tables.extend(self.import_names()?);
        tables.extend(self.pseudo_relocations()?);
        tables.retain(|table| !table.is_empty());
        Ok(Addresses {
            relocations: Relocations::read(self)?,
            tables,
            debug: self
                .sections
                .iter()
                .filter(|s| s.is_debug_information())
                .map(Section::addresses)
                .collect(),
            base: self.base(),
        })
    }

    /// What the file has at addresses; nothing unless one section has all of them in the file.
    fn in_file(&self, addresses: &Range<u64>) -> Result<Vec<u8>, BinaryError> {
        match self.offset_of(addresses) {
            Some(offset) => self.bytes(offset, addresses.end - addresses.start, "a table"),
            None => Ok(Vec::new()),
        }
    }

    /// The tables of the names of imported functions, which may be outside of the directories.
    fn import_names(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        let mut tables = Vec::new();
        for (index, size, at) in [
            (pe::IMAGE_DIRECTORY_ENTRY_IMPORT, 20, [0, 16]),
            (pe::IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT, 32, [16, 16]),
        ] {
            let directory = self.in_file(&self.directory(index))?;
            let descriptors = directory.chunks_exact(size).take(MOST_IMPORTS);
            for descriptor in descriptors.take_while(|own| own.iter().any(|byte| *byte != 0)) {
                for at in at {
                    let start = u64::from(word(descriptor, at));
                    if start != 0 {
                        tables.push(start..self.end_of_names(start)?);
                    }
                }
            }
        }
        Ok(tables)
    }

    /// The end of a table of 64-bit words, the last one zero.
    fn end_of_names(&self, start: u64) -> Result<u64, BinaryError> {
        let Some(section) = self.section_at(&(start..start + 8)) else {
            return Ok(start);
        };
        let mut at = start;
        while at + 8 <= section.in_file().end {
            let piece = at..(at + 1024).min(section.in_file().end);
            let bytes = self.memory(&piece)?.unwrap_or_default();
            let mut words = bytes.chunks_exact(8);
            if let Some(index) = words.position(|word| word == [0; 8]) {
                return Ok(at + 8 * index as u64);
            }
            at += 1024;
        }
        Ok(section.in_file().end)
    }

    /// What mingw-w64's start-up code relocates, version 2: the addresses of a pointer and of what refers to it, and the
    /// size of the reference in bits.
    fn pseudo_relocations(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        let pointers = self.directory(pe::IMAGE_DIRECTORY_ENTRY_IAT);
        let imports = self.sections.iter().filter(|s| s.name == ".idata");
        let pointers = Vec::from_iter(imports.map(Section::addresses).chain([pointers]));
        let is_pointer =
            |address: u32| pointers.iter().any(|range| range.contains(&address.into()));
        let mut found = Vec::new();
        for section in self.sections.iter().filter(|s| s.name == ".rdata") {
            let bytes = self.section_bytes(section)?;
            let words = Vec::from_iter(bytes.chunks_exact(4).map(|bytes| word(bytes, 0)));
            for at in (0..words.len()).filter(|at| words[*at..].starts_with(&[0, 0, 1])) {
                let records = words[at + 3..].chunks_exact(3);
                let records = records.take_while(|record| {
                    is_pointer(record[0]) && [8, 16, 32, 64].contains(&record[2])
                });
                let start = section.address + 4 * (at as u64 + 3);
                found.push(start..start + 12 * records.count() as u64);
            }
        }
        Ok(found)
    }
}

/// The little-endian word of `bytes` at an offset.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// A name of up to eight bytes, or zero and its offset in the string table.
fn symbol_name(short: &[u8; 8], names: &[u8]) -> Vec<u8> {
    let name = match short {
        [0, 0, 0, 0, ..] => names.get(word(short, 4) as usize..).unwrap_or_default(),
        short => &short[..],
    };
    let mut parts = name.split(|byte| *byte == 0);
    parts.next().unwrap_or_default().to_vec()
}

/// Which numbers in an image are addresses.
#[derive(Debug, Clone)]
pub struct Addresses {
    relocations: Relocations,
    /// Where addresses are relative to the image.
    tables: Vec<Range<u64>>,
    debug: Vec<Range<u64>>,
    base: u64,
}

impl Addresses {
    /// What the number of `size` bytes at an address counts from if it is an address; `None` if it is none.
    pub fn base_of(&self, address: u64, size: usize) -> Option<u64> {
        let is_in = |ranges: &[Range<u64>]| ranges.iter().any(|range| range.contains(&address));
        if size == 4 && is_in(&self.tables) {
            return Some(0);
        }
        let is_absolute = match size {
            8 => self.relocations.may_be_address(address) || is_in(&self.debug),
            _ => self.relocations.is_fixed(),
        };
        is_absolute.then_some(self.base)
    }
}
