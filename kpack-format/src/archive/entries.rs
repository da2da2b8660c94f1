//! The entries of a kernel, by target.

use std::ops::Index;

use crate::TargetId;
use crate::message_pack::{MessagePackError, Reader, Writer};
use crate::offload_bundle::EntryId;

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
    pub(super) fn write(&self, out: &mut Writer) {
        out.map(self.len());
        for (target, entry) in self {
            let has_metadata = entry.entry_id.is_some() || entry.metadata.is_some();
            out.text(target).map(3 + usize::from(has_metadata));
            out.text("type").text(entry.kind.as_deref().unwrap_or(HSACO));
            out.text("ordinal").integer(entry.ordinal.into());
            out.text("original_size").integer(entry.original_size);
            match (&entry.metadata, &entry.entry_id) {
                (Some(map), _) => _ = out.text("metadata").value(map),
                (None, Some(id)) => _ = out.text("metadata").map(1).text(ENTRY_ID).text(id),
                (None, None) => {}
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, MessagePackError> {
        let count = reader.map_size(usize::MAX)?;
        if count == 0 {
            // The kernel's name would take many times more memory than bytes in the file.
            return reader.fail("expected a map of at least one code object by target");
        }
        let mut entries = Vec::with_capacity(count.min(MAX_CAPACITY));
        for _ in 0..count {
            entries.push((reader.string()?, TocEntry::read(reader)?));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if entries.windows(2).any(|two| two[0].0 == two[1].0) {
            return reader.fail("a kernel has one target twice");
        }
        Ok(Self(entries))
    }
}

impl TocEntry {
    fn read(reader: &mut Reader<'_>) -> Result<Self, MessagePackError> {
        let (mut kind, mut ordinal, mut original_size) = (None, None, None);
        let (mut metadata, mut entry_id, mut has_more) = (None, None, false);
        reader.map(|key, value| match key {
            "type" => value.field(&mut kind, key, Reader::text),
            "ordinal" => value.field(&mut ordinal, key, Reader::integer),
            "original_size" => value.field(&mut original_size, key, Reader::integer),
            "metadata" => value.field(&mut metadata, key, |value| {
                let start = value.clone();
                value.map(|key, value| match key {
                    // Another writer's key may have the same name.
                    ENTRY_ID if value.clone().string().is_ok() => {
                        value.field(&mut entry_id, key, Reader::string)
                    }
                    _ => value.skip().map(|_| has_more = true),
                })?;
                start.clone().skip()
            }),
            _ => value.skip().map(drop),
        })?;
        let stated = original_size.map(|size: u64| size.min(UNKNOWN_SIZE - 1));
        Ok(Self {
            ordinal: reader.required(ordinal, "ordinal")?,
            original_size: stated.unwrap_or(UNKNOWN_SIZE),
            lacks_size: stated.is_none(),
            entry_id: entry_id.map(String::into_boxed_str),
            kind: kind.filter(|kind| *kind != HSACO).map(Box::from),
            metadata: metadata.filter(|_| has_more).map(Box::from),
        })
    }
}
