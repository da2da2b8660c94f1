//! Finds code objects without their library file and library files without their code objects,
//! which are useless alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::tensile::Library;

use super::data_file::uncompressed;
use super::entry::{Class, Entry, Node, Observation, Topic};

/// Library files, and the code objects that they name.
pub(super) type Libraries = BTreeMap<PathBuf, BTreeSet<String>>;

/// The entries without their counterpart. A `.hsaco` may be loaded in other ways than through a
/// library file.
pub(super) fn unpaired(entries: &[Entry], libraries: &Libraries) -> Vec<Observation> {
    let there: BTreeSet<&Path> = entries.iter().map(|entry| entry.path.as_path()).collect();
    // Compressed library files are not read.
    let compressed: BTreeSet<PathBuf> = there
        .iter()
        .filter_map(|path| of_compressed(path))
        .collect();
    let may_be_named: BTreeSet<&Path> = compressed
        .iter()
        .filter(|path| names_others(path))
        .filter_map(|path| path.parent())
        .collect();
    let named: BTreeSet<(&Path, &str)> = libraries
        .iter()
        .flat_map(|(path, names)| names.iter().map(|name| (directory_of(path), stem(name))))
        .collect();
    let lacks_library = |path: &Path| {
        let library = path.with_extension("dat");
        let directory = directory_of(path);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_named = named.contains(&(directory, &*name)) || may_be_named.contains(directory);
        !is_named && !there.contains(library.as_path()) && !compressed.contains(&library)
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.path.as_path();
        let is_tensile = matches!(&entry.class, Class::Target { database, .. }
            if TENSILE.contains(database));
        if !is_tensile || entry.node == (Node::Directory { empty: true }) {
            continue;
        }
        let mut observe = |text| {
            found.push(Observation {
                topic: Topic::Unpaired,
                path: path.to_owned(),
                text,
            });
        };
        if path.extension().is_some_and(|end| end == "co") && lacks_library(path) {
            let library = path.with_extension("dat");
            let library = library.file_name().unwrap_or_default().to_string_lossy();
            observe(format!(
                "it has no library file: there is no {library} beside it, and no .dat names it"
            ));
        }
        for name in libraries.get(path).into_iter().flatten() {
            let stem = stem(name);
            let candidates = [name.clone(), format!("{stem}.co"), format!("{stem}.hsaco")];
            let is_there = |name: &String| there.contains(&*path.with_file_name(name));
            if !candidates.iter().any(is_there) {
                observe(format!(
                    "it names the code object {name}, which is not beside it"
                ));
            }
        }
    }
    found
}

/// The databases whose code objects and library files come in pairs.
pub(super) const TENSILE: [&str; 3] = ["rocblas", "hipblaslt", "hipsparselt"];

/// The path that a compressed library file has when it is not.
fn of_compressed(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let plain = uncompressed(name);
    (plain != name && plain.ends_with(".dat")).then(|| path.with_file_name(plain))
}

/// Whether the code objects that a library file names are not called after it. Others that are for
/// all targets name none with the extension `.co`.
fn names_others(library: &Path) -> bool {
    library.ends_with("hipblasltExtOpLibrary.dat")
}

/// Whether some library file in the directory of `code_object`, which need not be there, names it, or
/// may name it: what a compressed one names is not known.
pub(crate) fn named_beside(code_object: &Path) -> bool {
    let Some(directory) = code_object.parent() else {
        return false;
    };
    let (name, stem) = (code_object.file_name(), code_object.file_stem());
    let named = [name, stem].map(|name| name.unwrap_or_default().to_string_lossy().into_owned());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|library| {
        if library
            .extension()
            .is_none_or(|extension| extension != "dat")
        {
            return of_compressed(&library).is_some_and(|library| names_others(&library));
        }
        let bytes = fs::read(library).unwrap_or_default();
        Library::read(&bytes)
            .is_ok_and(|library| named.iter().any(|name| library.code_objects.contains(name)))
    })
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The name of a code object without its extension.
fn stem(name: &str) -> &str {
    let stem = name
        .strip_suffix(".co")
        .or_else(|| name.strip_suffix(".hsaco"));
    stem.unwrap_or(name)
}
