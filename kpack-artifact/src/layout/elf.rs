//! Compares host binaries for Linux that were built for different targets.

use std::collections::BTreeSet;
use std::fs::File;

use kpack_format::marker;
use object::{LittleEndian as LE, elf};

use super::outcome::{Found, Same};
use super::text::texts_of;
use super::unit_ids::is_unit_id;
use crate::moved::{Moves, Part};
use kpack_split::elf::{
    BinaryError, Dynamic, FAT_SECTION, Image, Machine, Relocations, Section, WRAPPER_SECTION,
    is_address, pods,
};

/// Said of an ID that differs.
const ID: &str =
    "build ID only, which linkers derive from all that they link, device code included";

/// As [`super::compare`], if the markers are the same.
pub(super) fn compare(one: &Image<File>, other: &Image<File>) -> Same {
    let same = shape(one) == shape(other)
        && texts(one) == texts(other)
        // Unreadable files are not comparable.
        && tables(one).is_ok_and(|ours| tables(other).is_ok_and(|theirs| ours == theirs))
        && same_contents(one, other).unwrap_or(false);
    if !same {
        return Same::No;
    }
    Same::of(Found {
        has_moved: addresses(one) != addresses(other),
        has_other_units: unit_ids(one) != unit_ids(other),
        other_id: (ids(one) != ids(other)).then_some(ID),
    })
}

/// What identifies the build.
fn ids(image: &Image<File>) -> Vec<Vec<u8>> {
    let sections = image.sections.iter().filter(|s| IDS.contains(&&*s.name));
    sections.map(|section| image.section_bytes(section).unwrap_or_default()).collect()
}

/// The IDs of compilation units in the names of symbols.
pub(crate) fn unit_ids(image: &Image<File>) -> Vec<String> {
    let mut ids = Vec::new();
    for table in symbol_tables(image) {
        let strings = strings_of(image, table);
        let names = strings.split(|byte| *byte == 0);
        let names = names.filter(|name| is_unit_id(name));
        ids.extend(names.map(|name| String::from_utf8_lossy(name).into_owned()));
    }
    ids.sort();
    ids.dedup();
    ids
}

/// The section with which lld fills the page after the RELRO data. Its size depends on its address.
const PADDING: &str = ".relro_padding";
/// What identifies a build, and the file with its debug information.
const IDS: [&str; 2] = [".note.gnu.build-id", ".gnu_debuglink"];

/// The sections that must be equal, sorted by name: when device code is removed or moved, others may
/// change places.
fn sections(image: &Image<File>) -> Vec<&Section> {
    let is_of_linking = |s: &Section| {
        // Symbol names include those of temporary files.
        !s.is_alloc() && matches!(s.kind, elf::SHT_NULL | elf::SHT_SYMTAB | elf::SHT_STRTAB)
    };
    let all = image.sections.iter();
    let mut found: Vec<&Section> = all
        .filter(|s| !is_device(&s.name) && s.name != PADDING && !IDS.contains(&&*s.name))
        .filter(|s| !is_of_linking(s))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Whether a section has device code, or what replaces it.
fn is_device(name: &str) -> bool {
    name == FAT_SECTION || name == marker::SECTION_NAME
}

/// Names, types and sizes of sections, without the bytes that IDs of compilation units take.
fn shape(image: &Image<File>) -> Vec<(&str, u32, u64)> {
    let with_ids = !unit_ids(image).is_empty();
    let size = |section: &Section| match section.kind {
        elf::SHT_GNU_HASH | elf::SHT_HASH if with_ids => 0,
        elf::SHT_STRTAB if with_ids => {
            let bytes = image.section_bytes(section).unwrap_or_default();
            let names = bytes.split(|byte| *byte == 0);
            let ids = names.filter(|name| is_unit_id(name));
            section.size - ids.map(|id| id.len() as u64).sum::<u64>()
        }
        _ => section.size,
    };
    let sections = sections(image).into_iter();
    sections.map(|s| (s.name.as_str(), s.kind.0, size(s))).collect()
}

fn addresses(image: &Image<File>) -> Vec<u64> {
    sections(image).into_iter().map(|s| s.addr).collect()
}

/// Whether all other sections have the same bytes, except for addresses.
fn same_contents(one: &Image<File>, other: &Image<File>) -> Result<bool, BinaryError> {
    let (ours, theirs) = (sections(one), sections(other));
    let moves = moves(one, ours.iter().zip(&theirs).map(|(a, b)| (*a, *b)))?;
    for (a, b) in ours.into_iter().zip(theirs) {
        // Compared entry by entry, or derived from such sections.
        let is_table = matches!(
            a.kind,
            elf::SHT_DYNSYM
                | elf::SHT_STRTAB
                | elf::SHT_GNU_HASH
                | elf::SHT_HASH
                | elf::SHT_GNU_VERSYM
                | elf::SHT_GNU_VERNEED
                | elf::SHT_GNU_VERDEF
                | elf::SHT_RELA
                | elf::SHT_RELR
                | elf::SHT_DYNAMIC
        );
        // Wrappers point to what replaces device code.
        if is_table || a.name == WRAPPER_SECTION || !a.has_bytes() {
            continue;
        }
        let is_code = a.flags.0 & elf::SHF_EXECINSTR.0 != 0;
        let part = Part {
            addresses: a.addr..a.addr_end(),
            is_loaded: a.is_alloc(),
            is_code: is_code && one.machine == Machine::X86_64,
            has_relative: a.is_alloc() && !is_code,
        };
        let bytes = (one.section_bytes(a)?, other.section_bytes(b)?);
        if !moves.explain(&part, &bytes.0, &bytes.1) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Maps the sections of one file to those of another. What the dynamic linker does not relocate is no address, except
/// for the address of the dynamic section in the global offset table. If all addresses are fixed, any number may be one.
fn moves<'a>(
    one: &Image<File>,
    pairs: impl Iterator<Item = (&'a Section, &'a Section)>,
) -> Result<Moves<'static>, BinaryError> {
    let relocated = if one.is_position_dependent() {
        None
    } else {
        let dynamic = Dynamic::read(one)?;
        let relocations = Relocations::read(one, &dynamic)?;
        let places = relocations.iter().map(|found| Ok(found?.address));
        Some(places.collect::<Result<BTreeSet<_>, BinaryError>>()?)
    };
    let tables = one.sections.iter();
    let tables = tables.filter(|s| matches!(&*s.name, ".got" | ".got.plt"));
    let tables = Vec::from_iter(tables.map(|s| s.addr..s.addr_end()));
    let loaded = pairs.filter(|(a, _)| a.is_alloc());
    let loaded = loaded.map(|(a, b)| (a.addr..a.addr_end(), b.addr));
    Ok(Moves::new(loaded, move |part, address, size| {
        let Some(relocated) = &relocated else {
            return Some(0);
        };
        let is_in_table = || tables.iter().any(|table| table.contains(&address));
        let may_be = !part.is_loaded || is_in_table() || relocated.contains(&address);
        (size == 8 && may_be).then_some(0)
    }))
}

/// An address, relative to its section.
type SectionOffset<'a> = (&'a str, u64);

/// Tables whose order depends on the hash table or the linker, sorted.
#[derive(PartialEq, Eq)]
struct Tables<'a> {
    /// Without those of device code.
    symbols: Vec<Symbol<'a>>,
    /// Address, type, symbol and addend.
    relocations: Vec<(SectionOffset<'a>, u32, Vec<u8>, SectionOffset<'a>)>,
    /// Tags with their values, except for sizes of tables; the text if the value is a string.
    dynamic: Vec<(i64, Vec<u8>, SectionOffset<'a>)>,
}

fn tables(image: &Image<File>) -> Result<Tables<'_>, BinaryError> {
    let (mut symbols, dynamic_names) = symbols(image)?;
    symbols.sort();
    let dynamic = Dynamic::read(image)?;
    let mut relocations = Vec::new();
    for relocation in Relocations::read(image, &dynamic)?.iter() {
        let relocation = relocation?;
        let symbol = dynamic_names.get(relocation.symbol as usize);
        let addend = match relocation.symbol {
            0 => place(image, relocation.addend),
            _ => ("", relocation.addend),
        };
        relocations.push((
            place(image, relocation.address),
            relocation.kind.0,
            symbol.cloned().unwrap_or_default(),
            addend,
        ));
    }
    relocations.sort();
    Ok(Tables { symbols, relocations, dynamic: dynamic_entries(image, &dynamic)? })
}

/// Name, type, version, size and address.
type Symbol<'a> = (Vec<u8>, u8, u16, u64, SectionOffset<'a>);

/// The symbols without those of device code, and the names of all dynamic ones, by index.
fn symbols(image: &Image<File>) -> Result<(Vec<Symbol<'_>>, Vec<Vec<u8>>), BinaryError> {
    let mut symbols = Vec::new();
    let mut dynamic_names = Vec::new();
    for table in symbol_tables(image) {
        let is_dynamic = table.kind == elf::SHT_DYNSYM;
        let bytes = image.section_bytes(table)?;
        let strings = strings_of(image, table);
        let versions = image.sections.iter();
        let mut versions = versions.filter(|s| is_dynamic && s.kind == elf::SHT_GNU_VERSYM);
        let versions = match versions.next() {
            Some(section) => image.section_bytes(section)?,
            None => Vec::new(),
        };
        let versions = pods::<object::U16<LE>>(&versions);
        for (index, symbol) in pods::<elf::Sym64<LE>>(&bytes).iter().enumerate() {
            let name = match text_in(&strings, symbol.st_name.get(LE).into()) {
                // The name of an object file, which may be a temporary one.
                _ if symbol.st_type() == elf::STT_FILE => &b""[..],
                name if is_unit_id(name) => b"__hip_cuid_",
                name => name,
            };
            if is_dynamic {
                dynamic_names.push(name.to_vec());
            }
            let within = image.sections.get(usize::from(symbol.st_shndx.get(LE).0));
            let value = symbol.st_value.get(LE);
            let place = match within {
                Some(section) if is_device(&section.name) => continue,
                Some(section) if symbol.st_type() != elf::STT_TLS => {
                    (&*section.name, value.wrapping_sub(section.addr))
                }
                _ => ("", value),
            };
            let version = versions.get(index).map_or(0, |version| version.get(LE));
            let size = symbol.st_size.get(LE);
            symbols.push((name.to_vec(), symbol.st_info.0, version, size, place));
        }
    }
    Ok((symbols, dynamic_names))
}

fn dynamic_entries<'a>(
    image: &'a Image<File>,
    dynamic: &Dynamic,
) -> Result<Vec<(i64, Vec<u8>, SectionOffset<'a>)>, BinaryError> {
    let strings = image.sections.iter().find(|s| s.name == ".dynstr");
    let strings = strings.map(|section| image.section_bytes(section));
    let strings = strings.transpose()?.unwrap_or_default();
    let entries = dynamic.entries.iter();
    Ok(entries
        .map(|(tag, value)| match *tag {
            elf::DT_NEEDED | elf::DT_SONAME | elf::DT_RPATH | elf::DT_RUNPATH => {
                (tag.0, text_in(&strings, *value).to_vec(), ("", 0))
            }
            // Names, which include IDs of compilation units.
            elf::DT_STRSZ => (tag.0, Vec::new(), ("", 0)),
            tag if is_address(tag) => (tag.0, Vec::new(), place(image, *value)),
            tag => (tag.0, Vec::new(), ("", *value)),
        })
        .collect())
}

fn place(image: &Image<File>, address: u64) -> SectionOffset<'_> {
    // Zero-initialised thread-local data occupies no addresses.
    let takes = |s: &&Section| s.is_alloc() && (s.has_bytes() || s.flags.0 & elf::SHF_TLS.0 == 0);
    let find = |is_in: &dyn Fn(&Section) -> bool| {
        let mut sections = image.sections.iter().filter(takes);
        sections.find(|section| is_in(section))
    };
    let within = find(&|s| (s.addr..s.addr_end()).contains(&address))
        .or_else(|| find(&|s| s.addr_end() == address));
    match within {
        Some(section) if is_device(&section.name) => (marker::SECTION_NAME, 0),
        Some(section) => (&section.name, address - section.addr),
        None => ("", address),
    }
}

fn symbol_tables(image: &Image<File>) -> impl Iterator<Item = &Section> {
    let sections = image.sections.iter();
    sections.filter(|section| matches!(section.kind, elf::SHT_DYNSYM | elf::SHT_SYMTAB))
}

/// The symbol names of a table.
fn strings_of(image: &Image<File>, table: &Section) -> Vec<u8> {
    let strings = image.sections.get(table.link as usize);
    let bytes = strings.and_then(|section| image.section_bytes(section).ok());
    bytes.unwrap_or_default()
}

/// The text at an offset in a table of strings.
pub(crate) fn text_in(strings: &[u8], offset: u64) -> &[u8] {
    let rest = usize::try_from(offset).ok().and_then(|at| strings.get(at..));
    let mut texts = rest.unwrap_or_default().split(|byte| *byte == 0);
    texts.next().unwrap_or_default()
}
/// The texts in loaded sections without code, except for IDs of compilation units. They do not depend
/// on addresses. Symbol names are sorted, since their order is that of the hash table.
pub(crate) fn texts(image: &Image<File>) -> Vec<String> {
    let mut texts = Vec::new();
    for name in [".interp", ".dynstr", ".rodata", ".data"] {
        let section = image.sections.iter().find(|s| s.name == name && s.has_bytes());
        let bytes = section.and_then(|section| image.section_bytes(section).ok());
        let mut long = texts_of(&bytes.unwrap_or_default());
        if name == ".dynstr" {
            long.retain(|text| !is_unit_id(text.as_bytes()));
            long.sort();
        }
        texts.extend(long);
    }
    texts
}
