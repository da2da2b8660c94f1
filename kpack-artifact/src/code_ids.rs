//! The IDs of device code in the markers of host files. Recombining adds those of the targets that
//! other shards built; splitting again takes out those of the targets that it leaves out.

use std::collections::btree_map;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::marker::Marker;

use super::output::Edits;
use kpack_core::Error;
use kpack_split::elf::BinaryError;
use kpack_tree::Entry;

/// What other shards' host files tell of device code, for the host files that are taken.
#[derive(Default)]
pub(super) struct MoreCodeIds {
    /// Markers with all IDs, by path.
    by_path: BTreeMap<PathBuf, Vec<Marker>>,
}

impl MoreCodeIds {
    /// Collects the IDs in the markers of another shard's host file. Of one target's IDs, the first is
    /// kept, as the first shard's device code is.
    pub(super) fn collect(&mut self, path: &Path, markers: Vec<Marker>) {
        let known = self.by_path.entry(path.to_owned()).or_default();
        for marker in markers {
            let plain = marker.without_additions();
            match known.iter_mut().find(|known| known.without_additions() == plain) {
                None => known.push(marker),
                Some(known) => {
                    for (target, id) in marker.code_ids {
                        known.code_ids.entry(target).or_insert(id);
                    }
                }
            }
        }
    }

    /// What changes in the host file `item`, which is taken, where it has room for more IDs.
    pub(super) fn edits(&self, item: &Entry) -> Result<Edits, Error> {
        let more = match self.by_path.get(&*item.path) {
            Some(more) if more.iter().any(|marker| !marker.code_ids.is_empty()) => more,
            _ => return Ok(Edits::new()),
        };
        edits(item, &|marker, room| {
            let plain = marker.without_additions();
            let more = more.iter().find(|more| more.without_additions() == plain)?;
            with_more(marker, more, room)
        })
    }
}

/// What changes in the host file `item` when its markers lose the IDs of the targets that are left
/// out, which a binary that is split now does not expect either.
pub(super) fn without(item: &Entry, left_out: &BTreeSet<TargetId>) -> Result<Edits, Error> {
    if left_out.is_empty() {
        return Ok(Edits::new());
    }
    let is_left_out = |target: &str| target.parse().is_ok_and(|t| left_out.contains(&t));
    let edits = edits(item, &|marker, room| {
        let mut fewer = marker.clone();
        fewer.code_ids.retain(|target, _| !is_left_out(target));
        let changed = fewer != *marker;
        changed.then(|| fewer.to_bytes_within(room)).flatten()
    })?;
    let linked = item.linked()?;
    if !edits.is_empty() && linked.image.is_signed() {
        return Err(linked.error(BinaryError::Signed));
    }
    Ok(edits)
}

/// What `change` makes of each marker of a host file, given the room that the marker has; `None`
/// where it stays as it is.
fn edits(item: &Entry, change: &dyn Fn(&Marker, usize) -> Option<Vec<u8>>) -> Result<Edits, Error> {
    let linked = item.linked()?;
    let mut changed = BTreeMap::new();
    for group in linked.markers()? {
        for wrapper in &group.wrappers {
            let offset = wrapper.marker_offset;
            if let btree_map::Entry::Vacant(new) = changed.entry(offset) {
                let room = linked.marker_room(offset)?;
                new.insert(change(&group.marker, room));
            }
        }
    }
    let mut edits: Edits =
        changed.into_iter().filter_map(|(offset, bytes)| Some((offset, bytes?))).collect();
    if !edits.is_empty() {
        let renewed = linked.image.checksum_with(&edits);
        edits.extend(renewed.map_err(|e| Error::io(&linked.path, "read", e))?);
    }
    Ok(edits)
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
    (extended != *marker).then(|| extended.to_bytes_within(room)).flatten()
}
