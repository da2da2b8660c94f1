//! The code IDs of a marker. Host files are planned before device code is hashed, since a plan can be
//! refused at no cost; a marker's size does not depend on the IDs in it.

use std::collections::BTreeMap;
use std::fs::File;

use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::Marker;
use kpack_format::{CodeId, TargetId};

/// How many bytes a marker has for code IDs and for what may follow it. It is the same whatever the
/// targets, so that builds for other targets have the same layout, and so that another marker fits
/// later.
const ROOM: usize = 512;
/// How many of them are left where there are very many targets.
const LEAST_ROOM: usize = 256;

/// The marker as it stands in a host file, with room after it.
pub fn with_room(marker: &Marker) -> Vec<u8> {
    let mut bytes = marker.to_bytes();
    let plain = marker.without_code_ids().to_bytes().len();
    let size = (plain + ROOM).max(bytes.len() + LEAST_ROOM);
    bytes.resize(size.next_multiple_of(8), 0);
    bytes
}

/// Room for the IDs of device code for these targets.
pub fn planned<'a>(targets: impl IntoIterator<Item = &'a TargetId>) -> BTreeMap<String, CodeId> {
    let targets = targets.into_iter();
    targets.map(|target| (target.to_string(), [0; 8])).collect()
}

/// The IDs of the device code of `binary` in `archives`.
pub fn computed<'a>(
    archives: impl IntoIterator<Item = (&'a TargetId, &'a ArchiveWriter<File>)>,
    binary: &str,
) -> BTreeMap<String, CodeId> {
    let ids = archives.into_iter().filter_map(|(target, archive)| {
        let id = archive.code_id(binary)?;
        Some((target.to_string(), id))
    });
    ids.collect()
}
