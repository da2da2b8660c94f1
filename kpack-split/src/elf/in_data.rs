//! Offload bundles in read-only data, outside of the section for device code. No wrapper refers to them: the
//! program hands them to the HIP runtime itself.

use memchr::memchr2_iter;
use object::elf;

use super::{BinaryError, FAT_SECTION, Image, ReadAt, Section};
use kpack_format::offload_bundle::{COMPRESSED_MAGIC, PLAIN_MAGIC};

/// Bytes searched at a time.
const CHUNK: u64 = 1 << 20;
/// So many bytes decide whether a bundle begins.
const HEAD: u64 = 64;

/// The bundles in a section of read-only data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataBundles {
    /// The name of the section.
    pub section: String,
    /// The file offset of its end.
    pub end: u64,
    /// The file offsets at which a bundle seems to begin, in order.
    pub starts: Vec<u64>,
}

/// The sections that have bundles.
pub(crate) fn bundles_in_data<S: ReadAt>(
    image: &Image<S>,
) -> Result<Vec<DataBundles>, BinaryError> {
    let is_data = |section: &&Section| {
        let flags = section.flags.0 & (elf::SHF_ALLOC | elf::SHF_WRITE | elf::SHF_EXECINSTR).0;
        flags == elf::SHF_ALLOC.0
            && section.kind == elf::SHT_PROGBITS
            && section.name != FAT_SECTION
            && section.file_end() <= image.size
    };
    let mut sections = Vec::from_iter(image.sections.iter().filter(is_data));
    sections.sort_by_key(|section| section.offset);
    let mut found = Vec::new();
    // Sections of a damaged file may overlap. Each byte is searched once.
    let mut searched = 0;
    for section in sections {
        let mut found_here = Vec::new();
        let end = section.file_end();
        for start in (section.offset.max(searched)..end).step_by(CHUNK as usize) {
            let bytes = image.bytes(start, (CHUNK + HEAD).min(end - start), &section.name)?;
            // A library has up to gigabytes of data, so not each byte is worth a call.
            let first = memchr2_iter(b'_', b'C', &bytes[..bytes.len().min(CHUNK as usize)]);
            let starts = first.filter(|at| is_bundle(&bytes[*at..]));
            found_here.extend(starts.map(|at| start + at as u64));
        }
        searched = searched.max(end);
        if !found_here.is_empty() {
            found.push(DataBundles { section: section.name.clone(), end, starts: found_here });
        }
    }
    Ok(found)
}

/// Whether a bundle begins here. The magic alone is in each program that reads bundles.
fn is_bundle(bytes: &[u8]) -> bool {
    match bytes {
        [b'_', ..] => bytes.strip_prefix(PLAIN_MAGIC).is_some_and(is_table),
        [b'C', ..] => bytes.strip_prefix(COMPRESSED_MAGIC).is_some_and(is_compressed),
        _ => false,
    }
}

/// Whether the number of entries and the first entry's ID are those of a bundle.
fn is_table(rest: &[u8]) -> bool {
    // The number of entries; of the first one its offset, its size, and the length of its ID.
    let word = |index: usize| {
        let word = rest.get(index * 8..index * 8 + 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    };
    let is_small = |number: Option<u64>| number.is_some_and(|number| (1..=4096).contains(&number));
    let kinds: [&[u8]; 3] = [b"host-", b"hip", b"openmp"];
    let id = rest.get(32..).unwrap_or_default();
    is_small(word(0)) && is_small(word(3)) && kinds.iter().any(|kind| id.starts_with(kind))
}

/// Whether a version, a method, and at the end of that version's header the method's own magic follow.
fn is_compressed(rest: &[u8]) -> bool {
    let header = match rest {
        [1, 0, ..] => 16,
        [2, 0, ..] => 20,
        [3, 0, ..] => 28,
        _ => return false,
    };
    let data = rest.get(header..).unwrap_or_default();
    match rest[2..] {
        [0, 0, ..] => data.starts_with(&[0x78]),
        [1, 0, ..] => data.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]),
        _ => false,
    }
}
