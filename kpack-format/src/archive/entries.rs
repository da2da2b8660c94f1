//! The entries of a kernel, by target.

use std::fmt;
use std::ops::Index;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::message_pack::record;

/// The type of every entry.
const HSACO: &str = "hsaco";
/// The size of an entry without one, until the index takes it from what is stored. No code object may be
/// that large.
pub(super) const UNKNOWN_SIZE: u64 = u64::MAX;
/// Room that is made before any entry is read: more comes with the entries.
const MAX_CAPACITY: usize = 16;

/// One kernel for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TocEntry {
    /// Which stored code object. Two entries may name one: an identical code object is stored once.
    pub ordinal: u32,
    /// Size of the code object in bytes.
    pub original_size: u64,
}

/// A kernel's entries, ordered by target ID. Nearly every kernel has one, for which a `BTreeMap` would
/// take ten times the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets(Vec<(String, TocEntry)>);

impl Targets {
    /// The entry for `target`.
    pub fn get(&self, target: &str) -> Option<&TocEntry> {
        let place = self.place(target).ok()?;
        Some(&self.0[place].1)
    }

    /// Whether there is an entry for `target`.
    pub fn contains_key(&self, target: &str) -> bool {
        self.place(target).is_ok()
    }

    /// Sets the entry for `target`.
    pub fn insert(&mut self, target: String, entry: TocEntry) {
        match self.place(&target) {
            Ok(place) => self.0[place].1 = entry,
            Err(place) => self.0.insert(place, (target, entry)),
        }
    }

    /// Target IDs, in order.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(target, _)| target)
    }

    /// Entries, in order of their targets.
    pub fn values(&self) -> impl Iterator<Item = &TocEntry> {
        self.0.iter().map(|(_, entry)| entry)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut TocEntry> {
        self.0.iter_mut().map(|(_, entry)| entry)
    }

    /// Target IDs and entries, in order.
    pub fn iter(&self) -> Iter<'_> {
        self.into_iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, target: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|(known, _)| known.as_str().cmp(target))
    }
}

impl Index<&str> for Targets {
    type Output = TocEntry;

    /// # Panics
    /// Where there is no entry for `target`.
    fn index(&self, target: &str) -> &TocEntry {
        self.get(target).expect("there is an entry for the target")
    }
}

/// [`Targets::iter`].
pub type Iter<'a> = std::iter::Map<
    std::slice::Iter<'a, (String, TocEntry)>,
    fn(&'a (String, TocEntry)) -> (&'a String, &'a TocEntry),
>;

impl<'a> IntoIterator for &'a Targets {
    type Item = (&'a String, &'a TocEntry);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.0.iter().map(|(target, entry)| (target, entry))
    }
}

record! {
    /// An entry as it stands in the file.
    struct WireEntry {
        kind = "type": Option<Hsaco>,
        ordinal = "ordinal": u32,
        original_size = "original_size": Option<u64>,
    }
}

impl Serialize for Targets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wire = |entry: &TocEntry| WireEntry {
            kind: Some(Hsaco),
            ordinal: entry.ordinal,
            original_size: Some(entry.original_size),
        };
        serializer.collect_map(self.iter().map(|(target, entry)| (target, wire(entry))))
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TargetsVisitor)
    }
}

struct TargetsVisitor;

impl<'de> Visitor<'de> for TargetsVisitor {
    type Value = Targets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of at least one code object by target")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Targets, A::Error> {
        let announced = map.size_hint().unwrap_or_default();
        let mut entries = Vec::with_capacity(announced.min(MAX_CAPACITY));
        while let Some((target, wire)) = map.next_entry::<String, WireEntry>()? {
            let stated = wire.original_size.map(|size| size.min(UNKNOWN_SIZE - 1));
            let entry = TocEntry {
                ordinal: wire.ordinal,
                original_size: stated.unwrap_or(UNKNOWN_SIZE),
            };
            entries.push((target, entry));
        }
        if entries.is_empty() {
            // Its name would be many times as long in memory as in the file.
            return Err(de::Error::invalid_length(0, &self));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if entries.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(de::Error::custom("a kernel has one target twice"));
        }
        Ok(Targets(entries))
    }
}

/// The type of an entry: the only one that there is.
struct Hsaco;

impl Serialize for Hsaco {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HSACO)
    }
}

impl<'de> Deserialize<'de> for Hsaco {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HsacoVisitor)
    }
}

struct HsacoVisitor;

impl Visitor<'_> for HsacoVisitor {
    type Value = Hsaco;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the type `{HSACO}`")
    }

    fn visit_str<E: de::Error>(self, kind: &str) -> Result<Hsaco, E> {
        match kind == HSACO {
            true => Ok(Hsaco),
            false => Err(E::invalid_value(de::Unexpected::Str(kind), &self)),
        }
    }
}
