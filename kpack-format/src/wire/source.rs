//! serde's deserializer for what `rmp_serde` finds, which adds the keys of a value to its error.

use std::fmt::{self, Display};
use std::ops::Range;
use std::str;

use rmp_serde::decode::ReadReader;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Input;
use super::failure::Failure;

/// A value that `rmp_serde` found.
pub(super) enum Event<'e> {
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
pub(super) type Sink<'s> = &'s mut dyn FnMut(Event<'_>) -> bool;

#[derive(Clone, Copy)]
pub(super) enum Part {
    Key,
    /// An element of a list as well.
    Value,
}

/// What values are read from. It is used as a trait object because `rmp_serde` is compiled again for each type of visitor,
/// and with all types that are read, the loader would be a fifth larger.
pub(super) trait Source {
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
pub(super) struct Node<'n, 'a> {
    pub(super) source: &'n mut dyn Source,
    pub(super) input: &'n Input<'a>,
    pub(super) part: Part,
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
