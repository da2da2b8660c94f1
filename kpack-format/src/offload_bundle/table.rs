//! Reads the table of a plain bundle: magic, number of entries, entries.

use std::io::Read;

use super::bundle::{Entry, PLAIN_MAGIC};
use super::entry_id::EntryId;
use super::error::{BundleError, failed, malformed};
use super::source::read_up_to;
use crate::{Reason, little_endian};

/// Maximum number of entries; real bundles have fewer.
const MOST_ENTRIES: u64 = 4096;
/// Maximum length of an entry ID, in bytes.
const MAX_ID: u64 = 256;

/// Reads the table at the start of `source`, a bundle with `size` available bytes. Also returns
/// where its last entry ends.
pub(super) fn read<R: Read>(source: &mut R, size: u64) -> Result<(Vec<Entry>, u64), BundleError> {
    let mut table = Table { source, at: 0 };
    let magic = table.bytes(PLAIN_MAGIC.len() as u64, "the magic")?;
    if magic != PLAIN_MAGIC {
        let found = format!("{magic:02x?}");
        return malformed(0, Reason::mismatch("", "the magic `__CLANG_OFFLOAD_BUNDLE__`", found));
    }
    let count_at = table.at;
    let count = table.word("the number of entries")?;
    if count > MOST_ENTRIES {
        return malformed!(count_at, "{count} entries (expected at most {MOST_ENTRIES})");
    }
    let mut entries = Vec::new();
    let mut end = 0;
    for index in 0..count {
        let entry = table.entry(index, size)?;
        end = end.max(entry.offset + entry.size);
        entries.push(entry);
    }
    let table_end = table.at;
    let inside = |entry: &&Entry| entry.size > 0 && entry.offset < table_end;
    if let Some(entry) = entries.iter().find(inside) {
        return malformed!(
            entry.offset,
            "entry {} begins within the table, which ends at {table_end:#x}",
            entry.id
        );
    }
    Ok((entries, end.max(table_end)))
}

struct Table<'a, R> {
    source: &'a mut R,
    at: u64,
}

impl<R: Read> Table<'_, R> {
    fn bytes(&mut self, size: u64, what: &str) -> Result<Vec<u8>, BundleError> {
        let bytes = read_up_to(self.source, size).or_else(failed(self.at))?;
        if bytes.len() as u64 != size {
            return malformed!(self.at, "truncated: {what} is missing");
        }
        self.at += size;
        Ok(bytes)
    }

    /// The entry `index` of a bundle of `size` bytes.
    fn entry(&mut self, index: u64, size: u64) -> Result<Entry, BundleError> {
        let at = self.at;
        let offset = self.word("an entry's offset")?;
        let length = self.word("an entry's size")?;
        let id_length = self.word("the length of an entry ID")?;
        if id_length > MAX_ID {
            return malformed!(
                at + 16,
                "the ID of entry {index} has {id_length} bytes (expected at most {MAX_ID})"
            );
        }
        let id_at = self.at;
        let id = self.bytes(id_length, "an entry ID")?;
        let text = String::from_utf8_lossy(&id);
        let id = EntryId::read(&text)
            .or_else(|reason| malformed!(id_at, "entry ID {text:?} of entry {index}: {reason}"))?;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return malformed!(
                at,
                "truncated: entry {index}, {id} ({length:#x} bytes at offset {offset:#x}), \
                     ends past the end of the bundle ({size:#x})"
            );
        }
        Ok(Entry { id, offset, size: length })
    }

    fn word(&mut self, what: &str) -> Result<u64, BundleError> {
        Ok(little_endian(&self.bytes(8, what)?))
    }
}
