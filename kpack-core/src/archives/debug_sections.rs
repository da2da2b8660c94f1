//! Removes the debug sections of a code object, as `llvm-strip --strip-debug` does, except that all
//! symbols stay.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::pod::{self, Pod};

use kpack_format::code_object::{CodeObject, CodeObjectError};

/// How a code object looks without its debug sections: a plan, which holds none of their content.
///
/// Everything that is loaded stays at its offset, byte for byte, except for the fields of the ELF header
/// that describe the section table. The other sections move up, and the section table follows them.
#[derive(Debug)]
pub struct Stripped {
    header: FileHeader64<LE>,
    /// What is copied, in order of both the input and the output: the input's range, and the offset in the
    /// output.
    copied: Vec<(Range<u64>, u64)>,
    sections: Vec<SectionHeader64<LE>>,
    removed: Vec<Range<u64>>,
}

impl Stripped {
    /// Plans the code object of `size` bytes that `source` starts with. `None` if it has no debug
    /// sections.
    ///
    /// # Errors
    /// [`CodeObjectError`]; [`CodeObjectError::Unsupported`] for what compilers do not write.
    pub fn plan<R: Read + Seek>(
        source: &mut R,
        size: u64,
    ) -> Result<Option<Self>, CodeObjectError> {
        let Some(input) = Input::read(source, size)? else {
            return Ok(None);
        };
        let is_removed = input.debug_sections(source)?;
        if !is_removed.contains(&true) {
            return Ok(None);
        }
        let numbers = Input::numbers(&is_removed);
        let mut this = input.without(&numbers, size)?;
        let removed = input.sections.iter().zip(&is_removed).filter(|(_, is_removed)| **is_removed);
        this.removed = removed.map(|(section, _)| content(section)).collect();
        input.check_contents(source, &numbers)?;
        Ok(Some(this))
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.header.e_shoff.get(LE) + size_of_val(&*self.sections) as u64
    }

    /// Where the removed sections are in the input.
    pub fn removed(&self) -> &[Range<u64>] {
        &self.removed
    }

    /// Writes it, given the code object that was planned.
    ///
    /// # Errors
    /// Reading or writing failed.
    pub fn write<R: Read + Seek>(
        &self,
        source: &mut R,
        out: &mut (impl Write + ?Sized),
    ) -> io::Result<()> {
        out.write_all(pod::bytes_of(&self.header))?;
        let mut at = HEADER_SIZE;
        for (range, offset) in &self.copied {
            pad(out, offset - at)?;
            source.seek(SeekFrom::Start(range.start))?;
            let size = range.end - range.start;
            if io::copy(&mut source.by_ref().take(size), out)? != size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at = offset + size;
        }
        pad(out, self.header.e_shoff.get(LE) - at)?;
        out.write_all(pod::bytes_of_slice(&self.sections))
    }
}

/// Checks the structure of the code object of `size` bytes that `source` starts with: its tables, what they refer to, its
/// notes, and the sections of its symbols.
///
/// # Errors
/// [`CodeObjectError`].
pub fn check_structure<R: Read + Seek>(source: &mut R, size: u64) -> Result<(), CodeObjectError> {
    build_id(source, size)?;
    let Some(input) = Input::read(source, size)? else {
        return Ok(());
    };
    for (index, segment) in input.segments.iter().enumerate() {
        let (in_file, loaded) = (segment.p_filesz.get(LE), segment.p_memsz.get(LE));
        if segment.p_type.get(LE) == elf::PT_LOAD && in_file > loaded {
            return malformed(format!(
                "program header {index} loads {loaded:#x} bytes of {in_file:#x} in the file"
            ));
        }
    }
    input.debug_sections(source)?;
    let numbers = Vec::from_iter((0..input.sections.len()).map(Some));
    for (index, section) in input.sections.iter().enumerate() {
        renumbered(index, section, &numbers)?;
        if let elf::SHT_SYMTAB | elf::SHT_DYNSYM = section.sh_type.get(LE) {
            match check_symbols(source, index, content(section), &numbers) {
                Err(CodeObjectError::Unsupported(_)) => {
                    let text = "is in a section that does not exist";
                    return malformed(format!("a symbol of section {index} {text}"));
                }
                checked => checked?,
            }
        }
    }
    Ok(())
}

/// The build ID (`NT_GNU_BUILD_ID`) of the code object of `size` bytes that `source` starts with.
/// Debuggers find the separate debug information of code objects by it.
///
/// # Errors
/// [`CodeObjectError`].
pub fn build_id<R: Read + Seek>(
    source: &mut R,
    size: u64,
) -> Result<Option<Vec<u8>>, CodeObjectError> {
    let Some(input) = Input::read(source, size)? else {
        return Ok(None);
    };
    let mut count = 0;
    let notes = input.segments.iter();
    for segment in notes.filter(|segment| segment.p_type.get(LE) == elf::PT_NOTE) {
        let (offset, size) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
        let (mut at, end) = (offset, offset + size);
        while end - at >= NOTE_SIZE {
            count += 1;
            if count > MOST_NOTES {
                return malformed(format!("has more than {MOST_NOTES} notes"));
            }
            let note = at_most::<12, _>(source, at..end)?;
            let word = |index: usize| little_endian(&note[4 * index..][..4]);
            let name = at + NOTE_SIZE;
            let content = name + word(0).next_multiple_of(4);
            let next = content + word(1).next_multiple_of(4);
            if content + word(1) > end {
                return malformed(format!("the note at offset {at:#x} ends past its segment"));
            }
            let owner = at_most::<4, _>(source, name..end)?;
            if word(2) == NT_GNU_BUILD_ID && word(0) == 4 && owner == *b"GNU\0" {
                let size = word(1);
                if !BUILD_ID_SIZES.contains(&size) {
                    return malformed(format!("the build ID has {size} bytes"));
                }
                let mut id = vec![0; size as usize];
                source.seek(SeekFrom::Start(content))?;
                source.read_exact(&mut id)?;
                return Ok(Some(id));
            }
            at = next.min(end);
        }
    }
    Ok(None)
}

const HEADER_SIZE: u64 = size_of::<FileHeader64<LE>>() as u64;
const NOTE_SIZE: u64 = 12;
const NT_GNU_BUILD_ID: u64 = 3;
/// Sizes of build IDs that make file names, in bytes.
const BUILD_ID_SIZES: Range<u64> = 2..65;
/// Maximum number of notes; real code objects have two.
const MOST_NOTES: usize = 4096;
/// Symbols that are read at a time.
const SYMBOLS: u64 = 4096;
/// Bytes of a section's name that tell whether it is a debug section.
const NAME: usize = 11;

/// The headers of a code object with sections.
struct Input {
    header: FileHeader64<LE>,
    segments: Vec<ProgramHeader64<LE>>,
    sections: Vec<SectionHeader64<LE>>,
}

impl Input {
    /// `None` if it has no sections, or these have no names.
    fn read<R: Read + Seek>(source: &mut R, size: u64) -> Result<Option<Self>, CodeObjectError> {
        source.seek(SeekFrom::Start(0))?;
        // Checks that tables, sections and segments are within the file.
        CodeObject::read(source, size)?;
        let header: FileHeader64<LE> = records(source, 0, 1)?.remove(0);
        let (at, count) = (header.e_phoff.get(LE), header.e_phnum.get(LE));
        let segments = match at {
            0 => Vec::new(),
            at => records(source, at, count.into())?,
        };
        let (at, count) = (header.e_shoff.get(LE), header.e_shnum.get(LE));
        let names = header.e_shstrndx.get(LE).0;
        if at == 0 || count == 0 || names == 0 {
            return Ok(None);
        }
        if names >= count {
            return malformed(format!(
                "the names of its sections are in section {names} of {count}"
            ));
        }
        let sections = records(source, at, count.into())?;
        Ok(Some(Self { header, segments, sections }))
    }

    /// Whether each section is to be removed: debug sections that are not loaded, and their relocations.
    fn debug_sections<R: Read + Seek>(&self, source: &mut R) -> Result<Vec<bool>, CodeObjectError> {
        let names = content(&self.sections[usize::from(self.header.e_shstrndx.get(LE).0)]);
        let mut debug = vec![false; self.sections.len()];
        for (index, section) in self.sections.iter().enumerate().skip(1) {
            if is_loaded(section) || section.sh_type.get(LE) == elf::SHT_NULL {
                continue;
            }
            let start = names.start.saturating_add(section.sh_name.get(LE).into());
            if start >= names.end {
                return malformed(format!("the name of section {index} ends past the names"));
            }
            let name = at_most::<NAME, _>(source, start..names.end)?;
            debug[index] = name.split(|byte| *byte == 0).next().is_some_and(is_debug_section);
        }
        let mut removed = debug.clone();
        for (section, is_removed) in self.sections.iter().zip(&mut removed) {
            let of = section.sh_info.get(LE) as usize;
            let is_of_debug = debug.get(of).is_some_and(|debug| *debug);
            *is_removed |= is_relocation(section) && !is_loaded(section) && is_of_debug;
        }
        Ok(removed)
    }

    /// The number of each section in the output; `None` for removed ones.
    fn numbers(removed: &[bool]) -> Vec<Option<usize>> {
        let mut next = 0;
        let number = |is_removed: &bool| {
            let number = (!is_removed).then_some(next);
            next += usize::from(number.is_some());
            number
        };
        removed.iter().map(number).collect()
    }

    /// Refuses content that refers to sections by numbers that change.
    fn check_contents<R: Read + Seek>(
        &self,
        source: &mut R,
        numbers: &[Option<usize>],
    ) -> Result<(), CodeObjectError> {
        let kept = self.sections.iter().zip(numbers).enumerate();
        for (index, (section, _)) in kept.filter(|(_, (_, number))| number.is_some()) {
            match section.sh_type.get(LE) {
                elf::SHT_GROUP | elf::SHT_SYMTAB_SHNDX => {
                    return unsupported(format!("section {index} lists sections"));
                }
                elf::SHT_SYMTAB | elf::SHT_DYNSYM => {
                    check_symbols(source, index, content(section), numbers)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Plans the output, which is not larger than the input's `size`.
    fn without(&self, numbers: &[Option<usize>], size: u64) -> Result<Stripped, CodeObjectError> {
        let fixed = self.loaded_end();
        let mut sections: Vec<SectionHeader64<LE>> = Vec::new();
        for (index, section) in self.sections.iter().enumerate() {
            if numbers[index].is_some() {
                sections.push(renumbered(index, section, numbers)?);
            }
        }
        let mut order: Vec<usize> = (0..sections.len()).collect();
        order.retain(|index| sections[*index].sh_type.get(LE) != elf::SHT_NULL);
        order.sort_by_key(|index| (content(&sections[*index]).start, *index));
        let mut copied = vec![(HEADER_SIZE..fixed, HEADER_SIZE)];
        let (mut read, mut end) = (0, fixed);
        for index in order {
            let section = &mut sections[index];
            let range = content(section);
            if range.start < read && !range.is_empty() {
                return unsupported(format!("section {index} shares bytes with another"));
            }
            read = read.max(range.end);
            if range.start < fixed {
                if range.end > fixed {
                    return unsupported(format!("section {index} is loaded in part"));
                }
                continue;
            }
            let align = section.sh_addralign.get(LE).max(1);
            let Some(at) = end.checked_next_multiple_of(align) else {
                return malformed(format!("section {index} is aligned to {align:#x}"));
            };
            section.sh_offset.set(LE, at);
            end = at.saturating_add(range.end - range.start);
            if !range.is_empty() {
                copied.push((range, at));
            }
        }
        let table = end.checked_next_multiple_of(8);
        let room = size.checked_sub(size_of_val(&*sections) as u64);
        let Some(table) = table.filter(|table| room.is_some_and(|room| *table <= room)) else {
            return unsupported("the sections are not aligned");
        };
        let mut header = self.header;
        header.e_shoff.set(LE, table);
        header.e_shnum.set(LE, sections.len() as u16);
        let names = usize::from(header.e_shstrndx.get(LE).0);
        let Some(names) = numbers[names] else {
            return unsupported("the names of its sections are in a debug section");
        };
        header.e_shstrndx.set(LE, elf::SymbolSection(names as u16));
        Ok(Stripped { header, copied, sections, removed: Vec::new() })
    }

    /// The end of what stays at its offset: the headers and all segments.
    fn loaded_end(&self) -> u64 {
        let table = match size_of_val(&*self.segments) as u64 {
            0 => 0,
            size => self.header.e_phoff.get(LE) + size,
        };
        let segments = self.segments.iter();
        let ends = segments
            .filter(|segment| segment.p_filesz.get(LE) > 0)
            .map(|segment| segment.p_offset.get(LE) + segment.p_filesz.get(LE));
        ends.fold(table.max(HEADER_SIZE), u64::max)
    }
}

/// A section's header with the new numbers of the sections that it refers to.
fn renumbered(
    index: usize,
    section: &SectionHeader64<LE>,
    numbers: &[Option<usize>],
) -> Result<SectionHeader64<LE>, CodeObjectError> {
    let number = |old: u32| match numbers.get(old as usize) {
        _ if old == 0 => Ok(0),
        Some(Some(new)) => Ok(*new as u32),
        Some(None) => unsupported(format!("section {index} refers to debug section {old}")),
        None => malformed(format!("section {index} refers to section {old} of {}", numbers.len())),
    };
    let mut new = *section;
    if section.sh_type.get(LE) == elf::SHT_NULL {
        return Ok(new);
    }
    new.sh_link.set(LE, number(section.sh_link.get(LE))?);
    let flags = section.sh_flags.get(LE);
    if is_relocation(section) || flags.contains(elf::SHF_INFO_LINK) {
        new.sh_info.set(LE, number(section.sh_info.get(LE))?);
    }
    Ok(new)
}

/// Refuses symbols whose section gets another number, since symbols stay as they are.
fn check_symbols<R: Read + Seek>(
    source: &mut R,
    index: usize,
    table: Range<u64>,
    numbers: &[Option<usize>],
) -> Result<(), CodeObjectError> {
    let record = size_of::<Sym64<LE>>() as u64;
    let (mut at, mut first) = (table.start, 0);
    let count = (table.end - table.start) / record;
    while first < count {
        let some = (count - first).min(SYMBOLS);
        for (position, symbol) in records::<Sym64<LE>, _>(source, at, some)?.iter().enumerate() {
            let section = symbol.st_shndx.get(LE).0;
            let is_reserved = section >= elf::SHN_LORESERVE && section != elf::SHN_XINDEX.0;
            let number = usize::from(section);
            let stays = numbers.get(number) == Some(&Some(number));
            if !is_reserved && !stays {
                let symbol = first + position as u64;
                return unsupported(format!(
                    "symbol {symbol} of section {index} is in section {section}, which is a debug section or follows one"
                ));
            }
        }
        at += some * record;
        first += some;
    }
    Ok(())
}

/// Whether only debuggers read a section with this name, of any file.
pub fn is_debug_section(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b".debug", b".zdebug", b".gnu_debug"];
    name == b".gdb_index" || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

fn is_loaded(section: &SectionHeader64<LE>) -> bool {
    section.sh_flags.get(LE).contains(elf::SHF_ALLOC)
}

fn is_relocation(section: &SectionHeader64<LE>) -> bool {
    matches!(section.sh_type.get(LE), elf::SHT_REL | elf::SHT_RELA)
}

/// Where a section's content is.
fn content(section: &SectionHeader64<LE>) -> Range<u64> {
    let start = section.sh_offset.get(LE);
    let size = match section.sh_type.get(LE) {
        elf::SHT_NOBITS | elf::SHT_NULL => 0,
        _ => section.sh_size.get(LE),
    };
    start..start.saturating_add(size)
}

/// The first bytes of `range`, zeros after its end.
fn at_most<const N: usize, R: Read + Seek>(
    source: &mut R,
    range: Range<u64>,
) -> Result<[u8; N], CodeObjectError> {
    let mut bytes = [0; N];
    let size = range.end.saturating_sub(range.start).min(N as u64);
    source.seek(SeekFrom::Start(range.start))?;
    source.read_exact(&mut bytes[..size as usize])?;
    Ok(bytes)
}

/// `count` records at `offset`, which are within the file.
fn records<T: Pod, R: Read + Seek>(
    source: &mut R,
    offset: u64,
    count: u64,
) -> Result<Vec<T>, CodeObjectError> {
    source.seek(SeekFrom::Start(offset))?;
    let mut bytes = vec![0; count as usize * size_of::<T>()];
    source.read_exact(&mut bytes)?;
    // `object`'s ELF records have alignment 1.
    match pod::slice_from_bytes::<T>(&bytes, count as usize) {
        Ok((records, _)) => Ok(records.to_vec()),
        Err(()) => malformed("the tables cannot be read"),
    }
}

fn pad(out: &mut (impl Write + ?Sized), size: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(size), out).map(drop)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn malformed<T>(reason: impl Into<String>) -> Result<T, CodeObjectError> {
    Err(CodeObjectError::Malformed(reason.into()))
}

fn unsupported<T>(reason: impl Into<String>) -> Result<T, CodeObjectError> {
    Err(CodeObjectError::Unsupported(reason.into()))
}
