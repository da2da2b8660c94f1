//! The markers of a host file, and whether they expect the device code that is in its archives.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::fs::{self, File};
use std::path::Path;

use kpack_format::archive::Archive;
use kpack_format::marker::{Marker, SECTION_NAME};
use object::{Object, ObjectSection};

/// All markers in a file, wherever they are.
pub(crate) fn markers(path: &Path) -> Vec<Marker> {
    let bytes = fs::read(path).unwrap();
    let key = b"\xb2kpack_search_paths";
    let places = (1..bytes.len()).filter(|at| bytes[*at..].starts_with(key));
    places.map(|at| Marker::read(&bytes[at - 1..]).unwrap().0).collect()
}

/// Whether the section of `file`'s markers is one map to its end, which a reader may unpack as a whole.
pub(crate) fn is_one_map(file: &Path) -> bool {
    let bytes = fs::read(file).unwrap();
    let image = object::File::parse(&*bytes).unwrap();
    let section = image.section_by_name(SECTION_NAME).unwrap();
    let section = section.data().unwrap();
    Marker::read(section).unwrap().1 == section.len()
}

/// Each marker of `file` lists `targets`, with the IDs of the archives of `group`.
pub(crate) fn assert_expects(file: &Path, kpacks: &Path, group: &str, targets: &[&str]) {
    let markers = markers(file);
    assert!(!markers.is_empty());
    for marker in markers {
        assert_eq!(Vec::from_iter(marker.code_ids.keys()), targets);
        let name = marker.kernel_name.as_deref().unwrap();
        for (target, id) in &marker.code_ids {
            let archive = kpacks.join(format!("{group}_{target}.kpack"));
            let archive = Archive::open(File::open(archive).unwrap()).unwrap();
            let found = archive.toc().code_id(name, target);
            assert_eq!(found, Some(*id), "{name} for {target}");
        }
    }
}
