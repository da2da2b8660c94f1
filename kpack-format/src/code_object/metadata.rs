//! Reads which kernels a code object has from its metadata, a note near its start (LLVM, "User Guide for AMDGPU
//! Backend", "Code Object Metadata").

use std::collections::BTreeSet;

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::little_endian;
use crate::message_pack::{MessagePackError, Reader};

/// The type of the note with metadata, and its owner.
const METADATA: u64 = 32;
const OWNER: &[u8] = b"AMDGPU\0";
/// Size of the header of a note, in bytes.
const NOTE: usize = 12;

/// The notes of a code object that `head` begins, in the file.
fn notes(head: &[u8]) -> Option<impl Iterator<Item = (u64, u64)>> {
    let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(head).ok()?;
    let start = usize::try_from(header.e_phoff.get(LE)).ok()?;
    let count = header.e_phnum.get(LE).into();
    let segments = head.get(start..)?;
    let (segments, _) = pod::slice_from_bytes::<elf::ProgramHeader64<LE>>(segments, count).ok()?;
    let notes = segments.iter().filter(|segment| segment.p_type.get(LE) == elf::PT_NOTE);
    Some(notes.map(|segment| (segment.p_offset.get(LE), segment.p_filesz.get(LE))))
}

/// How many bytes from its start contain the metadata of the code object that `head` begins; `None` if `head` is too short
/// to tell, or no code object.
pub fn metadata_end(head: &[u8]) -> Option<u64> {
    Some(notes(head)?.map(|(start, size)| start.saturating_add(size)).max().unwrap_or(0))
}

/// The names of the kernels of the code object that `head` begins: those that host code registers. `None` if `head` does
/// not contain its metadata, as in versions before 3, or that is damaged.
pub fn kernel_names(head: &[u8]) -> Option<BTreeSet<&str>> {
    for (start, size) in notes(head)? {
        let mut rest = part(head, start, size)?;
        while rest.len() >= NOTE {
            let word = |index: usize| little_endian(&rest[4 * index..][..4]);
            let (owner, content, kind) = (word(0), word(1), word(2));
            let at = NOTE as u64 + owner.next_multiple_of(4);
            if kind == METADATA && part(rest, NOTE as u64, owner) == Some(OWNER) {
                return names_in(part(rest, at, content)?).ok();
            }
            let next = at + content.next_multiple_of(4);
            rest = usize::try_from(next).ok().and_then(|next| rest.get(next..)).unwrap_or_default();
        }
    }
    None
}

fn part(bytes: &[u8], start: u64, size: u64) -> Option<&[u8]> {
    let end = usize::try_from(start.checked_add(size)?).ok()?;
    bytes.get(usize::try_from(start).ok()?..end)
}

fn names_in(metadata: &[u8]) -> Result<BTreeSet<&str>, MessagePackError> {
    let mut names = BTreeSet::new();
    Reader::new(metadata).map(|key, value| {
        if key != "amdhsa.kernels" {
            return value.skip().map(drop);
        }
        let kernels = value.list(usize::MAX, |kernel| {
            kernel.map(|key, value| {
                match key {
                    ".name" => drop(names.insert(value.text()?)),
                    _ => drop(value.skip()?),
                }
                Ok(())
            })
        });
        kernels.map(drop)
    })?;
    Ok(names)
}
