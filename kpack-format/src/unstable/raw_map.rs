//! Keeps the keys and values of a MessagePack map as bytes, to merge maps without interpreting
//! them.

use crate::message_pack::{Reader, Writer};

pub use crate::wire::MessagePackError;

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
    /// The encoded key.
    pub key_bytes: &'a [u8],
    /// The encoded value.
    pub value_bytes: &'a [u8],
}

/// The entries of the MessagePack map that fills `bytes`, in file order.
///
/// # Errors
/// Bytes that are not one map with integers or strings as keys.
pub fn read(bytes: &[u8]) -> Result<Vec<Entry<'_>>, MessagePackError> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    for _ in 0..reader.map_size(usize::MAX)? {
        let mut inner = reader.clone();
        let key_bytes = reader.skip()?;
        let key = match (inner.integer(), inner.string()) {
            (Ok(number), _) => Key::Number(number),
            (_, Ok(text)) => Key::Text(text),
            _ => return inner.fail("expected an integer or a string as the key"),
        };
        entries.push(Entry { key, key_bytes, value_bytes: reader.skip()? });
    }
    reader.expect_end("map")?;
    Ok(entries)
}

/// Encodes a map of `entries` (encoded keys and values), in their order.
pub fn to_bytes<'a>(entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut map = Writer::default();
    map.map(entries.len());
    for (key, value) in entries {
        map.0.extend(key);
        map.0.extend(value);
    }
    map.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map() -> Vec<u8> {
        let value = json!({
            "gfx1100": [],
            "gfx90a": -70_000,
            "gfx942": {"LayerNorm": [{"co_path": "extop_gfx942.co", "limit": 1.5}, null]},
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
            let keys: Vec<Vec<u8>> =
                (0..count).map(|key: i64| rmp_serde::to_vec(&key).unwrap()).collect();
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
