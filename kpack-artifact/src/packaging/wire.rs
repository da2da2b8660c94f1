//! The configuration as written in the file: JSON objects without duplicate keys.

use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::Validation;

/// The whole configuration.
#[derive(Deserialize)]
pub(super) struct Wire {
    pub(super) primary_shard: String,
    #[serde(default)]
    pub(super) shards: Vec<String>,
    pub(super) architecture_groups: Map<WireGroup>,
    #[serde(default)]
    pub(super) component_overrides: Map<WireOverride>,
    #[serde(default)]
    pub(super) validation: Validation,
}

#[derive(Deserialize)]
pub(super) struct WireGroup {
    pub(super) display_name: Option<String>,
    pub(super) architectures: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct WireOverride {
    pub(super) architecture_groups: WireGroups,
}

/// A component's own groups, or names of some of the common ones.
pub(super) enum WireGroups {
    New(Map<WireGroup>),
    Some(Vec<String>),
}

impl<'de> Deserialize<'de> for WireGroups {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WireGroupsVisitor)
    }
}

struct WireGroupsVisitor;

impl<'de> Visitor<'de> for WireGroupsVisitor {
    type Value = WireGroups;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("groups, or a list of group names")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WireGroups, A::Error> {
        Map::deserialize(MapAccessDeserializer::new(map)).map(WireGroups::New)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<WireGroups, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(names)).map(WireGroups::Some)
    }
}

/// An object that keeps its order and has no duplicate keys.
pub(super) struct Map<T>(pub(super) Vec<(String, T)>);

impl<T> Default for Map<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Map<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueKeys(std::marker::PhantomData))
    }
}

struct UniqueKeys<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for UniqueKeys<T> {
    type Value = Map<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map<T>, A::Error> {
        let mut entries: Vec<(String, T)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(de::Error::custom(format_args!("key `{key}` appears twice")));
            }
            let value = map.next_value()?;
            entries.push((key, value));
        }
        Ok(Map(entries))
    }
}
