//! What linkers cannot change in an ELF file by placing things elsewhere.

use std::collections::BTreeMap;
use std::ops::Range;

use kpack_format::marker;
use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{Dynamic, dynamic_symbols};
use super::headers::Section;
use super::image::{Image, Machine};
use super::{BinaryError, FAT_SECTION, ReadAt, pods};
use crate::facts::{Facts, Linkage};

/// What linkers make from what they place where: tables of addresses, unwind tables, stubs, and room up to a page.
const OF_LINKERS: [&str; 7] =
    [".branch_lt", ".eh_frame", ".eh_frame_hdr", ".got", ".got.plt", ".iplt", ".relro_padding"];

/// The most bytes of the name of a version that are read.
const LONGEST_VERSION: usize = 4096;

/// The most bytes of a path that are read.
const LONGEST_PATH: u64 = 4096;

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
        (elf::DT_AUXILIARY, "AUXILIARY"),
        (elf::DT_FILTER, "FILTER"),
    ] {
        for text in dynamic.strings(image, tag)? {
            facts.add_text(fact, &text)?;
        }
    }
    add_flags(image, &dynamic, &mut facts)?;
    for section in image.sections.iter().filter(|section| is_of_code(section, image.machine)) {
        facts.add_section(&section.name, section.size);
    }
    add_symbols(image, &dynamic, &mut facts)?;
    Ok(facts)
}

/// Adds how a link was asked to let the system load the file: the dynamic section's flags, the loader's name, and what
/// the stack may be.
fn add_flags<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    facts: &mut Facts,
) -> Result<(), BinaryError> {
    facts.add("ELF type", image.header.e_type.get(LE).0.to_string());
    facts.add("ELF flags", format!("{:#x}", image.header.e_flags.get(LE).0));
    for (tag, fact) in [(elf::DT_FLAGS, "DT_FLAGS"), (elf::DT_FLAGS_1, "DT_FLAGS_1")] {
        // No flag and no entry are the same.
        if let Some(flags) = dynamic.get(tag).filter(|flags| *flags != 0) {
            facts.add(fact, format!("{flags:#x}"));
        }
    }
    for (tag, fact) in [
        (elf::DT_SYMBOLIC, "DT_SYMBOLIC"),
        (elf::DT_TEXTREL, "DT_TEXTREL"),
        (elf::DT_BIND_NOW, "DT_BIND_NOW"),
    ] {
        if dynamic.get(tag).is_some() {
            facts.add(fact, "set");
        }
    }
    for segment in &image.segments {
        match segment.kind {
            elf::PT_INTERP => {
                let size = segment.filesz.min(LONGEST_PATH);
                let end = segment.vaddr.saturating_add(size);
                // A debug file has no contents there.
                if size > 0 && image.offset_of(&(segment.vaddr..end)) == Some(segment.offset) {
                    let what = "the name of the dynamic loader";
                    let name = image.bytes(segment.offset, size, what)?;
                    facts.add_text("dynamic loader", text_at(&name, 0))?;
                }
            }
            elf::PT_GNU_STACK => {
                let (flags, size) = (segment.flags.0, segment.memsz);
                facts.add("PT_GNU_STACK", format!("flags {flags:#x}, {size} bytes"));
            }
            elf::PT_GNU_RELRO => facts.add("PT_GNU_RELRO", "set"),
            _ => {}
        }
    }
    Ok(())
}

/// Sections that tell builds apart, rather than being code or data: a build ID also covers debug information.
const BUILD_MARKS: [&str; 3] = [".note.gnu.build-id", ".gnu_debuglink", ".gnu_debugaltlink"];

/// The parts of the file that tell builds apart.
pub(crate) fn build_marks<S: ReadAt>(image: &Image<S>) -> Vec<Range<u64>> {
    let sections = image.sections.iter().filter(|section| section.has_bytes());
    let marks = sections.filter(|section| BUILD_MARKS.contains(&&*section.name));
    marks.map(|section| section.offset..section.offset.saturating_add(section.size)).collect()
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

/// The sections in the file with the data of the host code.
pub(crate) fn data<S>(image: &Image<S>) -> Vec<Range<u64>> {
    let is_data = |section: &&Section| {
        let is_code = section.flags.0 & elf::SHF_EXECINSTR.0 != 0;
        section.kind == elf::SHT_PROGBITS && section.is_alloc() && !is_code && !is_device(section)
    };
    let sections = image.sections.iter().filter(is_data);
    sections.map(|section| section.offset..section.offset.saturating_add(section.size)).collect()
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
    let bytes = bytes_of(image, elf::SHT_GNU_VERSYM)?;
    let numbers: &[object::U16<LE>] = pods(&bytes);
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
        let is_hidden = numbers.get(index).is_some_and(|number| number.get(LE) & HIDDEN != 0);
        for (is_so, what) in [
            (is_hidden && matches!(linkage, Linkage::Exported), ", not the default"),
            (symbol.st_bind() == elf::STB_WEAK, ", weak"),
            (symbol.st_bind() == elf::STB_GNU_UNIQUE, ", unique"),
            (symbol.st_visibility() == elf::STV_PROTECTED, ", protected"),
            (symbol.st_type() == elf::STT_TLS, ", thread-local"),
            (symbol.st_type() == elf::STT_GNU_IFUNC, ", an indirect function"),
        ] {
            value += if is_so { what } else { "" };
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
