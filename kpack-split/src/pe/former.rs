//! What a joined image was before its device code was put back.
//!
//! The last bytes of its device code are a record of the headers that the join changed, so that taking the code out
//! gives the image that was joined, byte for byte. Before the record is what the file had in the section, if anything.

use object::pe;

use kpack_core::elf::{BinaryError, ReadAt};

use super::image::{Image, Section};

/// The last word of a record, and of one after what the file had in the section.
const MAGIC: u64 = u64::from_le_bytes(*b"kpkjoin1");
const MAGIC_SAVED: u64 = u64::from_le_bytes(*b"kpkjoin2");
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
    /// Whether the joined image has what the file had in the section; if not, that was zeroes.
    pub(super) has_saved: bool,
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

    /// The section as it was. What it has in the file is where its device code is now.
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
            has_saved: words[9] == MAGIC_SAVED,
        }))
    }

    /// The size that `section` has after a split, if the join let it grow over the addresses of device code that moved.
    pub(super) fn size_before_join<S>(&self, image: &Image<S>, section: &Section) -> Option<u64> {
        let (position, _) = self.code.as_ref()?;
        let before = image.sections.get(position.checked_sub(1)?)?;
        (before.address == section.address).then_some(self.before)
    }

    /// What the file had in the section, which [`read`](Self::read) gave this record of.
    pub(super) fn saved<S: ReadAt>(
        &self,
        image: &Image<S>,
        code: &Section,
    ) -> Result<Vec<u8>, BinaryError> {
        let size = self.code.as_ref().map_or(0, |(_, old)| old.file_size);
        if !self.has_saved {
            return Ok(vec![0; size as usize]);
        }
        let end = code.offset + (code.in_file().end - code.address);
        image.bytes(end.saturating_sub(SIZE + size), size, "what a join saved")
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
            if self.has_saved { MAGIC_SAVED } else { MAGIC },
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// The size of the record of a join at the end of the section `code`, with what is saved before it, or 0.
pub(super) fn record_size<S: ReadAt>(image: &Image<S>, code: &Section) -> Result<u64, BinaryError> {
    let size = code.in_file().end - code.address;
    if size < SIZE {
        return Ok(0);
    }
    let bytes = image.bytes(code.offset + size - SIZE, SIZE, "the end of the device code")?;
    let words = Vec::from_iter(bytes.chunks_exact(8).map(word));
    let is_record = words[8] == WORDS as u64 && [MAGIC, MAGIC_SAVED].contains(&words[9]);
    let saved = if words[9] == MAGIC_SAVED { words[3] } else { 0 };
    let all = saved.saturating_add(SIZE);
    Ok(if is_record && all <= size { all } else { 0 })
}

fn word(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
}
