//! What linkers cannot change in an ELF file by placing things elsewhere.

use std::collections::BTreeMap;

use kpack_format::marker;
use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{Dynamic, dynamic_symbols};
use super::headers::Section;
use super::image::{Image, Machine};
use super::{BinaryError, FAT_SECTION, ReadAt, pods};
use crate::host::{Facts, Linkage};

/// What linkers make from what they place where: tables of addresses, unwind tables, stubs, and room up to a page.
const OF_LINKERS: [&str; 7] =
    [".branch_lt", ".eh_frame", ".eh_frame_hdr", ".got", ".got.plt", ".iplt", ".relro_padding"];

/// The most bytes of the name of a version that are read.
const LONGEST_VERSION: usize = 4096;

/// The most versions of symbols that are read: their numbers have 15 bits.
const MOST_VERSIONS: usize = 1 << 15;

/// The facts of an image.
pub(crate) fn facts<S: ReadAt>(image: &Image<S>) -> Result<Facts, BinaryError> {
    let mut facts = Facts::of_file(image.size);
    let dynamic = Dynamic::read(image)?;
    for (tag, fact) in [
        (elf::DT_SONAME, "SONAME"),
        (elf::DT_NEEDED, "NEEDED"),
        (elf::DT_RPATH, "RPATH"),
        (elf::DT_RUNPATH, "RUNPATH"),
    ] {
        for text in dynamic.strings(image, tag)? {
            facts.add_text(fact, &text)?;
        }
    }
    for section in image.sections.iter().filter(|section| is_of_code(section, image.machine)) {
        facts.add_section(&section.name, section.size);
    }
    add_symbols(image, &dynamic, &mut facts)?;
    Ok(facts)
}

/// Whether the size of a section is that of the code and data that were linked. Linkers for AArch64 and
/// ppc64le put stubs among the code, for branches that lead far, for calls of other files, and for processors whose
/// instructions fail at some addresses.
fn is_of_code(section: &Section, machine: Machine) -> bool {
    let is_of_input = matches!(
        section.kind,
        elf::SHT_PROGBITS
            | elf::SHT_NOBITS
            | elf::SHT_INIT_ARRAY
            | elf::SHT_FINI_ARRAY
            | elf::SHT_PREINIT_ARRAY
    );
    let has_stubs = machine != Machine::X86_64 && section.flags.0 & elf::SHF_EXECINSTR.0 != 0;
    let is_of_linker = OF_LINKERS.contains(&&*section.name) || section.name.starts_with(".plt");
    section.is_alloc() && is_of_input && !has_stubs && !is_of_linker && !is_device(section)
}

/// Whether a section has device code, or what replaces it.
fn is_device(section: &Section) -> bool {
    section.name == FAT_SECTION || marker::is_section(&section.name)
}

fn add_symbols<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    facts: &mut Facts,
) -> Result<(), BinaryError> {
    let strings = match dynamic.table(elf::DT_STRTAB, elf::DT_STRSZ)? {
        Some(table) => image.memory(table, "the dynamic string table")?,
        None => return Ok(()),
    };
    let symbols = dynamic_symbols(image, dynamic)?;
    let numbers = bytes_of(image, elf::SHT_GNU_VERSYM)?;
    let numbers: &[object::U16<LE>] = pods(&numbers);
    let versions = versions(image, &strings)?;
    for (index, symbol) in pods::<elf::Sym64<LE>>(&symbols).iter().enumerate() {
        let name = text_at(&strings, symbol.st_name.get(LE));
        let section = image.sections.get(usize::from(symbol.st_shndx.get(LE).0));
        let is_local = symbol.st_bind() == elf::STB_LOCAL;
        if name.is_empty() || is_local || section.is_some_and(is_device) {
            continue;
        }
        let linkage = match symbol.st_shndx.get(LE) {
            elf::SHN_UNDEF => Linkage::Imported,
            _ => Linkage::Exported,
        };
        let mut value = format!("{} bytes", symbol.st_size.get(LE));
        let number = numbers.get(index).map_or(0, |number| number.get(LE) & !HIDDEN);
        let version = versions.get(&number).copied().unwrap_or_default();
        if !version.is_empty() {
            value += &format!(" of version `{}`", String::from_utf8_lossy(version));
        }
        facts.add_symbol(linkage, name, value, version)?;
    }
    Ok(())
}

/// The flag of a version that is not the default one.
const HIDDEN: u16 = 1 << 15;

/// The names of the versions of symbols, by number.
fn versions<'s, S: ReadAt>(
    image: &Image<S>,
    strings: &'s [u8],
) -> Result<BTreeMap<u16, &'s [u8]>, BinaryError> {
    let mut found = BTreeMap::new();
    let half = |bytes: &[u8], at: usize| {
        let half = bytes.get(at..at + 2).and_then(|half| half.try_into().ok());
        half.map_or(0, u16::from_le_bytes)
    };
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map_or(0, u32::from_le_bytes)
    };
    let name_at = |offset: u32| {
        let end = strings.len().min(offset as usize + LONGEST_VERSION);
        text_at(&strings[..end], offset)
    };
    // Records of 20 bytes for what is exported, and of 16 for what is imported, which has one of 16 for each version.
    let exported = bytes_of(image, elf::SHT_GNU_VERDEF)?;
    let mut rest = &exported[..];
    for _ in 0..MOST_VERSIONS {
        let name = rest.get(word(rest, 12) as usize..).map_or(0, |name| word(name, 0));
        found.insert(half(rest, 4), name_at(name));
        rest = match rest.get(word(rest, 16) as usize..) {
            Some(next) if word(rest, 16) > 0 => next,
            _ => break,
        };
    }
    let imported = bytes_of(image, elf::SHT_GNU_VERNEED)?;
    let mut rest = &imported[..];
    // Records may lead to each other.
    let mut records = 0;
    'libraries: for _ in 0..MOST_VERSIONS {
        let mut version = rest.get(word(rest, 8) as usize..).unwrap_or_default();
        for _ in 0..half(rest, 2) {
            records += 1;
            if records > MOST_VERSIONS {
                break 'libraries;
            }
            found.insert(half(version, 6) & !HIDDEN, name_at(word(version, 8)));
            version = version.get(word(version, 12) as usize..).unwrap_or_default();
        }
        rest = match rest.get(word(rest, 12) as usize..) {
            Some(next) if word(rest, 12) > 0 => next,
            _ => break,
        };
    }
    // Those of symbols without a version.
    found.retain(|number, name| *number > 1 && !name.is_empty());
    Ok(found)
}

/// The contents of the first section of a kind.
fn bytes_of<S: ReadAt>(image: &Image<S>, kind: elf::SectionType) -> Result<Vec<u8>, BinaryError> {
    let section = image.sections.iter().find(|section| section.kind == kind);
    section.map_or_else(|| Ok(Vec::new()), |section| image.section_bytes(section))
}

/// The text at an offset in a table of strings.
fn text_at(strings: &[u8], offset: u32) -> &[u8] {
    let rest = strings.get(offset as usize..).unwrap_or_default();
    rest.split(|byte| *byte == 0).next().unwrap_or_default()
}
