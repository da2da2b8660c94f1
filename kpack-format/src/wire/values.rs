//! The kinds of values in the formats, as seeds that read them within bounds.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str;

use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};

use super::Input;

/// A map with known keys, read entry by entry.
pub(crate) trait Record<'de>: Sized {
    /// Its keys. The values of others are skipped, however many there are: one value can hold as many bytes as they do,
    /// and skipping it takes as long.
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
        f.write_str("an integer in its range")
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
        let mut map = BTreeMap::new();
        map.extend(PairsOf(self.0, self.1).deserialize(deserializer)?);
        Ok(map)
    }
}

/// As [`MapOf`], with the entries in the order of the file.
#[derive(Clone, Copy)]
pub(crate) struct PairsOf<S>(pub(crate) usize, pub(crate) S);

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for PairsOf<S> {
    type Value = Vec<(String, S::Value)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for PairsOf<S> {
    type Value = Vec<(String, S::Value)>;

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
        let mut pairs = Vec::new();
        while let Some(key) = entries.next_key_seed(TEXT)? {
            pairs.push((key, entries.next_value_seed(self.1)?));
        }
        Ok(pairs)
    }
}
