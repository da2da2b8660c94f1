//! Whether two split binaries differ in no more than what a build for other targets brings about:
//! addresses, because their device code had another size, and IDs of compilation units.

use std::collections::BTreeMap;
use std::fs::File;

use kpack_format::marker;
use object::{LittleEndian as LE, elf};

use crate::elf::{DeviceCode, FAT_SECTION, Image, Section};

/// The least printable bytes in a row that are called text.
pub(super) const LEAST_TEXT: usize = 6;

/// What to say of two files that differ in no more; `None` where they do.
///
/// The loaded sections have to have the same names, kinds and sizes, with the same texts and the same
/// symbols in them, by the same compiler. Where they are at other addresses, code and data cannot be
/// compared, since addresses are in them, too. Where they are not, these are.
pub(super) fn layout_only(one: &Image<File>, other: &Image<File>) -> Option<String> {
    let is_split = |image: &Image<File>| matches!(image.device_code(), Ok(DeviceCode::Split(_)));
    let same = is_split(one)
        && is_split(other)
        && shape(one) == shape(other)
        && texts(one) == texts(other)
        && symbols(one) == symbols(other)
        && compilers(one) == compilers(other);
    if !same {
        return None;
    }
    let units = unit_ids(one) != unit_ids(other);
    if addresses(one) != addresses(other) {
        let and = match units {
            true => format!(", and in {UNIT_IDS}"),
            false => String::new(),
        };
        return Some(format!(
            "differs in its layout{and}: its sections have the same sizes and other addresses, as \
             where device code had another size; the instructions themselves cannot be compared then"
        ));
    }
    let same = units && contents(one) == contents(other);
    same.then(|| format!("differs in {UNIT_IDS} only"))
}

/// What they are called for people.
pub(super) const UNIT_IDS: &str = "IDs of compilation units (`__hip_cuid_…`), which clang derives \
                                   from its options, --offload-arch among them";

/// Whether a symbol is there for its name only, which has the ID of a compilation unit: a hash of the
/// compiler's options and the source's path, without leading zeros (clang, `-fuse-cuid=hash`, the
/// default for HIP). Names that the ID is only part of are no such symbols: with `-fgpu-rdc`, those of
/// variables and kernels have to be the same in host and device code.
fn is_unit_id(name: &str) -> bool {
    let id = name.strip_prefix("__hip_cuid_").unwrap_or_default();
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (1..=16).contains(&id.len()) && id.bytes().all(is_digit)
}

/// The IDs of compilation units in the names of dynamic symbols.
pub(super) fn unit_ids(image: &Image<File>) -> Vec<String> {
    let mut ids = Vec::new();
    for table in tables(image) {
        let strings = strings_of(image, table);
        let names = strings.split(|byte| *byte == 0);
        let names = names.filter_map(|name| str::from_utf8(name).ok());
        ids.extend(names.filter(|name| is_unit_id(name)).map(str::to_owned));
    }
    ids.sort();
    ids.dedup();
    ids
}

/// What lld fills the page with behind what is read-only after relocation: of another size at another
/// address.
const PADDING: &str = ".relro_padding";

/// The sections that are loaded, but for device code and padding, sorted by name: where device code
/// leaves or moves, others may change places.
fn loaded(image: &Image<File>) -> Vec<&Section> {
    let loaded = image.sections.iter();
    let mut loaded: Vec<&Section> = loaded
        .filter(|s| s.is_alloc() && !is_device(&s.name) && s.name != PADDING)
        .collect();
    loaded.sort_by(|a, b| a.name.cmp(&b.name));
    loaded
}

/// Names, kinds and sizes of sections, but for what IDs of compilation units take.
fn shape(image: &Image<File>) -> Vec<(&str, u32, u64)> {
    let with_ids = !unit_ids(image).is_empty();
    let size = |section: &Section| match section.kind {
        elf::SHT_GNU_HASH | elf::SHT_HASH if with_ids => 0,
        elf::SHT_STRTAB if with_ids => {
            let bytes = image.section_bytes(section).unwrap_or_default();
            let names = bytes.split(|byte| *byte == 0);
            let ids = names.filter(|name| str::from_utf8(name).is_ok_and(is_unit_id));
            section.size - ids.map(|id| id.len() as u64).sum::<u64>()
        }
        _ => section.size,
    };
    let loaded = loaded(image).into_iter();
    loaded
        .map(|s| (s.name.as_str(), s.kind.0, size(s)))
        .collect()
}

fn addresses(image: &Image<File>) -> Vec<u64> {
    loaded(image).into_iter().map(|s| s.addr).collect()
}

/// The bytes of what is loaded and knows nothing of symbols' names and order.
fn contents(image: &Image<File>) -> BTreeMap<&str, Vec<u8>> {
    // The wrappers point to what stands in device code's place.
    const OTHERS: [&str; 3] = [".note.gnu.build-id", ".dynamic", ".hipFatBinSegment"];
    let is_of_symbols = |kind| {
        matches!(
            kind,
            elf::SHT_DYNSYM
                | elf::SHT_STRTAB
                | elf::SHT_GNU_HASH
                | elf::SHT_HASH
                | elf::SHT_GNU_VERSYM
                | elf::SHT_GNU_VERNEED
                | elf::SHT_GNU_VERDEF
                | elf::SHT_RELA
        )
    };
    let loaded = loaded(image).into_iter();
    let loaded = loaded.filter(|section| {
        section.has_bytes() && !is_of_symbols(section.kind) && !OTHERS.contains(&&*section.name)
    });
    loaded
        .map(|section| {
            let bytes = image.section_bytes(section).unwrap_or_default();
            (section.name.as_str(), bytes)
        })
        .collect()
}

fn tables(image: &Image<File>) -> impl Iterator<Item = &Section> {
    let sections = image.sections.iter();
    sections.filter(|section| matches!(section.kind, elf::SHT_DYNSYM | elf::SHT_SYMTAB))
}

/// The names of a symbol table.
fn strings_of(image: &Image<File>, table: &Section) -> Vec<u8> {
    let strings = image.sections.get(table.link as usize);
    let bytes = strings.and_then(|section| image.section_bytes(section).ok());
    bytes.unwrap_or_default()
}

/// Names, kinds and sizes of the symbols that are not in device code, whose size is what differs. Their
/// order is the hash table's.
fn symbols(image: &Image<File>) -> Vec<(Vec<u8>, u8, u64)> {
    let mut found = Vec::new();
    for table in tables(image) {
        let strings = strings_of(image, table);
        let bytes = image.section_bytes(table).unwrap_or_default();
        for entry in bytes.chunks_exact(size_of::<elf::Sym64<LE>>()) {
            let Ok((symbol, _)) = object::pod::from_bytes::<elf::Sym64<LE>>(entry) else {
                continue;
            };
            let within = image.sections.get(usize::from(symbol.st_shndx.get(LE).0));
            if within.is_some_and(|section| is_device(&section.name)) {
                continue;
            }
            let name = strings.get(symbol.st_name.get(LE) as usize..);
            let name = name.and_then(|rest| rest.split(|byte| *byte == 0).next());
            let name = match name.unwrap_or_default() {
                // Of an object file, which may be a temporary one.
                _ if symbol.st_type() == elf::STT_FILE => &b""[..],
                name if str::from_utf8(name).is_ok_and(is_unit_id) => b"__hip_cuid_",
                name => name,
            };
            found.push((name.to_vec(), symbol.st_info.0, symbol.st_size.get(LE)));
        }
    }
    found.sort();
    found
}

/// What the compilers say of themselves.
fn compilers(image: &Image<File>) -> Vec<u8> {
    let comment = image
        .sections
        .iter()
        .find(|s| s.name == ".comment" && s.has_bytes());
    let bytes = comment.and_then(|section| image.section_bytes(section).ok());
    bytes.unwrap_or_default()
}

/// Whether a section has device code, or what stands in its place.
fn is_device(name: &str) -> bool {
    name == FAT_SECTION || name == marker::SECTION_NAME
}

/// The texts in what is loaded and no code, but for IDs of compilation units. They stay what they are
/// wherever they are. Names of symbols are sorted: their order is the hash table's.
pub(super) fn texts(image: &Image<File>) -> Vec<String> {
    let mut texts = Vec::new();
    for name in [".interp", ".dynstr", ".rodata", ".data"] {
        let section = image
            .sections
            .iter()
            .find(|s| s.name == name && s.has_bytes());
        let bytes = section.and_then(|section| image.section_bytes(section).ok());
        let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let bytes = bytes.unwrap_or_default();
        let runs = bytes.split(|byte| !printable(byte));
        let long = runs.filter(|run| run.len() >= LEAST_TEXT);
        let mut long: Vec<String> = long
            .map(|run| String::from_utf8_lossy(run).into_owned())
            .collect();
        if name == ".dynstr" {
            long.retain(|text| !is_unit_id(text));
            long.sort();
        }
        texts.extend(long);
    }
    texts
}
