//! MessagePack in and out: maps with field names as keys, as every reader of these files expects.

use std::io::Cursor;

use rmp_serde::Deserializer;
use serde::de::DeserializeOwned;
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
