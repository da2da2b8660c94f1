//! The packages of conda, which `conda-meta` in a prefix describes. Several programs install them, and the prefix does not
//! tell which of these made it, so there is no command.

use std::fs::DirEntry;
use std::path::Path;

use kpack_wheel::within;
use serde::Deserialize;

use super::package::{
    MAX_LIST, Origin, Package, PackageLists, PackageManager, Unread, WantedFiles, entries, is_plain,
};
use crate::root::Root;
use crate::text::lossy_text;

/// What `conda-meta` says about a package.
#[derive(Deserialize)]
struct Description {
    name: String,
    version: String,
    build: String,
    files: Vec<String>,
}

/// The packages of a prefix that list a file that is wanted. Nothing that a link leads out of the root is read.
pub(super) fn read(prefix: &Path, root: &Root, wanted: &WantedFiles<'_>) -> PackageLists {
    let command = Some("conda list");
    let directory = prefix.join("conda-meta");
    let listed =
        root.has(&directory).and_then(|has| if has { entries(&directory) } else { Ok(Vec::new()) });
    let Ok(listed) = listed else {
        let why = "conda's descriptions of packages cannot be listed";
        return Unread { path: directory, why, command }.into();
    };
    let mut lists = Vec::from_iter(listed.iter().map(DirEntry::path));
    lists.retain(|path| path.extension().is_some_and(|end| end == "json"));
    // On this machine, a link that leads nowhere is a description that cannot be read.
    lists.retain(|path| root.image().is_none() || root.has(path).unwrap_or(true));
    lists.sort();
    let packages = lists.into_iter().filter_map(|path| {
        let description = lossy_text(&path, MAX_LIST)
            .and_then(|text| serde_json::from_str::<Description>(&text).ok());
        let Some(Description { name, version, build, files }) = description else {
            let why = "conda's description of a package cannot be read";
            return Some(Err(Unread { path, why, command }));
        };
        if ![&name, &version, &build].into_iter().all(|text| is_plain(text)) {
            return None;
        }
        let names = files.iter().map(String::as_str);
        let files = wanted.among(names, |path| within(prefix, prefix, Path::new(path)));
        let version = format!("{version} (build {build})");
        let origin = Origin { manager: PackageManager::Conda, name, version };
        (!files.is_empty()).then(|| Ok(Package::without_command(origin, files)))
    });
    packages.collect()
}
