//! Code IDs in markers. Host files are planned before device code is hashed, because planning is
//! cheap and may fail. So a marker's size must not depend on its IDs.

use std::collections::BTreeMap;
use std::fs::File;

use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::{LEAST_PADDING, Marker};
use kpack_format::{CodeId, TargetId};

/// Bytes reserved in a marker for code IDs and future additions. The number does not depend on the
/// targets, so builds for other targets have the same layout, and a later marker fits.
const ROOM: usize = 512;
/// Minimum left over when there are very many targets.
const LEAST_ROOM: usize = 256;

/// The marker as written to a host file, with room to grow: padding in its map. It takes at most `available`
/// bytes, or its own size if that is more.
pub fn with_room(marker: &Marker, available: usize) -> Vec<u8> {
    let bytes = marker.to_bytes();
    let plain = marker.without_code_ids().to_bytes().len();
    let size = (plain + ROOM).max(bytes.len() + LEAST_ROOM).next_multiple_of(8).min(available);
    // Too little for padding is left out.
    if size < bytes.len() + LEAST_PADDING {
        return bytes;
    }
    marker.to_bytes_within(size).unwrap_or(bytes)
}

/// Placeholder IDs for these targets.
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
