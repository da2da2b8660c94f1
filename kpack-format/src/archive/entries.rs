//! The entries of a kernel, by target.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;

use serde::de::{DeserializeSeed, Deserializer, Error, Expected, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::limits::MAX_ENTRIES;
use crate::TargetId;
use crate::offload_bundle::EntryId;
use crate::wire::{
    self, Input, Record, TEXT, TextAs, TextOrOther, Writer, field, number, required,
};

/// The type of a code object.
const HSACO: &str = "hsaco";
/// The key of an entry's ID in its metadata.
const ENTRY_ID: &str = "entry_id";
/// Stands for a missing size, until the index takes it from the stored code object. No code object
/// can be that large.
pub(super) const UNKNOWN_SIZE: u64 = u64::MAX;
/// Maximum number of entries to allocate before reading any.
const MAX_CAPACITY: usize = 16;

/// One kernel for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TocEntry {
    /// Number of the stored code object. Entries with identical code objects share one.
    pub ordinal: u32,
    /// Size of the code object in bytes.
    pub original_size: u64,
    /// Whether the archive leaves the size out, so that it is that of what is stored.
    pub lacks_size: bool,
    /// The ID of the bundle's entry that it was in; `None` if that is
    /// [`code_object_id`](crate::offload_bundle::code_object_id) of its target, or unknown.
    pub entry_id: Option<Box<str>>,
    /// Its type, if that is not `hsaco`. Other writers store other things in archives.
    pub kind: Option<Box<str>>,
    /// The MessagePack map of its metadata, if that has more than `entry_id`.
    pub metadata: Option<Box<[u8]>>,
}

impl TocEntry {
    /// The target that the code object is compiled for, if that is a less specific one than `target`, for which the
    /// entry is: it completes the archive of a variant (`gfx90a:xnack+`) with plain code (`gfx90a`). The
    /// [ID](Self::entry_id) says so.
    pub fn less_specific(&self, target: &str) -> Option<TargetId> {
        let target: TargetId = target.parse().ok()?;
        let own = EntryId::read(self.entry_id.as_deref()?).ok()?.target().cloned()?;
        (own != target && own.runs_on(&target)).then_some(own)
    }
}

/// A kernel's entries, ordered by target ID. Nearly every kernel has only one, for which a
/// `BTreeMap` would take ten times the memory.
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

    /// The target IDs, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(target, _)| target)
    }

    /// The entries, sorted by target.
    pub fn values(&self) -> impl Iterator<Item = &TocEntry> {
        self.0.iter().map(|(_, entry)| entry)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut TocEntry> {
        self.0.iter_mut().map(|(_, entry)| entry)
    }

    /// The target IDs and entries, sorted.
    pub fn iter(&self) -> Iter<'_> {
        self.into_iter()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, target: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(target))
    }
}

impl Index<&str> for Targets {
    type Output = TocEntry;

    /// # Panics
    /// If there is no entry for `target`.
    fn index(&self, target: &str) -> &TocEntry {
        self.get(target).expect("there is an entry for the target")
    }
}

/// The entries of a kernel with their target IDs: [`Targets::iter`].
#[derive(Debug, Clone)]
pub struct Iter<'a>(std::slice::Iter<'a, (String, TocEntry)>);

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a String, &'a TocEntry);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(target, entry)| (target, entry))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a Targets {
    type Item = (&'a String, &'a TocEntry);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        Iter(self.0.iter())
    }
}

impl Targets {
    pub(super) fn write(&self, out: &mut Writer) -> wire::Written {
        out.serialize_map(Some(self.len()))?;
        for (target, entry) in self {
            target.serialize(&mut *out)?;
            entry.write(out)?;
        }
        Ok(())
    }
}

impl TocEntry {
    fn write(&self, out: &mut Writer) -> wire::Written {
        let has_metadata = self.entry_id.is_some() || self.metadata.is_some();
        let mut map = out.serialize_map(Some(3 + usize::from(has_metadata)))?;
        map.serialize_entry("type", self.kind.as_deref().unwrap_or(HSACO))?;
        map.serialize_entry("ordinal", &self.ordinal)?;
        map.serialize_entry("original_size", &self.original_size)?;
        match (&self.metadata, &self.entry_id) {
            (Some(bytes), _) => {
                map.serialize_key("metadata")?;
                map.end()?;
                // serde has no values that are encoded already.
                out.get_mut().extend_from_slice(bytes);
                Ok(())
            }
            (None, Some(id)) => {
                map.serialize_entry("metadata", &BTreeMap::from([(ENTRY_ID, id)]))?;
                map.end()
            }
            (None, None) => map.end(),
        }
    }
}

/// A kernel's entries in a TOC.
#[derive(Clone, Copy)]
pub(super) struct TargetsIn<'i, 'a> {
    pub(super) input: &'i Input<'a>,
    /// Number of entries in the TOC, including those that this kernel announces.
    pub(super) count: &'i Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for TargetsIn<'_, '_> {
    type Value = Targets;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Targets, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TargetsIn<'_, '_> {
    type Value = Targets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of at least one code object by target")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Targets, A::Error> {
        let count = map.size_hint().unwrap_or_default();
        if count == 0 {
            // The kernel's name would take many times more memory than bytes in the file.
            return Err(Error::invalid_length(count, &self));
        }
        let total = self.count.get().saturating_add(count);
        if total > MAX_ENTRIES {
            return Err(Error::invalid_length(total, &TableWithinLimit));
        }
        self.count.set(total);
        let mut entries = Vec::with_capacity(count.min(MAX_CAPACITY));
        while let Some(target) = map.next_key_seed(TEXT)? {
            entries.push((target, map.next_value_seed(EntryIn(self.input))?));
        }
        // The list has grown to up to twice its size, and it stays as long as the archive is open.
        entries.shrink_to_fit();
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if entries.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(Error::custom("a kernel has one target twice"));
        }
        Ok(Targets(entries))
    }
}

/// What a TOC with too many entries is expected to be.
struct TableWithinLimit;

impl Expected for TableWithinLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of at most {MAX_ENTRIES} entries, of all kernels together")
    }
}

/// An entry in a TOC.
struct EntryIn<'i, 'a>(&'i Input<'a>);

impl<'de> DeserializeSeed<'de> for EntryIn<'_, '_> {
    type Value = TocEntry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TocEntry, D::Error> {
        let fields = EntryFields {
            input: self.0,
            kind: None,
            ordinal: None,
            original_size: None,
            metadata: None,
        };
        let fields = wire::record(fields, deserializer)?;
        let stated = fields.original_size.map(|size| size.min(UNKNOWN_SIZE - 1));
        let (entry_id, metadata) = fields.metadata.unwrap_or_default();
        Ok(TocEntry {
            ordinal: required(fields.ordinal, "ordinal")?,
            original_size: stated.unwrap_or(UNKNOWN_SIZE),
            lacks_size: stated.is_none(),
            entry_id,
            kind: fields.kind.flatten(),
            metadata,
        })
    }
}

/// An entry while it is read.
struct EntryFields<'i, 'a> {
    input: &'i Input<'a>,
    /// If it is not `hsaco`.
    kind: Option<Option<Box<str>>>,
    ordinal: Option<u32>,
    original_size: Option<u64>,
    metadata: Option<Metadata>,
}

/// An entry's ID and bytes of its metadata.
type Metadata = (Option<Box<str>>, Option<Box<[u8]>>);

impl<'de> Record<'de> for EntryFields<'_, '_> {
    const KEYS: &'static [&'static str] = &["type", "ordinal", "original_size", "metadata"];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "type" => {
                let kind = TextAs(|kind| (kind != HSACO).then(|| kind.into()));
                field(&mut self.kind, key, kind, map)
            }
            "ordinal" => field(&mut self.ordinal, key, number(), map),
            "original_size" => field(&mut self.original_size, key, number(), map),
            _ => field(&mut self.metadata, key, MetadataIn(self.input), map),
        }
    }
}

struct MetadataIn<'i, 'a>(&'i Input<'a>);

impl<'de> DeserializeSeed<'de> for MetadataIn<'_, '_> {
    type Value = Metadata;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Metadata, D::Error> {
        let start = self.0.offset();
        let MetadataFields { entry_id, has_more } =
            wire::record(MetadataFields::default(), deserializer)?;
        let bytes = has_more.then(|| Box::from(self.0.since(start)));
        Ok((entry_id.flatten().map(String::into_boxed_str), bytes))
    }
}

#[derive(Default)]
struct MetadataFields {
    entry_id: Option<Option<String>>,
    has_more: bool,
}

impl<'de> Record<'de> for MetadataFields {
    const KEYS: &'static [&'static str] = &[ENTRY_ID];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        field(&mut self.entry_id, key, TextOrOther, map)?;
        // Another writer's key may have the same name.
        self.has_more |= self.entry_id == Some(None);
        Ok(())
    }

    fn unknown(&mut self) {
        self.has_more = true;
    }
}
