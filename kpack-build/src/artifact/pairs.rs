//! Code objects and the library files that name them, which are of no use without each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::classify::{Class, Entry, Finding, Node};
use super::content::Content;

/// Which library file names which code object.
#[derive(Default)]
pub(super) struct Pairs {
    /// Code objects by the directory and the name, without extension, that library files give them.
    named: BTreeSet<(PathBuf, String)>,
    /// Library files, and what they name.
    libraries: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Pairs {
    /// Adds what was found in another part of the tree.
    pub(super) fn extend(&mut self, other: Self) {
        self.named.extend(other.named);
        self.libraries.extend(other.libraries);
    }

    pub(super) fn add(&mut self, path: &Path, content: &Content) {
        let Content::Library(library) = content else {
            return;
        };
        let directory = path.parent().unwrap_or(Path::new(""));
        for name in &library.code_objects {
            self.named
                .insert((directory.to_owned(), stem(name).to_owned()));
        }
        self.libraries
            .insert(path.to_owned(), library.code_objects.clone());
    }

    /// What misses its other half. A `.hsaco` may be loaded by other means than a library file.
    pub(super) fn unpaired(&self, entries: &[Entry]) -> Vec<Finding> {
        let mut found = Vec::new();
        let there: BTreeSet<&Path> = entries.iter().map(|entry| entry.path.as_path()).collect();
        for entry in entries {
            let path = entry.path.as_path();
            let is_tensile = matches!(&entry.class, Class::Target { database, .. }
                if TENSILE.contains(database));
            if !is_tensile || entry.node == (Node::Directory { empty: true }) {
                continue;
            }
            let directory = path.parent().unwrap_or(Path::new(""));
            if path.extension().is_some_and(|extension| extension == "co") {
                let library = path.with_extension("dat");
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                let named = self
                    .named
                    .contains(&(directory.to_owned(), name.into_owned()));
                if !named && !there.contains(library.as_path()) {
                    let library = library.file_name().unwrap_or_default().to_string_lossy();
                    found.push(Finding {
                        path: path.to_owned(),
                        text: format!(
                            "it has no library file: there is no {library} beside it, and no .dat names it"
                        ),
                    });
                }
            }
            for name in self.libraries.get(path).into_iter().flatten() {
                let stem = stem(name);
                let candidates = [name.clone(), format!("{stem}.co"), format!("{stem}.hsaco")];
                let is_there = |name: &String| there.contains(directory.join(name).as_path());
                if !candidates.iter().any(is_there) {
                    found.push(Finding {
                        path: path.to_owned(),
                        text: format!("it names the code object {name}, which is not beside it"),
                    });
                }
            }
        }
        found
    }
}

/// The databases whose code objects and library files come in pairs.
pub(super) const TENSILE: [&str; 3] = ["rocblas", "hipblaslt", "hipsparselt"];

fn stem(name: &str) -> &str {
    let stem = name
        .strip_suffix(".co")
        .or_else(|| name.strip_suffix(".hsaco"));
    stem.unwrap_or(name)
}
