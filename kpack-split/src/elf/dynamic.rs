//! The dynamic section, with the relocations and symbols it refers to.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use kpack::internal::dynamic_symbols::{Linkage, linkage};
use object::LittleEndian as LE;
use object::elf;

use super::headers::Section;
use super::image::Image;
use super::records::pods;
use super::{BinaryError, ReadAt};
use super::{refuse, unsupported};

/// Size of a dynamic entry in the file, in bytes.
pub(crate) const DYNAMIC_ENTRY: u64 = size_of::<elf::Dyn64<LE>>() as u64;
/// Size of a RELA entry in the file, in bytes.
const RELA_ENTRY: u64 = size_of::<elf::Rela64<LE>>() as u64;

/// Entries can share their strings, so a small file could name gigabytes of them.
const MAX_STRINGS: usize = 1 << 20;

/// Relocations in Android's formats. The GNU C library does not read them.
const ANDROID: [(elf::DynamicTag, &str); 3] = [
    (elf::DynamicTag(0x6000_000f), "DT_ANDROID_REL"),
    (elf::DynamicTag(0x6000_0011), "DT_ANDROID_RELA"),
    (elf::DynamicTag(0x6fff_e000), "DT_ANDROID_RELR"),
];

/// The dynamic section of an image, up to DT_NULL.
#[derive(Debug, Default)]
pub struct Dynamic {
    /// File offset of the first entry.
    pub offset: u64,
    /// Tag and value of each entry.
    pub entries: Vec<(elf::DynamicTag, u64)>,
}

/// One relocation of the dynamic relocation tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// The relocated address.
    pub address: u64,
    /// File offset of its RELA entry; `None` for RELR, where the addend is in place.
    pub entry: Option<u64>,
    /// Its type.
    pub kind: elf::RelocationType,
    /// Index in the dynamic symbol table, 0 for none.
    pub symbol: u32,
    /// The addend.
    pub addend: u64,
}

impl Dynamic {
    /// Reads the dynamic section; empty for a static executable.
    ///
    /// The dynamic linker finds it by its address, other tools by its offset in the file. A file where these
    /// lead to different places is refused.
    pub fn read<S: ReadAt>(image: &Image<S>) -> Result<Self, BinaryError> {
        let Some(segment) = image.segments.iter().find(|s| s.kind == elf::PT_DYNAMIC) else {
            return Ok(Self::default());
        };
        let end = segment.vaddr.saturating_add(segment.filesz);
        let loaded = image.offset_of(&(segment.vaddr..end));
        if segment.filesz > 0 && loaded != Some(segment.offset) {
            // The cause may be a segment that the file does not have in full.
            image.validate()?;
            refuse!(
                at segment.offset;
                "PT_DYNAMIC is at offset {:#x}, but no PT_LOAD loads that to its address, {:#x}; the file is \
                 damaged",
                segment.offset,
                segment.vaddr
            );
        }
        let bytes = image.bytes(segment.offset, segment.filesz, "the dynamic section")?;
        let entries = pods::<elf::Dyn64<LE>>(&bytes)
            .iter()
            .map(|entry| (entry.d_tag.get(LE), entry.d_val.get(LE)))
            .take_while(|(tag, _)| *tag != elf::DT_NULL)
            .collect();
        Ok(Self { offset: segment.offset, entries })
    }

    /// The value of the first entry with this tag.
    pub fn get(&self, tag: elf::DynamicTag) -> Option<u64> {
        self.entries.iter().find(|(t, _)| *t == tag).map(|(_, value)| *value)
    }

    /// Whether the dynamic loader asks PT_PHDR at which address the file is. It does so for a program that can be
    /// anywhere, which the kernel loaded. It loads libraries itself, and GNU ld gives them no PT_PHDR.
    pub(crate) fn needs_program_headers<S: ReadAt>(&self, image: &Image<S>) -> bool {
        let is_interpreted = image.segments.iter().any(|s| s.kind == elf::PT_INTERP);
        let flags = self.get(elf::DT_FLAGS_1).unwrap_or_default();
        let is_program = is_interpreted || flags & elf::DF_1_PIE.0 != 0;
        is_program && !image.is_position_dependent()
    }

    /// The strings of all entries with this tag, such as the names of needed libraries.
    pub fn strings<S: ReadAt>(
        &self,
        image: &Image<S>,
        tag: elf::DynamicTag,
    ) -> Result<Vec<Vec<u8>>, BinaryError> {
        if self.get(tag).is_none() {
            return Ok(Vec::new());
        }
        let Some(table) = self.table(elf::DT_STRTAB, elf::DT_STRSZ)? else {
            return Ok(Vec::new());
        };
        let table = image.memory(table, "the dynamic string table")?;
        let mut strings = Vec::new();
        let mut room = MAX_STRINGS;
        for (_, at) in self.entries.iter().filter(|(of, _)| *of == tag) {
            let rest = usize::try_from(*at).ok().and_then(|at| table.get(at..));
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
                refuse!("{tag:?} refers past the end of the dynamic string table");
            };
            // A string may end with the table.
            let size = rest.iter().take(room).position(|byte| *byte == 0).unwrap_or(rest.len());
            if size >= room {
                refuse!("the strings of {tag:?} have more than {MAX_STRINGS} bytes");
            }
            room -= size + 1;
            strings.push(rest[..size].to_vec());
        }
        Ok(strings)
    }

    /// The strings of its table that may be names of symbols. A table that is not at its address has none.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn names<S: ReadAt>(&self, image: &Image<S>) -> Result<Vec<Vec<u8>>, BinaryError> {
        let Some(table) = self.table(elf::DT_STRTAB, elf::DT_STRSZ)? else {
            return Ok(Vec::new());
        };
        let table = image.memory(table, "the dynamic string table")?;
        Ok(table.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
    }

    /// What the file does with the function `name`.
    ///
    /// # Errors
    /// A table cannot be read. A table that is not at its address has no functions.
    pub fn linkage<S: ReadAt>(
        &self,
        image: &Image<S>,
        name: &str,
    ) -> Result<Option<Linkage>, BinaryError> {
        let entries =
            Vec::from_iter(self.entries.iter().map(|(tag, value)| (tag.0 as u64, *value)));
        let failed = Cell::new(None);
        let linkage = linkage(&entries, 0, name, |address, size| {
            let end = address.checked_add(size)?;
            match image.memory(address..end, "a table of symbols") {
                Err(error @ BinaryError::Io(_)) => {
                    failed.set(Some(error));
                    None
                }
                read => read.ok(),
            }
        });
        failed.into_inner().map_or(Ok(linkage), Err)
    }

    /// The address range of a table, from its address and size entries.
    pub(crate) fn table(
        &self,
        address: elf::DynamicTag,
        size: elf::DynamicTag,
    ) -> Result<Option<Range<u64>>, BinaryError> {
        match (self.get(address), self.get(size)) {
            (Some(start), Some(size)) if size > 0 => match start.checked_add(size) {
                Some(end) => Ok(Some(start..end)),
                None => refuse!("the table of {address:?} ends past the end of the address space"),
            },
            _ => Ok(None),
        }
    }

    /// The section of the symbols that the dynamic linker uses, whatever its header calls it. No entry has their
    /// number.
    pub(crate) fn symbol_section<'i, S>(&self, image: &'i Image<S>) -> Option<&'i Section> {
        let start = self.get(elf::DT_SYMTAB)?;
        let mut sections = image.sections.iter();
        sections.find(|s| s.addr == start && s.has_bytes() && s.occupies_memory())
    }

    /// The address ranges of the RELA tables.
    pub(crate) fn rela_tables(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        let mut tables: Vec<Range<u64>> = Vec::new();
        for (address, size) in [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)]
        {
            if let Some(table) = self.table(address, size)? {
                // Some linkers let DT_RELASZ include the PLT's relocations.
                let known = tables.iter().any(|t| t.start <= table.start && table.end <= t.end);
                if !known {
                    tables.push(table);
                }
            }
        }
        Ok(tables)
    }
}

/// Whether the value of a dynamic entry is an address (gABI, "Dynamic Section", and the GNU
/// extensions).
pub fn is_address(tag: elf::DynamicTag) -> bool {
    matches!(
        tag,
        elf::DT_PLTGOT
            | elf::DT_HASH
            | elf::DT_STRTAB
            | elf::DT_SYMTAB
            | elf::DT_RELA
            | elf::DT_REL
            | elf::DT_RELR
            | elf::DT_JMPREL
            | elf::DT_INIT
            | elf::DT_FINI
            | elf::DT_INIT_ARRAY
            | elf::DT_FINI_ARRAY
            | elf::DT_PREINIT_ARRAY
            | elf::DT_SYMTAB_SHNDX
            | elf::DT_VERSYM
            | elf::DT_VERDEF
            | elf::DT_VERNEED
    ) || tag.is_address()
}

/// Every dynamic relocation of an image.
#[derive(Debug)]
pub struct Relocations<'a, S> {
    image: &'a Image<S>,
    /// File offset and bytes of each RELA table.
    rela: Vec<(u64, Vec<u8>)>,
    relr: Vec<u8>,
    relative: elf::RelocationType,
    words: Words<'a, S>,
}

impl<'a, S: ReadAt> Relocations<'a, S> {
    /// Finds the tables of `dynamic`.
    ///
    /// # Errors
    /// [`BinaryError::Refused`] for DT_REL, or a table outside of the file; [`BinaryError::Io`].
    pub fn read(image: &'a Image<S>, dynamic: &Dynamic) -> Result<Self, BinaryError> {
        if dynamic.table(elf::DT_REL, elf::DT_RELSZ)?.is_some() {
            refuse!("has DT_REL relocations; x86-64, AArch64 and ppc64le use DT_RELA (psABI)");
        }
        for (tag, name) in ANDROID {
            if dynamic.get(tag).is_some() {
                unsupported!(
                    "the relocations are packed in Android's format ({name}), which is not supported; link it without `--pack-dyn-relocs=android`"
                );
            }
        }
        let mut rela = Vec::new();
        for table in dynamic.rela_tables()? {
            let bytes = image.memory(table.clone(), "a relocation table")?;
            let offset = image.offset_of(&table).unwrap_or(0);
            rela.push((offset, bytes));
        }
        let relr = match dynamic.table(elf::DT_RELR, elf::DT_RELRSZ)? {
            Some(table) => image.memory(table, "the RELR table")?,
            None => Vec::new(),
        };
        Ok(Self { image, rela, relr, relative: image.machine.relative(), words: Words::new(image) })
    }

    /// All relocations. The addend of a RELR entry is read from the relocated word.
    pub fn iter(&self) -> impl Iterator<Item = Result<Relocation, BinaryError>> + '_ {
        let rela = self.rela.iter().flat_map(|(offset, bytes)| {
            pods::<elf::Rela64<LE>>(bytes).iter().enumerate().map(move |(index, rela)| {
                Ok(Relocation {
                    address: rela.r_offset.get(LE),
                    entry: Some(offset + index as u64 * RELA_ENTRY),
                    kind: rela.r_type(LE, false),
                    symbol: rela.r_sym(LE, false),
                    addend: rela.r_addend.get(LE) as u64,
                })
            })
        });
        let relr = relr_addresses(&self.relr).map(|address| {
            Ok(Relocation {
                address,
                entry: None,
                kind: self.relative,
                symbol: 0,
                addend: match self.words.get(address)? {
                    Some(addend) => addend,
                    None => refuse!(
                        "a RELR relocation is at address {address:#x}, which no PT_LOAD loads from the file"
                    ),
                },
            })
        });
        rela.chain(relr)
    }

    /// The value of a relocation, if the image alone determines it: base plus addend, or a symbol
    /// that it defines.
    pub fn target(&self, relocation: &Relocation, symbols: &[elf::Sym64<LE>]) -> Option<u64> {
        let machine = self.image.machine;
        if relocation.kind == machine.relative() || relocation.kind == machine.irelative() {
            return Some(relocation.addend);
        }
        let symbol = symbols.get(relocation.symbol as usize)?;
        let defined = symbol.st_shndx.get(LE) != elf::SHN_UNDEF && symbol.st_type() != elf::STT_TLS;
        (relocation.symbol != 0 && defined)
            .then(|| symbol.st_value.get(LE).wrapping_add(relocation.addend))
    }
}

/// The addresses of a RELR table (gABI, "Relative relocation table"): an even entry is an address,
/// an odd one a bitmap of the next 63 words.
fn relr_addresses(table: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut next = 0u64;
    pods::<object::U64<LE>>(table).iter().flat_map(move |entry| {
        let entry = entry.get(LE);
        let (base, bits) = if entry & 1 == 0 {
            next = entry.wrapping_add(8);
            (entry, 1)
        } else {
            let base = next;
            next = next.wrapping_add(63 * 8);
            (base, entry >> 1)
        };
        (0..63).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| base.wrapping_add(bit * 8))
    })
}

/// Reads words of memory that are near each other, in blocks.
#[derive(Debug)]
pub(super) struct Words<'a, S> {
    image: &'a Image<S>,
    /// File offset and contents of the block read last.
    block: RefCell<(u64, Vec<u8>)>,
}

impl<'a, S: ReadAt> Words<'a, S> {
    const BLOCK: u64 = 64 * 1024;
    /// Blocks begin at a multiple of this, so that words shortly before the first one are in them as well.
    const ALIGNMENT: u64 = 4096;

    pub(super) fn new(image: &'a Image<S>) -> Self {
        Self { image, block: RefCell::default() }
    }

    /// The word at an address; `None` if no PT_LOAD loads all of it from the file.
    pub(super) fn get(&self, address: u64) -> Result<Option<u64>, BinaryError> {
        let end = address.saturating_add(8);
        let Some(offset) = self.image.offset_of(&(address..end)) else {
            return Ok(None);
        };
        let mut block = self.block.borrow_mut();
        let inside = |block: &(u64, Vec<u8>)| {
            let start = usize::try_from(offset.checked_sub(block.0)?).ok()?;
            let word = block.1.get(start..start.checked_add(8)?)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        if let Some(word) = inside(&block) {
            return Ok(Some(word));
        }
        let start = offset - offset % Self::ALIGNMENT;
        let size = Self::BLOCK.min(self.image.size.saturating_sub(start));
        *block = (start, self.image.bytes(start, size, "loaded memory")?);
        match inside(&block) {
            Some(word) => Ok(Some(word)),
            None => refuse!("the file ends within the word at {address:#x}"),
        }
    }
}

/// The dynamic symbol table's bytes; empty if there is none.
pub(crate) fn dynamic_symbols<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
) -> Result<Vec<u8>, BinaryError> {
    match dynamic.symbol_section(image) {
        Some(section) => image.section_bytes(section),
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::relr_addresses;

    #[test]
    fn relr_decodes_addresses_and_bitmaps() {
        let table: Vec<u8> =
            [0x1000u64, 0b1011, 0x2000].iter().flat_map(|word| word.to_le_bytes()).collect();
        let addresses: Vec<u64> = relr_addresses(&table).collect();
        assert_eq!(addresses, [0x1000, 0x1008, 0x1018, 0x2000]);
    }
}
