//! The IDs of device code in the markers of host files. Recombining adds those of the targets that
//! other shards built; splitting again takes out those of the targets that it leaves out.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use kpack_format::marker::Marker;

use crate::Error;
use crate::input::Linked;

/// Changed bytes by offset.
pub(super) type Edits = Vec<(u64, Vec<u8>)>;

/// What other shards' host files tell of device code, for the host files that are taken.
#[derive(Default)]
pub(super) struct MoreCodeIds {
    /// Markers with all IDs, by path.
    by_path: BTreeMap<PathBuf, Vec<Marker>>,
}

impl MoreCodeIds {
    /// Collects the IDs of another shard's host file `from`. Of one target's IDs, the first is kept,
    /// as the first shard's device code is.
    pub(super) fn collect(&mut self, path: &Path, from: &Path) -> Result<(), Error> {
        let known = self.by_path.entry(path.to_owned()).or_default();
        for group in Linked::open(from)?.markers()? {
            let marker = group.marker;
            let plain = marker.without_code_ids();
            match known
                .iter_mut()
                .find(|known| known.without_code_ids() == plain)
            {
                None => known.push(marker),
                Some(known) => {
                    for (target, id) in marker.code_ids {
                        known.code_ids.entry(target).or_insert(id);
                    }
                }
            }
        }
        Ok(())
    }

    /// What changes in the host file `from`, which is taken, where it has room for more IDs; `None`
    /// where nothing does.
    pub(super) fn edits(&self, path: &Path, from: &Path) -> Result<Option<Edits>, Error> {
        let more = match self.by_path.get(path) {
            Some(more) if more.iter().any(|marker| !marker.code_ids.is_empty()) => more,
            _ => return Ok(None),
        };
        let edits = edits(from, &|marker, room| {
            let plain = marker.without_code_ids();
            let more = more.iter().find(|more| more.without_code_ids() == plain)?;
            with_more(marker, more, room)
        })?;
        Ok((!edits.is_empty()).then_some(edits))
    }
}

/// What changes in the host file `from` when its markers lose the IDs of the targets that
/// `left_out` tells.
pub(super) fn without(from: &Path, left_out: &dyn Fn(&str) -> bool) -> Result<Edits, Error> {
    edits(from, &|marker, room| {
        let mut fewer = marker.clone();
        fewer.code_ids.retain(|target, _| !left_out(target));
        let changed = fewer != *marker;
        changed.then(|| fewer.to_bytes_within(room)).flatten()
    })
}

/// What `change` makes of each marker of a host file, given the room that the marker has; `None`
/// where it stays as it is.
fn edits(from: &Path, change: &dyn Fn(&Marker, usize) -> Option<Vec<u8>>) -> Result<Edits, Error> {
    let linked = Linked::open(from)?;
    let mut edits = BTreeMap::new();
    for group in linked.markers()? {
        for wrapper in &group.wrappers {
            let offset = wrapper.marker_offset;
            if let Entry::Vacant(new) = edits.entry(offset) {
                let room = linked.marker_room(offset)?;
                new.insert(change(&group.marker, room));
            }
        }
    }
    let edits = edits.into_iter();
    Ok(edits
        .filter_map(|(offset, bytes)| Some((offset, bytes?)))
        .collect())
}

/// The marker with those IDs of `more` that it does not have and that there is room for; `None` where
/// it stays as it is.
fn with_more(marker: &Marker, more: &Marker, room: usize) -> Option<Vec<u8>> {
    let mut extended = marker.clone();
    for (target, id) in &more.code_ids {
        if extended.code_ids.contains_key(target) {
            continue;
        }
        extended.code_ids.insert(target.clone(), *id);
        if extended.to_bytes().len() > room {
            extended.code_ids.remove(target);
        }
    }
    (extended != *marker)
        .then(|| extended.to_bytes_within(room))
        .flatten()
}
