//! Reads which kernels a code object has from its metadata, a note near its start (LLVM, "User Guide for AMDGPU
//! Backend", "Code Object Metadata").

use std::collections::BTreeSet;

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use serde::de::{DeserializeSeed, Deserializer, MapAccess};

use crate::little_endian;
use crate::wire::{self, Input, ListOf, MessagePackError, Record, TextIn};

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
    let input = Input::new(metadata);
    input.read(Metadata { input: &input, kernels: Vec::new() })
}

/// A code object's metadata.
struct Metadata<'i, 'a> {
    input: &'i Input<'a>,
    kernels: Vec<Option<&'a str>>,
}

impl<'de> Record<'de> for Metadata<'_, '_> {
    const KEYS: &'static [&'static str] = &["amdhsa.kernels"];

    fn value<A: MapAccess<'de>>(&mut self, _: &str, map: &mut A) -> Result<(), A::Error> {
        self.kernels.extend(map.next_value_seed(ListOf(usize::MAX, Kernel(self.input)))?);
        Ok(())
    }
}

impl<'de, 'a> DeserializeSeed<'de> for Metadata<'_, 'a> {
    type Value = BTreeSet<&'a str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let read = wire::record(self, deserializer)?;
        Ok(read.kernels.into_iter().flatten().collect())
    }
}

/// The name of a kernel.
#[derive(Clone, Copy)]
struct Kernel<'i, 'a>(&'i Input<'a>);

impl<'de, 'a> DeserializeSeed<'de> for Kernel<'_, 'a> {
    type Value = Option<&'a str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        wire::record(KernelFields { input: self.0, name: None }, deserializer).map(|read| read.name)
    }
}

struct KernelFields<'i, 'a> {
    input: &'i Input<'a>,
    name: Option<&'a str>,
}

impl<'de> Record<'de> for KernelFields<'_, '_> {
    const KEYS: &'static [&'static str] = &[".name"];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        wire::field(&mut self.name, key, TextIn(self.input), map)
    }
}
