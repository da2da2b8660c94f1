//! The code IDs of a marker. Host files are planned before device code is hashed, since a plan can be
//! refused at no cost; a marker's size does not depend on the IDs in it.

use std::collections::BTreeMap;
use std::fs::File;

use kpack_format::archive::ArchiveWriter;
use kpack_format::{CodeId, TargetId};

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
