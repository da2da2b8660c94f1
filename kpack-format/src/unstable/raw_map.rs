//! Keeps the keys and values of a MessagePack map as bytes, to merge maps without interpreting
//! them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde::ser::Serializer;

use crate::wire::{Input, Writer};

pub use crate::wire::MessagePackError;

/// How deep values may be nested: as deep as in a library of [Tensile](super::tensile).
const MAX_DEPTH: usize = 512;

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
    let input = Input::new(bytes);
    let entries = input.read_nested(Entries(&input), MAX_DEPTH)?;
    input.expect_end("map")?;
    Ok(entries)
}

struct Entries<'i, 'a>(&'i Input<'a>);

impl<'de, 'a> DeserializeSeed<'de> for Entries<'_, 'a> {
    type Value = Vec<Entry<'a>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, 'a> Visitor<'de> for Entries<'_, 'a> {
    type Value = Vec<Entry<'a>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        loop {
            let start = self.0.offset();
            let Some(key) = map.next_key_seed(AnyKey)? else {
                return Ok(entries);
            };
            let (key_bytes, start) = (self.0.since(start), self.0.offset());
            map.next_value::<IgnoredAny>()?;
            entries.push(Entry { key, key_bytes, value_bytes: self.0.since(start) });
        }
    }
}

struct AnyKey;

impl<'de> DeserializeSeed<'de> for AnyKey {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for AnyKey {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer or a string as the key")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Key, E> {
        Ok(Key::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Key, E> {
        let signed = i64::try_from(number);
        signed.map(Key::Number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E>(self, text: &str) -> Result<Key, E> {
        Ok(Key::Text(text.to_owned()))
    }
}

/// Encodes a map of `entries` (encoded keys and values), in their order.
pub fn to_bytes<'a>(entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut map = Writer::new(Vec::new());
    map.serialize_map(Some(entries.len())).expect("the size of a map can be written to memory");
    let mut bytes = map.into_inner();
    for (key, value) in entries {
        bytes.extend(key);
        bytes.extend(value);
    }
    bytes
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
    fn values_of_every_type_are_kept_to_their_last_byte() {
        let values: [&[u8]; 14] = [
            b"\xc0",
            b"\x7f",
            b"\xe0",
            b"\xcd\x01\x02",
            b"\xcb12345678",
            b"\xa3abc",
            b"\xda\x00\x01\xff",
            b"\xc5\x00\x01\xff",
            b"\xd4\x01a",
            b"\xd8\x010123456789abcdef",
            b"\xc7\x02\x01ab",
            b"\x92\x91\xc0\x90",
            b"\xdd\x00\x00\x00\x01\xc3",
            b"\x81\xa1a\x82\x01\xde\x00\x00\x02\xc2",
        ];
        for value in values {
            let bytes = [b"\x82\xa1a", value, b"\xcc\x01\xc0"].concat();
            let entries = read(&bytes).unwrap();
            assert_eq!(entries[0].value_bytes, value);
            assert_eq!(
                (&entries[1].key, entries[1].key_bytes),
                (&Key::Number(1), &b"\xcc\x01"[..])
            );
            let truncated = [b"\x81\xa1a", &value[..value.len() - 1]].concat();
            assert!(read(&truncated).is_err(), "{value:02x?}");
        }
        assert!(read(b"\x81\xa1a\xc1").is_err());
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
