//! MessagePack in and out: maps with field names as keys, as every reader of these files expects.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Cursor;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

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
    let mut deserializer = rmp_serde::Deserializer::new(Cursor::new(bytes));
    deserializer.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut deserializer)?;
    let size = deserializer.position() as usize;
    Ok((value, size))
}

/// A list of at most `MAX` elements. An element can be one byte here and many in memory, so what is
/// allocated must not depend on the size of the file alone.
pub(crate) struct List<T, const MAX: usize>(pub(crate) Vec<T>);

/// A map of at most `MAX` entries.
pub(crate) struct Map<T, const MAX: usize>(pub(crate) BTreeMap<String, T>);

impl<T: Serialize, const MAX: usize> Serialize for List<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<T: Serialize, const MAX: usize> Serialize for Map<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bounded = Bounded::<Vec<T>, MAX>(PhantomData);
        deserializer.deserialize_seq(bounded).map(Self)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Map<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bounded = Bounded::<BTreeMap<String, T>, MAX>(PhantomData);
        deserializer.deserialize_map(bounded).map(Self)
    }
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

/// The value of a key.
pub(crate) trait Value: Sized {
    /// What it is where the key is not there.
    fn missing<E: de::Error>(key: &'static str) -> Result<Self, E> {
        Err(E::missing_field(key))
    }

    /// The value that comes next in `map`.
    fn next<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Self, A::Error>
    where
        Self: Deserialize<'de>,
    {
        map.next_value()
    }

    /// Whether the key is written.
    fn is_written(&self) -> bool {
        true
    }
}

impl Value for u32 {}
impl Value for u64 {}
impl Value for String {}
impl<T, const MAX: usize> Value for List<T, MAX> {}
impl<T, const MAX: usize> Value for Map<T, MAX> {}
impl<T> Value for BTreeMap<String, T> {}

impl<T: DeserializeOwned> Value for Option<T> {
    fn missing<E: de::Error>(_: &'static str) -> Result<Self, E> {
        Ok(None)
    }

    /// A key without value is left out; nil is a value of the wrong type.
    fn next<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Self, A::Error> {
        map.next_value().map(Some)
    }

    fn is_written(&self) -> bool {
        self.is_some()
    }
}

/// Defines a struct that stands in a file as a map with the fields' names as keys. Keys that are not
/// known are skipped. serde's derive would do the same, and take longer to compile than this crate
/// and all others that it needs: build scripts have it as a dependency.
macro_rules! record {
    (
        $(#[$attribute:meta])*
        struct $name:ident { $($field:ident = $key:literal: $value:ty,)+ }
    ) => {
        $(#[$attribute])*
        struct $name { $($field: $value,)+ }

        const _: () = {
            use std::fmt;

            use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
            use serde::ser::{Serialize, SerializeMap, Serializer};
            use $crate::message_pack::Value;

            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let size = [$(self.$field.is_written()),+].into_iter().filter(|written| *written);
                    let mut map = serializer.serialize_map(Some(size.count()))?;
                    $(if self.$field.is_written() {
                        map.serialize_entry($key, &self.$field)?;
                    })+
                    map.end()
                }
            }

            #[allow(non_camel_case_types)]
            enum Key { $($field,)+ Unknown }

            impl<'de> Deserialize<'de> for Key {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    struct AsText;
                    impl Visitor<'_> for AsText {
                        type Value = Key;

                        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                            f.write_str("a key")
                        }

                        fn visit_str<E: de::Error>(self, key: &str) -> Result<Key, E> {
                            Ok(match key {
                                $($key => Key::$field,)+
                                _ => Key::Unknown,
                            })
                        }
                    }
                    deserializer.deserialize_identifier(AsText)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    struct AsMap;
                    impl<'de> Visitor<'de> for AsMap {
                        type Value = $name;

                        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                            f.write_str("a map")
                        }

                        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                            $(let mut $field: Option<$value> = None;)+
                            while let Some(key) = map.next_key()? {
                                match key {
                                    $(Key::$field => {
                                        if $field.replace(Value::next(&mut map)?).is_some() {
                                            return Err(de::Error::duplicate_field($key));
                                        }
                                    })+
                                    Key::Unknown => {
                                        map.next_value::<IgnoredAny>()?;
                                    }
                                }
                            }
                            Ok($name {
                                $($field: match $field {
                                    Some(value) => value,
                                    None => Value::missing($key)?,
                                },)+
                            })
                        }
                    }
                    deserializer.deserialize_map(AsMap)
                }
            }
        };
    };
}
pub(crate) use record;
