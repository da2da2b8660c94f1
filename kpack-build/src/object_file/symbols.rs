//! The symbol table of a relocatable object.

use object::LittleEndian as LE;
use object::elf;

use super::relocatable::{Relocatable, text_at};
use kpack_core::elf::{BinaryError, ReadAt, pods, refuse};

/// What a relocation points to.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// An offset in a section, given by index.
    Section(usize, u64),
    /// A symbol of another object, by its index.
    Undefined(u32),
}

/// The symbol table. A relocatable object has one.
pub(super) struct Symbols {
    /// The section of the table, and its file offset.
    table: usize,
    offset: u64,
    bytes: Vec<u8>,
    names: Vec<u8>,
    /// Section indices that do not fit in 16 bits (gABI, SHT_SYMTAB_SHNDX).
    extended: Vec<u8>,
}

impl Symbols {
    pub(super) fn read<S: ReadAt>(object: &Relocatable<S>) -> Result<Self, BinaryError> {
        let of_type = |kind| {
            let mut sections = object.sections.iter();
            sections.position(|section| section.sh_type.get(LE) == kind)
        };
        let Some(table) = of_type(elf::SHT_SYMTAB) else {
            refuse!("no symbol table");
        };
        let section = &object.sections[table];
        let extended = match of_type(elf::SHT_SYMTAB_SHNDX) {
            Some(index) => object.bytes_of(index)?,
            None => Vec::new(),
        };
        Ok(Self {
            table,
            offset: section.sh_offset.get(LE),
            bytes: object.bytes_of(table)?,
            names: object.bytes_of(section.sh_link.get(LE) as usize)?,
            extended,
        })
    }

    /// The section of the table.
    pub(super) fn table(&self) -> usize {
        self.table
    }

    /// File offset of the table.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn all(&self) -> &[elf::Sym64<LE>] {
        pods(&self.bytes)
    }

    /// The section that defines a symbol, if any.
    pub(super) fn section(&self, index: usize) -> Option<usize> {
        let symbol = self.all().get(index)?;
        match symbol.st_shndx.get(LE) {
            elf::SHN_XINDEX => {
                let all = pods::<object::U32<LE>>(&self.extended);
                all.get(index).map(|section| section.get(LE) as usize)
            }
            section if section == elf::SHN_UNDEF || section.is_reserved() => None,
            section => Some(usize::from(section.0)),
        }
    }

    /// The target of a relocation against a symbol; `None` if the symbol is neither in a section
    /// nor in another object.
    pub(super) fn target(&self, index: u32, addend: i64) -> Option<Target> {
        let symbol = self.all().get(index as usize)?;
        match self.section(index as usize) {
            Some(section) => {
                let offset = symbol.st_value.get(LE).wrapping_add_signed(addend);
                Some(Target::Section(section, offset))
            }
            None if symbol.st_shndx.get(LE) == elf::SHN_UNDEF => Some(Target::Undefined(index)),
            None => None,
        }
    }

    pub(super) fn name(&self, index: u32) -> String {
        let start = self.all().get(index as usize);
        let start = start.map_or(0, |symbol| symbol.st_name.get(LE));
        String::from_utf8_lossy(text_at(&self.names, start)).into_owned()
    }

    /// File offsets of the entries of symbols defined in `sections`, except section symbols.
    pub(super) fn defined_in(&self, sections: &[usize]) -> Vec<u64> {
        let all = self.all().iter().enumerate();
        let defined = all.filter(|(index, symbol)| {
            let section = self.section(*index);
            symbol.st_type() != elf::STT_SECTION
                && section.is_some_and(|section| sections.contains(&section))
        });
        defined
            .map(|(index, _)| self.offset + (index * size_of::<elf::Sym64<LE>>()) as u64)
            .collect()
    }
}
