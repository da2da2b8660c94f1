//! What a joined image was before its device code was put back.
//!
//! The last bytes of its device code are a record of the headers that the join changed, so that taking the code out
//! gives the image that was joined, byte for byte.

use object::pe;

use kpack_core::elf::{BinaryError, ReadAt};

use super::image::{Image, Section};

/// The last word of a record: `kpkjoin1`.
const MAGIC: u64 = u64::from_le_bytes(*b"kpkjoin1");
/// The words of a record.
const WORDS: usize = 10;
/// The size of a record in bytes.
pub(super) const SIZE: u64 = 8 * WORDS as u64;

/// The headers of a split image that a join changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Former {
    /// The device code's section and its index, if the split image has one.
    pub(super) code: Option<(usize, FormerSection)>,
    /// The size of the section before it.
    pub(super) before: u64,
    pub(super) image_size: u64,
    pub(super) headers_size: u64,
}

/// What a join changes of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FormerSection {
    pub(super) address: u64,
    virtual_size: u64,
    pub(super) file_size: u64,
    flags: u64,
}

impl FormerSection {
    pub(super) fn of(section: &Section) -> Self {
        Self {
            address: section.address,
            virtual_size: section.virtual_size,
            file_size: section.file_size,
            flags: section.flags.0.into(),
        }
    }

    /// Whether the device code's section may have been so: a join changes its contents, and not how it may be accessed.
    pub(super) fn fits(&self, section: &Section) -> bool {
        let contents = pe::IMAGE_SCN_CNT_CODE.0
            | pe::IMAGE_SCN_CNT_INITIALIZED_DATA.0
            | pe::IMAGE_SCN_CNT_UNINITIALIZED_DATA.0;
        let changed = u64::from(section.flags.0) ^ self.flags;
        changed & !u64::from(contents) == 0
    }

    /// The section as it was. What it has in the file is zeroes where its device code is now.
    pub(super) fn restore(&self, section: &Section) -> Section {
        Section {
            address: self.address,
            virtual_size: self.virtual_size,
            file_size: self.file_size,
            offset: if self.file_size > 0 { section.offset } else { 0 },
            flags: pe::SectionFlags(self.flags as u32),
            ..section.clone()
        }
    }
}

impl Former {
    /// The record at the end of the section `code`, if it has one.
    pub(super) fn read<S: ReadAt>(
        image: &Image<S>,
        code: &Section,
    ) -> Result<Option<Self>, BinaryError> {
        if record_size(image, code)? == 0 {
            return Ok(None);
        }
        let end = code.offset + (code.in_file().end - code.address);
        let bytes = image.bytes(end - SIZE, SIZE, "the record of a join")?;
        let words = Vec::from_iter(bytes.chunks_exact(8).map(word));
        let section = FormerSection {
            address: words[1],
            virtual_size: words[2],
            file_size: words[3],
            flags: words[4],
        };
        let is_sound = words[1..8].iter().all(|word| *word <= u64::from(u32::MAX))
            && section.file_size <= code.file_size;
        let code = match words[0] {
            0 => None,
            position => Some((usize::try_from(position - 1).unwrap_or(usize::MAX), section)),
        };
        Ok(is_sound.then_some(Self {
            code,
            before: words[5],
            image_size: words[6],
            headers_size: words[7],
        }))
    }

    /// The record, with its length and magic at its end.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (position, section) = match &self.code {
            Some((index, section)) => (*index as u64 + 1, *section),
            None => (0, FormerSection { address: 0, virtual_size: 0, file_size: 0, flags: 0 }),
        };
        let words: [u64; WORDS] = [
            position,
            section.address,
            section.virtual_size,
            section.file_size,
            section.flags,
            self.before,
            self.image_size,
            self.headers_size,
            WORDS as u64,
            MAGIC,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// The size of the record of a join at the end of the section `code`, or 0.
pub(super) fn record_size<S: ReadAt>(image: &Image<S>, code: &Section) -> Result<u64, BinaryError> {
    let size = code.in_file().end - code.address;
    if size < SIZE {
        return Ok(0);
    }
    let end = image.bytes(code.offset + size - 16, 16, "the end of the device code")?;
    let (words, magic) = (word(&end[..8]), word(&end[8..]));
    let is_record = magic == MAGIC && words == WORDS as u64;
    Ok(if is_record { SIZE } else { 0 })
}

fn word(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
}
