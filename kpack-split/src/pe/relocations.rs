//! Base relocations: the words that hold addresses.

use std::cell::RefCell;
use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;

use kpack_core::elf::{BinaryError, ReadAt, pods, refuse};

use super::image::{Image, Section};

/// Size of a block's header, in bytes.
const BLOCK: u64 = size_of::<pe::ImageBaseRelocation>() as u64;

/// The addresses of the relocated words.
#[derive(Debug, Clone)]
pub(super) struct Relocations {
    /// Those of 64-bit words, in order.
    words: Vec<u32>,
    /// Whether the image has no relocations, so that it runs at its linked address.
    is_fixed: bool,
}

impl Relocations {
    pub(super) fn read<S: ReadAt>(image: &Image<S>) -> Result<Self, BinaryError> {
        let flags = image.header.characteristics.get(LE);
        let index = pe::IMAGE_DIRECTORY_ENTRY_BASERELOC;
        let table = image.directory_bytes(index, "the base relocations")?;
        let mut relocations = Self {
            words: Vec::new(),
            is_fixed: flags.0 & pe::IMAGE_FILE_RELOCS_STRIPPED.0 != 0 || table.is_none(),
        };
        let Some((_, bytes)) = table else {
            return Ok(relocations);
        };
        let size = bytes.len() as u64;
        let mut at = 0;
        while at + BLOCK <= size {
            let block: pe::ImageBaseRelocation = pods(&bytes[at as usize..])[0];
            let page = block.virtual_address.get(LE);
            let length = u64::from(block.size_of_block.get(LE));
            // Some linkers end the table with zeroes.
            if length == 0 {
                break;
            }
            if length < BLOCK || at + length > size {
                refuse!("the block of base relocations at {at:#x} has {length} bytes");
            }
            let entries: &[object::U16<LE>] =
                pods(&bytes[(at + BLOCK) as usize..(at + length) as usize]);
            for entry in entries.iter().map(|entry| entry.get(LE)) {
                if entry >> 12 == pe::IMAGE_REL_BASED_DIR64.0 {
                    let address = page.checked_add(u32::from(entry & 0xfff));
                    relocations.words.extend(address);
                }
            }
            at += length;
        }
        relocations.words.sort_unstable();
        Ok(relocations)
    }

    /// What the word at an address, which the file has as `in_place`, points to; `None` if it is no pointer.
    pub(super) fn target<S>(&self, image: &Image<S>, address: u64, in_place: u64) -> Option<u64> {
        let target = in_place.checked_sub(image.base())?;
        let is_inside = target < image.image_size();
        (is_inside && self.may_be_address(address)).then_some(target)
    }

    /// Whether all addresses are fixed.
    pub(super) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Whether the 64-bit word at an address may be an address.
    pub(super) fn may_be_address(&self, address: u64) -> bool {
        self.is_fixed || self.has(address)
    }

    fn has(&self, address: u64) -> bool {
        let known = |address| self.words.binary_search(&address).is_ok();
        u32::try_from(address).is_ok_and(known)
    }

    /// The relocated words within `addresses`.
    pub(super) fn within(&self, addresses: &Range<u64>) -> &[u32] {
        let from = |address: u64| self.words.partition_point(|word| u64::from(*word) < address);
        &self.words[from(addresses.start)..from(addresses.end).max(from(addresses.start))]
    }

    /// Calls `each` with the address of each relocated word of a section, the word, and the one before it.
    pub(super) fn for_each<S: ReadAt>(
        &self,
        image: &Image<S>,
        section: &Section,
        each: &mut dyn FnMut(u64, u64, u64) -> Result<(), BinaryError>,
    ) -> Result<(), BinaryError> {
        let reader = Words { image, section, known: RefCell::default() };
        for address in self.within(&section.in_file()) {
            let address = u64::from(*address);
            if let Some(word) = reader.word(address)? {
                let before =
                    address.checked_sub(8).map(|before| reader.word(before)).transpose()?;
                each(address, word, before.flatten().unwrap_or(0))?;
            }
        }
        Ok(())
    }
}

/// Whether two consecutive words of a section, at aligned addresses, are as `matches` says.
pub(super) fn has_words<S: ReadAt>(
    image: &Image<S>,
    section: &Section,
    matches: &dyn Fn(u64, u64) -> bool,
) -> Result<bool, BinaryError> {
    let in_file = section.in_file();
    let mut start = in_file.start.next_multiple_of(8);
    while start + 16 <= in_file.end {
        let size = PIECE.min(in_file.end - start) / 8 * 8;
        let offset = section.offset + (start - in_file.start);
        let bytes = image.bytes(offset, size, &section.name)?;
        let words: &[object::U64<LE>] = pods(&bytes);
        let mut pairs = words.windows(2);
        if pairs.any(|pair| matches(pair[0].get(LE), pair[1].get(LE))) {
            return Ok(true);
        }
        // The last word may be the first of two.
        start += size - 8;
    }
    Ok(false)
}

/// The words of a section, read piece by piece.
struct Words<'a, S> {
    image: &'a Image<S>,
    section: &'a Section,
    /// Bytes from an address on.
    known: RefCell<(u64, Vec<u8>)>,
}

/// Bytes read at a time.
const PIECE: u64 = 64 << 10;

impl<S: ReadAt> Words<'_, S> {
    /// The word at an address; `None` if the file has not all of it.
    fn word(&self, address: u64) -> Result<Option<u64>, BinaryError> {
        let in_file = self.section.in_file();
        if address < in_file.start || address + 8 > in_file.end {
            return Ok(None);
        }
        let mut known = self.known.borrow_mut();
        if address < known.0 || address + 8 > known.0 + known.1.len() as u64 {
            // The word before may be asked for next.
            let start = address.saturating_sub(8).max(in_file.start);
            let size = PIECE.min(in_file.end - start);
            let offset = self.section.offset + (start - in_file.start);
            *known = (start, self.image.bytes(offset, size, &self.section.name)?);
        }
        let at = (address - known.0) as usize;
        let word: object::U64<LE> = pods(&known.1[at..])[0];
        Ok(Some(word.get(LE)))
    }
}
