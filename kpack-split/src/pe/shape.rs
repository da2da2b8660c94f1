//! What two images have in common that were linked from the same host code with other device code, and which of their
//! numbers are addresses: linkers lay out an image around its device code.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;

use kpack_core::elf::{BinaryError, ReadAt, pods, refuse};

use super::image::{CODE_SECTIONS, Image, MARKER_SECTION, Section, debug_entries};
use super::memory::{Kind, OVERLAY};
use super::relocations::Relocations;
use crate::ranges::merged;

/// An address: the index of its section among those of host code, and how far from its start it is.
pub type Place = (usize, u64);

/// The index of what is in no such section.
const ELSEWHERE: usize = usize::MAX;
/// Those of markers and of device code.
const MARKER: usize = ELSEWHERE - (1 << 16);
const CODE: usize = MARKER - 1;

/// The most libraries that an image imports from.
const MOST_IMPORTS: usize = 1 << 12;
/// How many symbols may have the same bytes of names.
const MOST_OVERLAP: usize = 16;
/// Sections that consist of addresses, texts and numbers that linkers and compilers make of the code.
const TABLES: [&str; 7] = [".pdata", ".xdata", ".edata", ".idata", ".didat", ".rsrc", ".reloc"];
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

/// The directories of imports: the size of an entry, where it has the addresses of the tables of functions' names, and
/// where it has other addresses.
const IMPORTS: [(usize, usize, &[usize], &[usize]); 2] = [
    (pe::IMAGE_DIRECTORY_ENTRY_IMPORT, 20, &[0, 16], &[12]),
    (pe::IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT, 32, &[16], &[4, 8, 12, 20, 24]),
];

/// The flags of a record by which a function is unwound.
const HAS_HANDLER: u8 = 3;
const IS_CHAINED: u8 = 4;

/// In a directory of resources, the flag of an entry that is a directory itself.
const SUBDIRECTORY: u32 = 1 << 31;

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
pub struct Shape<'a, S> {
    image: &'a Image<S>,
    headers: Kind,
    /// Versions and all flags.
    versions: Versions,
    /// The program for DOS, and a list of tools that MSVC's linker adds.
    stub: Vec<u8>,
    /// Names, sizes and flags.
    sections: Vec<(String, u64, u32)>,
    /// The entry point and the data directories, with their sizes.
    directories: Vec<(Place, u64)>,
    /// The relocated words, and what they lead to.
    relocated: Vec<(Place, Place)>,
    /// What the tables of exports, imports, exceptions and thread-local storage lead to.
    tables: Vec<Place>,
    /// The symbols, except for those of device code.
    pub symbols: Vec<Symbol>,
}

impl<'a, S: ReadAt> Shape<'a, S> {
    /// The image that has it.
    pub fn image(&self) -> &'a Image<S> {
        self.image
    }

    /// What differs from `other`, besides symbols and the contents of sections.
    ///
    /// # Errors
    /// What follows the sections cannot be read.
    pub fn differences<T: ReadAt>(
        &self,
        other: &Shape<'_, T>,
    ) -> Result<Vec<&'static str>, BinaryError> {
        let mut found = Vec::new();
        for (differs, what) in [
            ((&self.headers, self.versions) != (&other.headers, other.versions), "the headers"),
            (self.stub != other.stub, "the DOS stub"),
            (self.sections != other.sections, "names, sizes or flags of sections"),
            (self.directories != other.directories, "the data directories"),
            (self.relocated != other.relocated, "the base relocations, or what they lead to"),
            (self.tables != other.tables, "what exports, imports or exceptions lead to"),
            (!self.image.has_same_overlay(other.image)?, OVERLAY),
        ] {
            if differs {
                found.push(what);
            }
        }
        Ok(found)
    }
}

/// Of the linker, the system, the image and the subsystem; reserved words, and the flags of the image.
type Versions = ([u8; 2], [u16; 6], [u32; 2], u16);

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

    /// The addresses of the headers.
    pub fn headers(&self) -> Range<u64> {
        0..self.headers_size()
    }

    fn versions(&self) -> Versions {
        let own = &self.optional;
        let versions = [
            &own.major_operating_system_version,
            &own.minor_operating_system_version,
            &own.major_image_version,
            &own.minor_image_version,
            &own.major_subsystem_version,
            &own.minor_subsystem_version,
        ];
        (
            [own.major_linker_version, own.minor_linker_version],
            versions.map(|version| version.get(LE)),
            [own.win32_version_value.get(LE), own.loader_flags.get(LE)],
            self.header.characteristics.get(LE).0,
        )
    }

    /// Where an address leads. What is right after a section, as ends of arrays are, is of that section.
    fn place(&self, address: u64) -> Place {
        let before = self.sections.iter().filter(|s| s.address <= address);
        let own = before.max_by_key(|section| section.address);
        let Some(section) = own.filter(|_| address < self.image_size()) else {
            return (ELSEWHERE, address);
        };
        let at = address - section.address;
        match self.host_sections().position(|host| host.address == section.address) {
            Some(index) => (index, at),
            None if section.name == MARKER_SECTION => (MARKER, at),
            // Its size is another one.
            None => (CODE, 0),
        }
    }
}

impl<S: ReadAt> Image<S> {
    /// Reads what is in the headers and tables.
    pub fn shape(&self) -> Result<Shape<'_, S>, BinaryError> {
        let sections = self.host_sections();
        let entry = u64::from(self.optional.address_of_entry_point.get(LE));
        let directories = self.directories.iter().enumerate();
        // A signature comes after a split.
        let directories = directories.filter(|(i, _)| *i != pe::IMAGE_DIRECTORY_ENTRY_SECURITY);
        let directories = directories.map(|(_, own)| (own.start, own.end - own.start));
        let directories = [(entry, 0)].into_iter().chain(directories);
        let relocations = Relocations::read(self)?;
        let mut relocated = Vec::new();
        for section in &self.sections {
            relocations.for_each(self, section, &mut |address, word, _| {
                let target = word.wrapping_sub(self.base());
                relocated.push((self.place(address), self.place(target)));
                Ok(())
            })?;
        }
        let mut symbols = self.coff_symbols()?;
        symbols.sort();
        Ok(Shape {
            image: self,
            headers: Kind::of(self),
            versions: self.versions(),
            stub: self.bytes(0, self.header_offset, "the DOS stub")?,
            sections: sections.map(|s| (s.name.clone(), s.memory_size(), s.flags.0)).collect(),
            directories: directories.map(|(start, size)| (self.place(start), size)).collect(),
            relocated,
            tables: self.references()?.into_iter().map(|to| self.place(to)).collect(),
            symbols,
        })
    }

    /// The addresses in tables, in order.
    fn references(&self) -> Result<Vec<u64>, BinaryError> {
        let mut found = Vec::new();
        let exports = self.in_file(&self.directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT))?;
        found.extend([12, 28, 32, 36].map(|at| u64::from(word(&exports, at))));
        for (count, table) in [(20, 28), (24, 32)] {
            let (count, table) = (word(&exports, count), word(&exports, table));
            let range = u64::from(table)..u64::from(table) + 4 * u64::from(count);
            found.extend(words(&self.in_file(&range)?));
        }
        found.extend(words(&self.in_file(&self.directory(pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION))?));
        found.extend(self.unwinding()?);
        found.extend(self.resources()?);
        let debug = debug_entries(self)?.into_iter();
        found.extend(debug.map(|(_, entry)| u64::from(entry.address_of_raw_data.get(LE))));
        for (index, size, names, others) in IMPORTS {
            for descriptor in self.descriptors(index, size)? {
                let at = names.iter().chain(others);
                found.extend(at.map(|at| u64::from(word(&descriptor, *at))));
            }
        }
        for range in self.import_names()? {
            found.extend(long_words(&self.in_file(&range)?));
        }
        for range in self.pseudo_relocations()? {
            found.extend(words(&self.in_file(&range)?));
        }
        let threads = self.in_file(&self.directory(pe::IMAGE_DIRECTORY_ENTRY_TLS))?;
        let threads = long_words(&threads).take(4);
        found.extend(threads.map(|word| word.wrapping_sub(self.base())));
        Ok(found)
    }

    /// The addresses in the records by which functions are unwound: of handlers, of what `__C_specific_handler` reads,
    /// and of functions whose records these continue.
    fn unwinding(&self) -> Result<Vec<u64>, BinaryError> {
        let table = self.in_file(&self.directory(pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION))?;
        let functions = table.chunks_exact(12).map(|own| {
            let [start, end, record] = [0, 4, 8].map(|at| u64::from(word(own, at)));
            (record, start..end)
        });
        let functions = BTreeMap::from_iter(functions);
        let ends = functions.keys().skip(1).copied().chain([u64::MAX]);
        let mut known = (0..0, Vec::new());
        let mut found = Vec::new();
        for ((start, function), end) in functions.iter().zip(ends) {
            if !known.0.contains(start) {
                let Some(section) = self.section_at(&(*start..start + 4)) else {
                    continue;
                };
                known = (section.in_file(), self.section_bytes(section)?);
            }
            let (own, bytes) = &known;
            let record = *start..end.min(own.end);
            let at = |address: u64| address.saturating_sub(own.start) as usize;
            let record = bytes.get(at(record.start)..at(record.end));
            found.extend(unwound(record.unwrap_or_default(), function));
        }
        Ok(found)
    }

    /// The addresses of resources.
    fn resources(&self) -> Result<Vec<u64>, BinaryError> {
        let start = self.directory(pe::IMAGE_DIRECTORY_ENTRY_RESOURCE).start;
        let Some(section) = self.section_at(&(start..start + 16)) else {
            return Ok(Vec::new());
        };
        let tree = self.in_file(&(start..section.in_file().end.max(start)))?;
        let mut found = Vec::new();
        let mut directories = vec![0];
        // Directories may share bytes, but not without end.
        let mut room = tree.len() / 8;
        while let Some(at) = directories.pop() {
            let counts = word(&tree, at + 12);
            let count = (counts & 0xffff) + (counts >> 16);
            let entries = tree.get(at + 16..).unwrap_or_default().chunks_exact(8);
            for entry in entries.take(count as usize) {
                let Some(left) = room.checked_sub(1) else {
                    refuse!("its directories of resources overlap; is it damaged?");
                };
                room = left;
                let to = word(entry, 4);
                if to & SUBDIRECTORY == 0 {
                    found.push(word(&tree, to as usize).into());
                } else {
                    directories.push((to & !SUBDIRECTORY) as usize);
                }
            }
        }
        Ok(found)
    }

    fn coff_symbols(&self) -> Result<Vec<Symbol>, BinaryError> {
        let (bytes, indices) = self.symbol_records()?;
        let records: &[pe::ImageSymbol] = pods(&bytes);
        if indices.is_empty() {
            return Ok(Vec::new());
        }
        let start = self.symbols().end;
        let names = self.bytes(start, self.size - start, "the names of symbols")?;
        // Names may share bytes, but not without end.
        let mut room = MOST_OVERLAP * names.len();
        let mut symbols = Vec::new();
        for symbol in indices.into_iter().map(|index| &records[index]) {
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
            let Some(left) = room.checked_sub(name.len().saturating_sub(8)) else {
                refuse!("the names of its symbols overlap; is it damaged?");
            };
            room = left;
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
                pe::IMAGE_DEBUG_TYPE_CODEVIEW if self.in_file(&(data..data + 4))? == *b"RSDS" => {
                    found.push((data + 4).min(end)..(data + 24).min(end))
                }
                // A size and a hash.
                pe::IMAGE_DEBUG_TYPE_REPRO => found.push(data..end.min(data + 36)),
                _ => {}
            }
        }
        let exports = self.directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT);
        if !exports.is_empty() {
            found.push(exports.start + 4..exports.start + 8);
        }
        let links = self.sections.iter().filter(|s| s.name == ".gnu_debuglink");
        for link in links {
            // A name, zeroes up to a multiple of four bytes, and a checksum.
            let bytes = self.section_bytes(link)?;
            let name = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            let start = link.address + (name as u64 + 1).next_multiple_of(4);
            found.push(start..start + 4);
        }
        found.retain(|own| self.section_at(own).is_some_and(|section| !section.is_code()));
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
        let debug = self.sections.iter().filter(|s| s.is_debug_information());
        Ok(Addresses {
            relocations: Relocations::read(self)?,
            tables: merged(tables),
            debug: merged(debug.map(Section::addresses).collect()),
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
        let mut starts = BTreeSet::new();
        for (index, size, names, _) in IMPORTS {
            for descriptor in self.descriptors(index, size)? {
                let own = names.iter().map(|at| u64::from(word(&descriptor, *at)));
                starts.extend(own.filter(|start| *start != 0));
            }
        }
        let mut tables = Vec::new();
        // One table may be the end of another, which has the same remainder.
        let mut ends = [0; 8];
        for start in starts {
            let end = &mut ends[(start % 8) as usize];
            if start >= *end {
                *end = self.end_of_names(start)?;
                tables.push(start..*end);
            }
        }
        Ok(tables)
    }

    /// The entries of a directory of imports.
    fn descriptors(&self, index: usize, size: usize) -> Result<Vec<Vec<u8>>, BinaryError> {
        let directory = self.in_file(&self.directory(index))?;
        let descriptors = directory.chunks_exact(size).take(MOST_IMPORTS);
        let used = descriptors.take_while(|own| own.iter().any(|byte| *byte != 0));
        Ok(used.map(<[u8]>::to_vec).collect())
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

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    pods::<object::U32<LE>>(bytes).iter().map(|word| word.get(LE).into())
}

fn long_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    pods::<object::U64<LE>>(bytes).iter().map(|word| word.get(LE))
}

/// The addresses in the record by which a function is unwound.
fn unwound(record: &[u8], function: &Range<u64>) -> Vec<u64> {
    let [first, _, codes, ..] = record else {
        return Vec::new();
    };
    let flags = first >> 3;
    let at = 4 + 2 * usize::from(*codes).next_multiple_of(2);
    let more = record.get(at..).unwrap_or_default();
    if flags & IS_CHAINED != 0 {
        return words(more).take(3).collect();
    }
    if flags & HAS_HANDLER == 0 {
        return Vec::new();
    }
    let mut found = Vec::from_iter(words(more).take(1));
    // Other handlers read other data. A scope table is recognised by its ranges, which lie in the function.
    let count = word(more, 4) as usize;
    let scopes = more.get(8..).unwrap_or_default();
    let scopes = scopes.chunks_exact(16).take(count);
    let is_in = |scope: &[u8]| {
        let [start, end] = [0, 4].map(|at| u64::from(word(scope, at)));
        function.start <= start && start <= end && end <= function.end
    };
    if scopes.len() == count && scopes.clone().all(is_in) {
        found.extend(scopes.flat_map(words));
    }
    found
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
    /// Where addresses are relative to the image, in order.
    tables: Vec<Range<u64>>,
    debug: Vec<Range<u64>>,
    base: u64,
}

impl Addresses {
    /// Whether any number may be an address.
    pub fn is_fixed(&self) -> bool {
        self.relocations.is_fixed()
    }

    /// What the number of `size` bytes at an address counts from if it is an address; `None` if it is none.
    pub fn base_of(&self, address: u64, size: usize) -> Option<u64> {
        let is_in = |ranges: &[Range<u64>]| {
            let next = ranges.partition_point(|range| range.start <= address);
            next > 0 && ranges[next - 1].contains(&address)
        };
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
