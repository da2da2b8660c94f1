//! Checks that an earlier run split a binary as the current options ask.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::Group;

use crate::input::{self, KpackPath, Lookup, MarkerGroup};
use crate::{Error, ids};

/// The targets of the split binary at `path` with these `markers`, from its manifest and archives;
/// `None` if a marker has the early form, which names no archives.
///
/// # Errors
/// [`Error::Refused`] if a marker differs from `expected`: it has another module, component or
/// archive directory.
pub(super) fn targets(
    path: &Path,
    markers: &[MarkerGroup],
    expected: &Marker,
    kpacks: &KpackPath,
    group: &Group,
    lookup: &Lookup,
) -> Result<Option<BTreeSet<TargetId>>, Error> {
    let mut names = BTreeSet::new();
    for MarkerGroup { marker, .. } in markers {
        if marker.kernel_name.is_none() {
            return Ok(None);
        }
        if !marker.refers_to(expected) {
            return Err(Error::rejected(
                ids::SPLIT_ALREADY,
                path,
                format!(
                    "already split, and its marker refers to `{}` (expected `{}`); split the original, or pass the module, component and directory that it was split for",
                    marker.kpack_search_paths.join("`, `"),
                    expected.kpack_search_paths.join("`, `")
                ),
            ));
        }
        names.extend(lookup.find(path, marker)?.targets().map(str::to_owned));
    }
    let manifest = input::read_manifest(&kpacks.path.join(group.manifest()));
    names.extend(manifest.into_iter().flat_map(|m| m.kpack_files.into_keys()));
    Ok(Some(names.iter().filter_map(|name| name.parse().ok()).collect()))
}
