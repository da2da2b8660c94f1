//! A MessagePack map as the bytes of its keys and values, to put maps together without knowing what is
//! in them.

use std::fmt;
use std::io::Cursor;

use rmp_serde::Deserializer;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Values nest less than this.
const MAX_DEPTH: usize = 128;

/// A key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// An integer.
    Number(i64),
    /// A string.
    Text(String),
}

/// An entry of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: Key,
    /// The key as it is encoded.
    pub key_bytes: &'a [u8],
    /// The value as it is encoded.
    pub value_bytes: &'a [u8],
}

/// Why bytes are no such map.
#[derive(Debug)]
pub struct RawMapError {
    /// Offset in bytes.
    pub offset: usize,
    /// What was expected and what was found.
    pub reason: String,
}

impl fmt::Display for RawMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, reason } = self;
        write!(f, "at offset {offset:#x}: {reason}")
    }
}

impl std::error::Error for RawMapError {}

/// The entries of the MessagePack map that fills `bytes`, in its order.
///
/// # Errors
/// Bytes that are not one map with integers or strings as keys.
pub fn read(bytes: &[u8]) -> Result<Vec<Entry<'_>>, RawMapError> {
    let (count, mut at) = header(bytes)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let key_end = at + skip(bytes, at)?;
        let value_end = key_end + skip(bytes, key_end)?;
        let (key_bytes, value_bytes) = (&bytes[at..key_end], &bytes[key_end..value_end]);
        let key = match rmp_serde::from_slice(key_bytes) {
            Ok(number) => Key::Number(number),
            Err(_) => match rmp_serde::from_slice(key_bytes) {
                Ok(text) => Key::Text(text),
                Err(_) => return wrong(at, "expected an integer or a string as the key"),
            },
        };
        entries.push(Entry {
            key,
            key_bytes,
            value_bytes,
        });
        at = value_end;
    }
    if at != bytes.len() {
        return wrong(at, format!("{} bytes follow the map", bytes.len() - at));
    }
    Ok(entries)
}

/// The map of `entries`, encoded keys and values, in their order.
pub fn to_bytes<'a>(entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    // MessagePack specification, "map format family"; numbers are big-endian.
    let count = entries.len();
    let mut bytes = match (u8::try_from(count), u16::try_from(count)) {
        (Ok(count @ 0..=15), _) => vec![0x80 | count],
        (_, Ok(count)) => [&[0xde][..], &count.to_be_bytes()].concat(),
        _ => [&[0xdf][..], &(count as u32).to_be_bytes()].concat(),
    };
    for (key, value) in entries {
        bytes.extend(key);
        bytes.extend(value);
    }
    bytes
}

/// The number of entries, and where the first is.
fn header(bytes: &[u8]) -> Result<(usize, usize), RawMapError> {
    match bytes {
        [marker @ 0x80..=0x8f, ..] => Ok((usize::from(marker & 0xf), 1)),
        [0xde, a, b, ..] => Ok((usize::from(u16::from_be_bytes([*a, *b])), 3)),
        [0xdf, a, b, c, d, ..] => Ok((u32::from_be_bytes([*a, *b, *c, *d]) as usize, 5)),
        _ => wrong(0, "expected a MessagePack map"),
    }
}

/// How many bytes the value at `at` has.
fn skip(bytes: &[u8], at: usize) -> Result<usize, RawMapError> {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut deserializer = Deserializer::new(Cursor::new(rest));
    deserializer.set_max_depth(MAX_DEPTH);
    match IgnoredAny::deserialize(&mut deserializer) {
        Ok(_) => Ok(deserializer.position() as usize),
        Err(error) => wrong(at, error.to_string()),
    }
}

fn wrong<T>(offset: usize, reason: impl Into<String>) -> Result<T, RawMapError> {
    let reason = reason.into();
    Err(RawMapError { offset, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map() -> Vec<u8> {
        let value = json!({
            "gfx942": {"LayerNorm": [{"co_path": "extop_gfx942.co", "limit": 1.5}, null]},
            "gfx1100": [],
            "gfx90a": -70_000,
        });
        rmp_serde::to_vec(&value).unwrap()
    }

    #[test]
    fn what_was_read_is_written_again() {
        let map = map();
        let entries = read(&map).unwrap();
        let keys: Vec<&Key> = entries.iter().map(|entry| &entry.key).collect();
        let text = |key: &str| Key::Text(key.to_owned());
        assert_eq!(keys, [&text("gfx1100"), &text("gfx90a"), &text("gfx942")]);
        let parts = entries.iter().map(|e| (e.key_bytes, e.value_bytes));
        assert_eq!(to_bytes(parts), map);
    }

    #[test]
    fn maps_of_all_sizes_with_numbers_as_keys() {
        for count in [0, 15, 16, 65_535, 65_536] {
            let keys: Vec<Vec<u8>> = (0..count)
                .map(|key: i64| rmp_serde::to_vec(&key).unwrap())
                .collect();
            let bytes = to_bytes(keys.iter().map(|key| (&key[..], &[0xc0][..])));
            let entries = read(&bytes).unwrap();
            assert_eq!(entries.len(), count as usize);
            let numbers = entries.iter().map(|entry| entry.key.clone());
            assert!(numbers.eq((0..count).map(Key::Number)));
        }
    }

    #[test]
    fn no_truncation_is_read_as_a_map() {
        let whole = map();
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "{end}");
        }
        let more = [&whole[..], &[0]].concat();
        let error = read(&more).unwrap_err().to_string();
        assert!(error.contains("1 bytes follow the map"), "{error}");
        let huge = [0xdf, 0xff, 0xff, 0xff, 0xff];
        assert!(read(&huge).is_err());
        let key = read(&[0x81, 0xc0, 0xc0]).unwrap_err().to_string();
        assert!(key.contains("at offset 0x1: expected an integer"), "{key}");
    }
}
