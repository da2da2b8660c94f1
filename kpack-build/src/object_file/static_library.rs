//! Static libraries (`ar` archives in the GNU format): reading members, rewriting with resized
//! members, and creating from objects.
//!
//! The format is that of GNU binutils and LLVM ("ar.h"): `!<arch>\n`, then for each member a text
//! header of 60 bytes and its bytes, padded to an even offset. The members `/` and `/SYM64/` are
//! the symbol table: for each symbol, the offset of the header of the member that defines it. `//`
//! holds names longer than 15 characters.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::plan::Plan;
use super::relocatable::Relocatable;
use super::symbols::defined_symbols;
use super::window::{Window, copy};
use crate::elf::{ElfError, ReadAt, refuse};

const MAGIC: &[u8; 8] = b"!<arch>\n";
const THIN_MAGIC: &[u8; 8] = b"!<thin>\n";
const HEADER_SIZE: u64 = 60;
/// Location of the member's size in a header, in decimal digits and spaces.
const SIZE_FIELD: Range<usize> = 48..58;

/// A member of a static library.
#[derive(Debug)]
pub(super) struct Member {
    /// Offset of its header.
    header: u64,
    /// Offset of its bytes.
    pub(super) offset: u64,
    /// Size in bytes.
    pub(super) size: u64,
    /// Its name; for a table, the name in the header.
    pub(super) name: String,
}

impl Member {
    /// File range of its bytes.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.size
    }

    /// Whether it is the symbol table or the table of long names.
    pub(super) fn is_table(&self) -> bool {
        matches!(self.name.as_str(), "/" | "//" | "/SYM64/")
    }
}

/// Reads the members, in order.
///
/// # Errors
/// Refuses thin archives, archives in the BSD format, and damaged ones.
pub(super) fn members(file: &File) -> Result<Vec<Member>, ElfError> {
    let size = file.metadata()?.len();
    let mut magic = [0; 8];
    ReadAt::read_exact_at(file, 0, &mut magic)?;
    if &magic == THIN_MAGIC {
        refuse!(
            "it is a thin archive, which only names its objects; split these and make an \
             archive of the host-only objects"
        );
    }
    if &magic != MAGIC {
        refuse!("expected a static library, which starts with `!<arch>`");
    }
    let mut members: Vec<Member> = Vec::new();
    let mut long_names = Vec::new();
    let mut at = MAGIC.len() as u64;
    while at < size {
        let mut header = [0; HEADER_SIZE as usize];
        if size - at < HEADER_SIZE {
            refuse!("a member's header at offset {at:#x} is truncated");
        }
        ReadAt::read_exact_at(file, at, &mut header)?;
        let text = |range| {
            std::str::from_utf8(&header[range])
                .unwrap_or_default()
                .trim_end()
        };
        let Ok(length) = text(SIZE_FIELD).parse::<u64>() else {
            refuse!("the member's header at offset {at:#x} has no size");
        };
        let offset = at + HEADER_SIZE;
        if &header[58..] != b"`\n" || length > size - offset {
            refuse!(
                "the member at offset {at:#x} ({length} bytes) ends past the end of the file \
                 ({size} bytes)"
            );
        }
        let field = text(0..16);
        if field.starts_with("#1/") || field.starts_with("__.SYMDEF") {
            refuse!("a static library in the BSD format; expected the GNU format");
        }
        let name = match field
            .strip_prefix('/')
            .and_then(|at| at.parse::<usize>().ok())
        {
            Some(at) => long_name(&long_names, at),
            None if field.starts_with('/') => field.to_owned(),
            None => field.strip_suffix('/').unwrap_or(field).to_owned(),
        };
        if name == "//" {
            long_names = vec![0; length as usize];
            ReadAt::read_exact_at(file, offset, &mut long_names)?;
        }
        members.push(Member {
            header: at,
            offset,
            size: length,
            name,
        });
        at = (offset + length).next_multiple_of(2);
    }
    check_symbol_tables(file, &members)?;
    Ok(members)
}

/// Refuses symbol tables that cannot be rewritten, before anything is written.
fn check_symbol_tables(file: &File, members: &[Member]) -> Result<(), ElfError> {
    let mut seen = false;
    for member in members.iter().filter(|member| member.name == "/") {
        let window = Window::new(file, member.offset, member.size);
        // A COFF library's second table is little-endian ("PE Format", "Second Linker Member").
        if seen {
            refuse!(
                "it has two symbol tables, as static libraries and import libraries of Windows (COFF) have; expected objects for Linux (ELF)"
            );
        }
        seen = true;
        symbol_table::<4>(&window, &|offset| {
            is_header(members, offset).then_some(offset)
        })?;
    }
    for member in members.iter().filter(|member| member.name == "/SYM64/") {
        let window = Window::new(file, member.offset, member.size);
        symbol_table::<8>(&window, &|offset| {
            is_header(members, offset).then_some(offset)
        })?;
    }
    Ok(())
}

fn is_header(members: &[Member], offset: u64) -> bool {
    let found = members.binary_search_by_key(&offset, |member| member.header);
    found.is_ok()
}

/// A name in the table of long names; each ends in `/` and a newline.
fn long_name(table: &[u8], at: usize) -> String {
    let rest = table.get(at..).unwrap_or_default();
    let name = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    name.strip_suffix('/').unwrap_or(&name).to_owned()
}

/// Writes the static library to the empty file `output`: members with a plan split, all others
/// unchanged. `plans` has one entry for each of `members`.
pub(super) fn rewrite(
    file: &File,
    members: &[Member],
    plans: &[Option<&Plan>],
    output: &File,
) -> Result<(), ElfError> {
    let sizes: Vec<u64> = members
        .iter()
        .zip(plans)
        .map(|(member, plan)| plan.map_or(member.size, Plan::size))
        .collect();
    let mut headers = Vec::new();
    let mut at = MAGIC.len() as u64;
    for size in &sizes {
        headers.push(at);
        at = (at + HEADER_SIZE + size).next_multiple_of(2);
    }
    let moved = |offset: u64| {
        let member = members.binary_search_by_key(&offset, |member| member.header);
        member.ok().map(|member| headers[member])
    };

    output.write_all_at(MAGIC, 0)?;
    for (((member, plan), size), to) in members.iter().zip(plans).zip(&sizes).zip(&headers) {
        let mut header = [0; HEADER_SIZE as usize];
        ReadAt::read_exact_at(file, member.header, &mut header)?;
        if *size != member.size {
            header[SIZE_FIELD].copy_from_slice(format!("{size:<10}").as_bytes());
        }
        output.write_all_at(&header, *to)?;
        let to = to + HEADER_SIZE;
        let window = Window::new(file, member.offset, member.size);
        match (plan, member.name.as_str()) {
            (Some(plan), _) => plan.apply(&window, output, to)?,
            (None, "/") => output.write_all_at(&symbol_table::<4>(&window, &moved)?, to)?,
            (None, "/SYM64/") => output.write_all_at(&symbol_table::<8>(&window, &moved)?, to)?,
            (None, _) => copy(&window, &(0..member.size), output, to)?,
        }
        if size % 2 == 1 {
            output.write_all_at(b"\n", to + size)?;
        }
    }
    Ok(())
}

/// Rewrites a symbol table with offsets of `WORD` bytes for the new header offsets.
fn symbol_table<const WORD: usize>(
    table: &Window<'_>,
    moved: &dyn Fn(u64) -> Option<u64>,
) -> Result<Vec<u8>, ElfError> {
    let mut bytes = vec![0; table.size()? as usize];
    table.read_exact_at(0, &mut bytes)?;
    let count = bytes.get(..WORD).map_or(0, big_endian);
    let end = count
        .checked_add(1)
        .and_then(|words| words.checked_mul(WORD as u64));
    let offsets = end.and_then(|end| bytes.get_mut(WORD..usize::try_from(end).ok()?));
    let Some(offsets) = offsets else {
        refuse!("its symbol table is too short for its {count} entries");
    };
    for word in offsets.chunks_exact_mut(WORD) {
        let old = big_endian(word);
        let Some(new) = moved(old) else {
            refuse!("its symbol table refers to a member at offset {old:#x}, which does not exist");
        };
        let new = new.to_be_bytes();
        if new[..8 - WORD].iter().any(|byte| *byte != 0) {
            refuse!("a member's new offset does not fit into the symbol table");
        }
        word.copy_from_slice(&new[8 - WORD..]);
    }
    Ok(bytes)
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Writes a static library of objects, given by name and file, to `output`. The same objects give
/// the same bytes: dates and owners are zero, as with `ar rcD`.
pub(crate) fn create(objects: &[(String, File)], output: &File) -> Result<(), ElfError> {
    let mut symbols = Vec::new();
    let mut names = Vec::new();
    let mut fields = Vec::new();
    for (index, (name, object)) in objects.iter().enumerate() {
        let defined = defined_symbols(&Relocatable::read(object)?)?;
        symbols.extend(defined.into_iter().map(|symbol| (index, symbol)));
        fields.push(format!("/{}", names.len()));
        names.extend(format!("{name}/\n").into_bytes());
    }
    if names.len() % 2 == 1 {
        names.push(b'\n');
    }
    let strings: usize = symbols.iter().map(|(_, symbol)| symbol.len() + 1).sum();
    let table_size = (4 + 4 * symbols.len() + strings).next_multiple_of(2);

    let tables = MAGIC.len() as u64 + 2 * HEADER_SIZE + (table_size + names.len()) as u64;
    let mut starts = Vec::new();
    let mut at = tables;
    for (_, object) in objects {
        starts.push(at);
        at = (at + HEADER_SIZE + object.metadata()?.len()).next_multiple_of(2);
    }
    let mut table = Vec::with_capacity(table_size);
    table.extend((symbols.len() as u32).to_be_bytes());
    for (index, _) in &symbols {
        let start = u32::try_from(starts[*index]).map_err(|_| {
            ElfError::Refused("the static library would be larger than 4 GiB".to_owned())
        })?;
        table.extend(start.to_be_bytes());
    }
    for (_, symbol) in &symbols {
        table.extend(symbol);
        table.push(0);
    }
    table.resize(table_size, 0);

    let mut start = MAGIC.to_vec();
    start.extend(header("/", table.len() as u64));
    start.extend(&table);
    start.extend(header("//", names.len() as u64));
    start.extend(&names);
    output.write_all_at(&start, 0)?;
    for ((field, start), (_, object)) in fields.iter().zip(&starts).zip(objects) {
        let size = object.metadata()?.len();
        output.write_all_at(&header(field, size), *start)?;
        let at = start + HEADER_SIZE;
        copy(&object, &(0..size), output, at)?;
        if size % 2 == 1 {
            output.write_all_at(b"\n", at + size)?;
        }
    }
    Ok(())
}

fn header(name: &str, size: u64) -> Vec<u8> {
    format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 0, 644).into_bytes()
}
