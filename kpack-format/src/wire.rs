//! The formats in MessagePack as serde types, which `rmp_serde` reads and writes.
//!
//! This module adds what `rmp_serde` leaves to its callers: the offset of a value, errors that name it by its keys, and
//! bounds on lists and maps before they take memory. Implementations of `Deserialize` are by hand. Derived ones would take
//! a list of the values in place of a map, and `derive` would make kpack-build the slowest build dependency
//! (docs/dev/dependencies.md).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::str;

use rmp_serde::decode;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::ser::{Serialize, Serializer};

use crate::Reason;

/// How deep values may be nested. The formats need five levels; values of unknown keys may need more.
const MAX_DEPTH: usize = 64;
/// Ends each key in the text of an error. Keys are escaped, so none contains it.
const END_OF_KEY: char = '\0';
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
        seed.deserialize(&mut decoder).map_err(|error| self.error(&error))
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

    fn error(&self, error: &decode::Error) -> MessagePackError {
        let text = error.to_string();
        let (path, text) = text.rsplit_once(END_OF_KEY).unwrap_or(("", &text));
        if self.is_damaged.get() {
            let reason = "truncated, or not MessagePack".into();
            return MessagePackError { offset: self.value.get(), reason };
        }
        let kinds = ["invalid type: ", "invalid value: ", "invalid length "];
        let mismatch = kinds.iter().find_map(|kind| {
            let (found, expected) = text.strip_prefix(kind)?.rsplit_once(", expected ")?;
            Some(Reason::mismatch("", expected, in_words(found)))
        });
        // Other errors are about a map, of which all was read up to here.
        let offset = if mismatch.is_some() { self.value.get() } else { self.offset() };
        let reason = mismatch.unwrap_or_else(|| text.into());
        if path.is_empty() {
            return MessagePackError { offset, reason };
        }
        let path = path.replace(END_OF_KEY, " > ");
        MessagePackError { offset, reason: reason.after(format_args!("{path}: ")) }
    }
}

/// What serde found, in the words of these formats.
fn in_words(found: &str) -> String {
    match found.split(' ').next().unwrap_or_default() {
        "integer" => format!("the {}", found.replace('`', "")),
        "string" => "a string".to_owned(),
        "byte" => "a byte string".to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "a map".to_owned(),
        length if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("one of length {length}")
        }
        _ => "a value of another type".to_owned(),
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

/// The error, about the value of `key`.
#[cold]
#[inline(never)]
pub(crate) fn within<E: Error>(key: impl Display, error: &E) -> E {
    let key = key.to_string();
    let key: String = key.escape_debug().take(MAX_KEY).collect();
    E::custom(format_args!("{key}{END_OF_KEY}{error}"))
}

/// A map with known keys, read entry by entry.
pub(crate) trait Record<'de>: Sized {
    /// Its keys. The values of others are skipped.
    const KEYS: &'static [&'static str];

    /// Reads the value of one of the keys.
    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;

    /// Another key was there.
    fn unknown(&mut self) {}
}

/// Reads a map into `record`.
#[inline(never)]
pub(crate) fn record<'de, R: Record<'de>, D: Deserializer<'de>>(
    record: R,
    deserializer: D,
) -> Result<R, D::Error> {
    struct Entries<R>(R);

    impl<'de, R: Record<'de>> Visitor<'de> for Entries<R> {
        type Value = R;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<R, A::Error> {
            let known = TextAs(|text| R::KEYS.iter().copied().find(|key| *key == text));
            while let Some(key) = map.next_key_seed(known)? {
                match key {
                    Some(key) => self.0.value(key, &mut map)?,
                    None => {
                        map.next_value::<IgnoredAny>()?;
                        self.0.unknown();
                    }
                }
            }
            Ok(self.0)
        }
    }

    deserializer.deserialize_map(Entries(record))
}

/// Reads the value of `key`, which may appear only once in a map.
pub(crate) fn field<'de, S: DeserializeSeed<'de>, A: MapAccess<'de>>(
    field: &mut Option<S::Value>,
    key: &str,
    seed: S,
    map: &mut A,
) -> Result<(), A::Error> {
    if field.is_some() {
        return Err(Error::custom(format_args!("the key `{key}` appears twice")));
    }
    *field = Some(map.next_value_seed(seed).map_err(|error| within(key, &error))?);
    Ok(())
}

/// The value that [`field`] read; fails if the map lacks the key.
pub(crate) fn required<T, E: Error>(field: Option<T>, key: &str) -> Result<T, E> {
    field.ok_or_else(|| E::custom(format_args!("the key `{key}` is missing")))
}

/// A string, and what is made of it. Unlike `String`, this does not take a byte string.
pub(crate) struct TextAs<T>(pub(crate) fn(&str) -> T);

/// A string.
pub(crate) const TEXT: TextAs<String> = TextAs(str::to_owned);

impl<T> Clone for TextAs<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TextAs<T> {}

impl<'de, T> DeserializeSeed<'de> for TextAs<T> {
    type Value = T;

    #[inline(never)]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T> Visitor<'_> for TextAs<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(self.0(text))
    }
}

/// A string, as a part of the input.
#[derive(Clone, Copy)]
pub(crate) struct TextIn<'i, 'a>(pub(crate) &'i Input<'a>);

impl<'de, 'a> DeserializeSeed<'de> for TextIn<'_, 'a> {
    type Value = &'a str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'a str, D::Error> {
        let size = TextAs(str::len).deserialize(deserializer)?;
        let text = self.0.since(self.0.offset() - size);
        str::from_utf8(text).map_err(Error::custom)
    }
}

/// A string, or `None` for a value of another type.
#[derive(Clone, Copy)]
pub(crate) struct TextOrOther;

impl<'de> DeserializeSeed<'de> for TextOrOther {
    type Value = Option<String>;

    #[inline(never)]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextOrOther {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_seq(list).map(|_| None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_map(map).map(|_| None)
    }

    /// An extension.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        IgnoredAny.visit_newtype_struct(value).map(|_| None)
    }
}

/// An unsigned number.
pub(crate) struct Number<T>(PhantomData<T>);

/// An unsigned number that `T` holds.
pub(crate) const fn number<T>() -> Number<T> {
    Number(PhantomData)
}

impl<T> Clone for Number<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Number<T> {}

impl<'de, T: TryFrom<u64>> DeserializeSeed<'de> for Number<T> {
    type Value = T;

    #[inline(never)]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        // `deserialize_u64` would not say what it found.
        let number = deserializer.deserialize_any(AnyNumber)?;
        T::try_from(number)
            .map_err(|_| Error::invalid_value(Unexpected::Unsigned(number), &AnyNumber))
    }
}

struct AnyNumber;

impl Visitor<'_> for AnyNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer of its range")
    }

    fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    /// Zero and positive numbers have signed forms as well.
    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        let unsigned = u64::try_from(number);
        unsigned.map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// A byte string of this size. Some writers have no byte strings, so it may be a list of numbers.
#[derive(Clone, Copy)]
pub(crate) struct Digest<const SIZE: usize>;

impl<'de, const SIZE: usize> DeserializeSeed<'de> for Digest<SIZE> {
    type Value = [u8; SIZE];

    #[inline(never)]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<'de, const SIZE: usize> Visitor<'de> for Digest<SIZE> {
    type Value = [u8; SIZE];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a digest of {SIZE} bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let size = list.size_hint().unwrap_or_default();
        if size != SIZE {
            return Err(Error::invalid_length(size, &self));
        }
        let mut digest = [0; SIZE];
        for byte in &mut digest {
            *byte = list.next_element_seed(number())?.unwrap_or_default();
        }
        Ok(digest)
    }
}

/// A list of at most so many elements. An element can be one byte in the file and many in memory, so the file's size
/// alone must not determine how much is allocated.
#[derive(Clone, Copy)]
pub(crate) struct ListOf<S>(pub(crate) usize, pub(crate) S);

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for ListOf<S> {
    type Value = Vec<S::Value>;

    #[inline(never)]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        // `deserialize_seq` would take a byte string as well.
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for ListOf<S> {
    type Value = Vec<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            usize::MAX => f.write_str("a list"),
            most => write!(f, "a list of at most {most} elements"),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let size = elements.size_hint().unwrap_or_default();
        if size > self.0 {
            return Err(Error::invalid_length(size, &self));
        }
        let mut list = Vec::new();
        loop {
            match elements.next_element_seed(self.1) {
                Ok(Some(element)) => list.push(element),
                Ok(None) => return Ok(list),
                Err(error) => return Err(within(list.len(), &error)),
            }
        }
    }
}

/// A map of at most so many entries, whose values have one type.
#[derive(Clone, Copy)]
pub(crate) struct MapOf<S>(pub(crate) usize, pub(crate) S);

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for MapOf<S> {
    type Value = BTreeMap<String, S::Value>;

    #[inline(never)]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for MapOf<S> {
    type Value = BTreeMap<String, S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            usize::MAX => f.write_str("a map"),
            most => write!(f, "a map of at most {most} entries"),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let size = entries.size_hint().unwrap_or_default();
        if size > self.0 {
            return Err(Error::invalid_length(size, &self));
        }
        let mut map = BTreeMap::new();
        while let Some(key) = entries.next_key_seed(TEXT)? {
            let value = entries.next_value_seed(self.1).map_err(|error| within(&key, &error))?;
            map.insert(key, value);
        }
        Ok(map)
    }
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
        let reason = format!("{key}: expected an integer of its range, found a string");
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
