//! The formats in MessagePack as serde types, which `rmp_serde` reads and writes.
//!
//! This module adds what `rmp_serde` leaves to its callers: the offset of a value, errors that name it by its keys, and
//! bounds on lists and maps before they take memory. Implementations of `Deserialize` are by hand. Derived ones would take
//! a list of the values in place of a map, and `derive` would make kpack-build the slowest build dependency
//! (docs/dev/dependencies.md).

mod failure;
mod source;
mod values;

use std::cell::Cell;
use std::fmt::{self, Display};
use std::io::{self, Read};
use std::ops::Range;
use std::str;

use serde::de::DeserializeSeed;
use serde::ser::{Serialize, Serializer};

use crate::Reason;
use failure::{Failure, Refusal};
use source::{Node, Part};

pub(crate) use values::{
    Digest, ListOf, MapOf, PairsOf, Record, TEXT, TextAs, TextIn, TextOrOther, field, number,
    record, required,
};

/// How deep values may be nested. The formats need five levels; values of unknown keys may need more.
const MAX_DEPTH: usize = 64;
/// The longest key in an error, in characters.
const MAX_KEY: usize = 200;

/// Why bytes cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub struct MessagePackError {
    /// Offset in bytes.
    pub offset: usize,
    /// What was expected and what was found.
    pub reason: Reason,
}

impl Display for MessagePackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, reason } = self;
        write!(f, "at offset {offset:#x}: {reason}")
    }
}

impl std::error::Error for MessagePackError {}

/// Bytes with a value at their start.
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
    /// How many of them were read.
    offset: Cell<usize>,
    /// Where the last value that was read begins.
    value: Cell<usize>,
    /// Whether a value was cut off, or begins with the byte that begins none.
    is_damaged: Cell<bool>,
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let zero = Cell::new(0);
        Self { bytes, offset: zero.clone(), value: zero, is_damaged: Cell::new(false) }
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many bytes were read.
    pub(crate) fn offset(&self) -> usize {
        self.offset.get()
    }

    /// The bytes that were read from `start` on.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.offset()]
    }

    /// Reads a value.
    pub(crate) fn read<S: DeserializeSeed<'a>>(
        &self,
        seed: S,
    ) -> Result<S::Value, MessagePackError> {
        self.read_nested(seed, MAX_DEPTH)
    }

    /// Reads a value in which others are nested no deeper than this.
    pub(crate) fn read_nested<S: DeserializeSeed<'a>>(
        &self,
        seed: S,
        depth: usize,
    ) -> Result<S::Value, MessagePackError> {
        let mut decoder = rmp_serde::Deserializer::new(self);
        decoder.set_max_depth(depth);
        let node = Node { source: &mut decoder, input: self, part: Part::Value };
        seed.deserialize(node).map_err(|failure| self.error(failure))
    }

    /// Fails if anything follows the value; `what` names the value in the message.
    pub(crate) fn expect_end(&self, what: &str) -> Result<(), MessagePackError> {
        let offset = self.offset();
        match self.bytes.len() - offset {
            0 => Ok(()),
            more => {
                let reason = format!("{more} bytes follow the {what}").into();
                Err(MessagePackError { offset, reason })
            }
        }
    }

    fn error(&self, failure: Failure) -> MessagePackError {
        let Refusal { reason, is_mismatch, path } = *failure.0;
        if self.is_damaged.get() {
            let reason = "truncated, or not MessagePack".into();
            return MessagePackError { offset: self.value.get(), reason };
        }
        // Other errors are about a map, of which all was read up to here.
        let offset = if is_mismatch { self.value.get() } else { self.offset() };
        let keys = path.iter().rev().map(String::as_str);
        let path = keys.collect::<Vec<_>>().join(" > ");
        let colon = if path.is_empty() { "" } else { ": " };
        MessagePackError { offset, reason: reason.after(format_args!("{path}{colon}")) }
    }

    /// The size of what precedes a string's bytes.
    fn head(&self, start: usize) -> usize {
        match self.bytes.get(start) {
            Some(0xd9) => 2,
            Some(0xda) => 3,
            Some(0xdb) => 5,
            _ => 1,
        }
    }

    /// Whether a string begins at `start`.
    fn has_text(&self, start: usize) -> bool {
        matches!(self.bytes.get(start), Some(0xa0..=0xbf | 0xd9..=0xdb))
    }

    /// Whether a string begins at `start`, and ends where was read last, that is not UTF-8.
    pub(crate) fn has_bad_text(&self, start: usize) -> bool {
        let text = self.bytes.get(start + self.head(start)..self.offset());
        self.has_text(start) && text.is_some_and(|text| str::from_utf8(text).is_err())
    }

    /// The text of a string, for an error.
    #[cold]
    fn key(&self, place: Range<usize>) -> String {
        let text = self.bytes.get(place.start + self.head(place.start)..place.end);
        let text = String::from_utf8_lossy(text.unwrap_or_default());
        text.escape_debug().take(MAX_KEY).collect()
    }
}

impl Read for &Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let offset = self.offset();
        let size = buffer.len().min(self.bytes.len() - offset);
        self.is_damaged.set(self.is_damaged.get() || size < buffer.len().min(1));
        buffer[..size].copy_from_slice(&self.bytes[offset..][..size]);
        self.offset.set(offset + size);
        Ok(size)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let offset = self.offset();
        let Some(bytes) = self.bytes[offset..].get(..buffer.len()) else {
            if buffer.len() == 1 {
                self.value.set(offset);
            }
            self.is_damaged.set(true);
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        buffer.copy_from_slice(bytes);
        self.offset.set(offset + bytes.len());
        // A single byte begins a value, unless it follows one that announces it: a number or a size of one byte.
        if let [first] = *bytes {
            let before = self.value.get();
            let is_more = before + 1 == offset
                && matches!(self.bytes[before], 0xc4 | 0xc7 | 0xcc | 0xd0 | 0xd9);
            if !is_more {
                self.value.set(offset);
                self.is_damaged.set(first == 0xc1);
            }
        }
        Ok(())
    }
}

/// Whether a value that begins with this byte is a map.
pub(crate) fn begins_map(first: u8) -> bool {
    matches!(first, 0x80..=0x8f | 0xde | 0xdf)
}

/// A byte string.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Writes values one after another.
pub(crate) type Writer = rmp_serde::Serializer<Vec<u8>>;

/// Whether a value was written. Memory takes any value of the formats.
pub(crate) type Written = Result<(), rmp_serde::encode::Error>;

/// Writes a value.
pub(crate) fn write(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("values of the formats can be written to memory")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_digest_may_be_a_list_of_numbers() {
        let digest = |bytes: &[u8]| Input::new(bytes).read(Digest::<2>).ok();
        assert_eq!(digest(b"\xc4\x02\x01\xff"), Some([1, 255]));
        assert_eq!(digest(b"\x92\x01\xcc\xff"), Some([1, 255]));
        assert_eq!(digest(b"\x92\x01\xcd\x01\x00"), None);
        assert_eq!(digest(b"\x93\x01\x01\x01"), None);
    }

    /// A number or a size of one byte is no value.
    #[test]
    fn an_error_has_the_offset_of_its_value() {
        for (list, offset) in [
            (&b"\x92\x01\xff"[..], 2),
            (b"\x92\xcc\x01\xff", 3),
            (b"\x92\xcc\xc1\xa0", 3),
            (b"\x92\xcc\x80\xd0\xff", 3),
            (b"\x91\xd9\x01a", 1),
            (b"\x91\xc4\x01a", 1),
            (b"\x91\xdd\x00\x00\x00\x00", 1),
            (b"\x93\x01\x01", 3),
            (b"\x91\xcd\x01", 1),
            (b"\x91\xc1", 1),
        ] {
            let error = Input::new(list).read(ListOf(9, number::<u8>())).unwrap_err();
            assert_eq!(error.offset, offset, "{list:02x?}: {error}");
        }
    }

    #[test]
    fn keys_in_errors_are_escaped_and_cut() {
        let key = "\0\n".repeat(0x8000);
        let map = rmp_serde::to_vec(&BTreeMap::from([(key, "x")])).unwrap();
        let error = Input::new(&map).read(MapOf(1, number::<u8>())).unwrap_err();
        let key = "\\0\\n".repeat(MAX_KEY / 4);
        let reason = format!("{key}: expected an integer in its range, found a string");
        assert_eq!(error.reason.text, reason);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let nested = |depth: usize| [&b"\x81\xa1x"[..], &vec![0x91; depth], b"\xc0"].concat();
        let read = |bytes: &[u8]| Input::new(bytes).read(MapOf(1, TextOrOther));
        read(&nested(MAX_DEPTH - 3)).unwrap();
        let error = read(&nested(1 << 20)).unwrap_err().to_string();
        assert!(error.ends_with("depth limit exceeded"), "{error}");
    }
}
