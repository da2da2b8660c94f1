//! The packages of Python, by the `RECORD` of each. pip and uv both write it; which of them installs depends on the
//! environment.

use std::path::Path;

use kpack_core::Finding;
use kpack_wheel::Environment;

use super::package::{Origin, Package, PackageLists, PackageManager, Unread, WantedFiles};
use crate::root::Root;

/// The packages in a directory that list a file that is wanted.
pub(super) fn read(directory: &Path, root: &Root, wanted: &WantedFiles<'_>) -> PackageLists {
    // uv can link these from its cache, which an image need not contain.
    let may_read = |path: &Path| root.has(path).unwrap_or(true);
    let environment = Environment::in_packages(directory, &may_read);
    let unread = |path, why| Unread { path, why, command: None };
    // Installers that were interrupted leave directories without METADATA.
    let is_leftover = |path: &Path| {
        path != directory && root.has(&path.join("METADATA")).is_ok_and(|is_there| !is_there)
    };
    let unreadable = "the description of a Python package cannot be read";
    let damaged = environment
        .findings
        .iter()
        .map(Finding::file)
        .filter(|path| !is_leftover(path))
        .map(|path| Err(unread(path.to_owned(), unreadable)));
    // What conda installed is conda's, even if it has a RECORD.
    let own = environment.distributions.iter().filter(|own| own.installer != "conda");
    let packages = own.filter_map(|own| {
        let Ok(files) = own.files() else {
            let why = "this list of the files of a Python package cannot be read";
            return Some(Err(unread(own.dist_info.join("RECORD"), why)));
        };
        let files = Vec::from_iter(
            files.into_iter().flatten().map(|file| file.path).filter(|path| wanted.contains(path)),
        );
        let (name, version) = (own.name.clone(), own.version.clone());
        let origin = Origin { manager: PackageManager::Python, name, version };
        (!files.is_empty()).then(|| Ok(Package::without_command(origin, files)))
    });
    damaged.chain(packages).collect()
}
