//! MessagePack in and out: maps with field names as keys, as every reader of these files expects.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Cursor;
use std::marker::PhantomData;

use rmp_serde::Deserializer;
use serde::de::{self, Deserialize, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::ser::Serialize;

/// Deeper nesting than any of the formats has; keys that are not known are skipped to this depth.
const MAX_DEPTH: usize = 32;

/// A map, with field names as keys.
pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    // Fails only where a value refuses to be serialized, which none of the formats' does.
    rmp_serde::to_vec_named(value).unwrap_or_default()
}

/// Reads a value at the start of `bytes`; also tells how many bytes it occupies.
pub(crate) fn read<T: DeserializeOwned>(
    bytes: &[u8],
) -> Result<(T, usize), rmp_serde::decode::Error> {
    let mut deserializer = Deserializer::new(Cursor::new(bytes));
    deserializer.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut deserializer)?;
    let size = deserializer.position() as usize;
    Ok((value, size))
}

/// For `deserialize_with`: a list of at most `MAX` elements. An element can be one byte here and many
/// in memory, so what is allocated must not depend on the size of the file alone.
pub(crate) fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: de::Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Bounded::<Vec<T>, MAX>(PhantomData))
}

/// As [`list`], for a key that need not be there.
pub(crate) fn optional_list<'de, D, T, const MAX: usize>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error>
where
    D: de::Deserializer<'de>,
    T: Deserialize<'de>,
{
    list::<D, T, MAX>(deserializer).map(Some)
}

/// For `deserialize_with`: a map of at most `MAX` entries.
pub(crate) fn map<'de, D, T, const MAX: usize>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error>
where
    D: de::Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_map(Bounded::<BTreeMap<String, T>, MAX>(PhantomData))
}

struct Bounded<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<Vec<T>, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            list.push(element);
        }
        Ok(list)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de>
    for Bounded<BTreeMap<String, T>, MAX>
{
    type Value = BTreeMap<String, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of at most {MAX} entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry()? {
            if map.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}
