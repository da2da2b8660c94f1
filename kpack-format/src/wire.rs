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
use std::ops::Range;
use std::str;

use rmp_serde::decode::ReadReader;
use serde::de::{
    DeserializeSeed, Deserializer, Error, Expected, IgnoredAny, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::ser::{Serialize, Serializer};

use crate::Reason;

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

/// Why a value is refused. It is small, since nearly all results have none.
#[derive(Debug)]
pub(crate) struct Failure(Box<Refusal>);

#[derive(Debug)]
struct Refusal {
    reason: Reason,
    /// Whether it is another value than was expected.
    is_mismatch: bool,
    /// The keys that lead to it, from the last one.
    path: Vec<String>,
}

impl Failure {
    fn mismatch(found: impl Display, expected: &dyn Expected) -> Self {
        let reason = Reason::mismatch("", expected, found);
        Self(Box::new(Refusal { reason, is_mismatch: true, path: Vec::new() }))
    }
}

impl Failure {
    /// The same, about a value of this key.
    #[cold]
    fn within(mut self, key: String) -> Self {
        self.0.path.push(key);
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.reason.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl Error for Failure {
    fn custom<T: Display>(text: T) -> Self {
        let reason = text.to_string().into();
        Self(Box::new(Refusal { reason, is_mismatch: false, path: Vec::new() }))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        match found {
            Unexpected::Unsigned(number) => {
                Self::mismatch(format_args!("the integer {number}"), expected)
            }
            Unexpected::Signed(number) => {
                Self::mismatch(format_args!("the integer {number}"), expected)
            }
            Unexpected::Str(_) => Self::mismatch("a string", expected),
            Unexpected::Bytes(_) => Self::mismatch("a byte string", expected),
            Unexpected::Seq => Self::mismatch("a list", expected),
            Unexpected::Map => Self::mismatch("a map", expected),
            _ => Self::mismatch("a value of another type", expected),
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(size: usize, expected: &dyn Expected) -> Self {
        Self::mismatch(format_args!("one of length {size}"), expected)
    }
}

/// A value that `rmp_serde` found.
enum Event<'e> {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'e str),
    Bytes(&'e [u8]),
    List(&'e mut dyn Source),
    Map(&'e mut dyn Source),
    /// Nil or an extension.
    Other,
}

/// Takes a value; returns whether to go on.
type Sink<'s> = &'s mut dyn FnMut(Event<'_>) -> bool;

#[derive(Clone, Copy)]
enum Part {
    Key,
    /// An element of a list as well.
    Value,
}

/// What values are read from. It is used as a trait object because `rmp_serde` is compiled again for each type of visitor,
/// and with all types that are read, the loader would be a fifth larger.
trait Source {
    /// How many elements or entries are left.
    fn left(&self) -> usize;

    /// Reads the next part into `sink`; skips it without one. An error is what `rmp_serde` says.
    fn next(&mut self, part: Part, sink: Option<Sink<'_>>) -> Result<(), String>;
}

impl Source for rmp_serde::Deserializer<ReadReader<&Input<'_>>> {
    fn left(&self) -> usize {
        1
    }

    fn next(&mut self, _: Part, sink: Option<Sink<'_>>) -> Result<(), String> {
        IntoSink(sink).deserialize(self).map_err(text)
    }
}

#[cold]
fn text(error: impl Display) -> String {
    error.to_string()
}

struct Elements<A>(A);

impl<'de, A: SeqAccess<'de>> Source for Elements<A> {
    fn left(&self) -> usize {
        self.0.size_hint().unwrap_or_default()
    }

    fn next(&mut self, _: Part, sink: Option<Sink<'_>>) -> Result<(), String> {
        self.0.next_element_seed(IntoSink(sink)).map(drop).map_err(text)
    }
}

struct Pairs<A>(A);

impl<'de, A: MapAccess<'de>> Source for Pairs<A> {
    fn left(&self) -> usize {
        self.0.size_hint().unwrap_or_default()
    }

    fn next(&mut self, part: Part, sink: Option<Sink<'_>>) -> Result<(), String> {
        match part {
            Part::Key => self.0.next_key_seed(IntoSink(sink)).map(drop).map_err(text),
            Part::Value => self.0.next_value_seed(IntoSink(sink)).map_err(text),
        }
    }
}
/// Passes a value to a sink, or skips it.
struct IntoSink<'s>(Option<Sink<'s>>);

impl IntoSink<'_> {
    fn event<E: Error>(self, event: Event<'_>) -> Result<(), E> {
        let goes_on = self.0.is_none_or(|sink| sink(event));
        if goes_on { Ok(()) } else { Err(E::custom("")) }
    }
}

impl<'de> DeserializeSeed<'de> for IntoSink<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.0 {
            Some(_) => deserializer.deserialize_any(self),
            None => deserializer.deserialize_ignored_any(IgnoredAny).map(drop),
        }
    }
}

impl<'de> Visitor<'de> for IntoSink<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.event(Event::Bool(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.event(Event::Signed(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.event(Event::Unsigned(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.event(Event::Float(number))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.event(Event::Other)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.event(Event::Text(text))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<(), E> {
        self.event(Event::Bytes(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        self.event(Event::List(&mut Elements(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.event(Event::Map(&mut Pairs(map)))
    }

    /// An extension.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        IgnoredAny.visit_newtype_struct(value)?;
        self.event(Event::Other)
    }
}

/// A part of a source as serde's deserializer.
struct Node<'n, 'a> {
    source: &'n mut dyn Source,
    input: &'n Input<'a>,
    part: Part,
}

impl<'de> Deserializer<'de> for Node<'_, '_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let Self { source, input, part } = self;
        let start = input.offset();
        let (mut visitor, mut read) = (Some(visitor), None);
        let mut sink = |event: Event<'_>| {
            let Some(visitor) = visitor.take() else { return false };
            let value = match event {
                Event::Bool(value) => visitor.visit_bool(value),
                Event::Unsigned(number) => visitor.visit_u64(number),
                Event::Signed(number) => visitor.visit_i64(number),
                Event::Float(number) => visitor.visit_f64(number),
                Event::Text(text) => visitor.visit_str(text),
                // `rmp_serde` passes a string that is not UTF-8 on as bytes.
                Event::Bytes(_) if input.has_text(start) => visitor.visit_unit(),
                Event::Bytes(bytes) => visitor.visit_bytes(bytes),
                Event::List(source) => visitor.visit_seq(ListIn { source, input, index: 0 }),
                Event::Map(source) => visitor.visit_map(MapIn { source, input, key: 0..0 }),
                Event::Other => visitor.visit_unit(),
            };
            let is_read = value.is_ok();
            read = Some(value);
            is_read
        };
        let decoded = source.next(part, Some(&mut sink));
        match (decoded, read) {
            (Ok(()), Some(read)) => read,
            (Err(_), Some(Err(mut failure))) if input.has_bad_text(start) => {
                failure.0.reason = "a string is not UTF-8".into();
                Err(failure)
            }
            (Err(_), Some(Err(failure))) => Err(failure),
            (Err(error), _) => Err(Failure::custom(error)),
            (Ok(()), None) => Err(Failure::custom("no value")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.source.next(self.part, None).map_err(Failure::custom)?;
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}

struct ListIn<'n, 'a> {
    source: &'n mut dyn Source,
    input: &'n Input<'a>,
    index: usize,
}

impl<'de> SeqAccess<'de> for ListIn<'_, '_> {
    type Error = Failure;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Failure> {
        if self.source.left() == 0 {
            return Ok(None);
        }
        let node = Node { source: self.source, input: self.input, part: Part::Value };
        let read = seed.deserialize(node).map_err(|failure| failure.within(self.index.to_string()));
        self.index += 1;
        read.map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.source.left())
    }
}

struct MapIn<'n, 'a> {
    source: &'n mut dyn Source,
    input: &'n Input<'a>,
    /// Where the last key is.
    key: Range<usize>,
}

impl<'de> MapAccess<'de> for MapIn<'_, '_> {
    type Error = Failure;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Failure> {
        if self.source.left() == 0 {
            return Ok(None);
        }
        let start = self.input.offset();
        let node = Node { source: self.source, input: self.input, part: Part::Key };
        let key = seed.deserialize(node)?;
        self.key = start..self.input.offset();
        Ok(Some(key))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Failure> {
        let node = Node { source: self.source, input: self.input, part: Part::Value };
        let read = seed.deserialize(node);
        read.map_err(|failure| failure.within(self.input.key(self.key.clone())))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.source.left())
    }
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
    *field = Some(map.next_value_seed(seed)?);
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
        while let Some(element) = elements.next_element_seed(self.1)? {
            list.push(element);
        }
        Ok(list)
    }
}

/// A map of at most so many entries, whose values have one type.
#[derive(Clone, Copy)]
pub(crate) struct MapOf<S>(pub(crate) usize, pub(crate) S);

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for MapOf<S> {
    type Value = BTreeMap<String, S::Value>;

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
            map.insert(key, entries.next_value_seed(self.1)?);
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
