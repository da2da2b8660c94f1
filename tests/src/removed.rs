//! Removes the files of an application, one after another, to see whether somebody notices.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tree::Tree;

/// What became of an application without one of its files, for each file.
#[derive(Debug, Default)]
pub struct Removed {
    /// The files that are missed: the report names them.
    pub missed: Vec<String>,
    /// Those that are not.
    pub unnoticed: Vec<String>,
}

/// Removes each file and symbolic link below `directory` in turn and asks for a report of
/// what is wrong then, which is empty if nothing is. A file is missed if the report has its name. Everything is put back.
///
/// # Panics
/// A file cannot be moved, or something is wrong before.
pub fn each_file(directory: &Path, report: impl Fn() -> String) -> Removed {
    assert_eq!(report(), "", "before anything is removed");
    let scratch = Tree::new();
    let mut removed = Removed::default();
    for path in files_below(directory) {
        let kept = scratch.path("kept");
        fs::rename(&path, &kept).or_else(|_| copy_away(&path, &kept)).unwrap();
        let said = report();
        fs::rename(&kept, &path).or_else(|_| copy_away(&kept, &path)).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let inside = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
        // Windows ignores case.
        if said.to_lowercase().contains(&name.to_lowercase()) {
            removed.missed.push(inside);
        } else {
            assert_eq!(said, "", "{inside}: something else is wrong without it");
            removed.unnoticed.push(inside);
        }
    }
    assert_eq!(report(), "", "after everything was put back");
    removed
}

/// Moves a file to another file system.
fn copy_away(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to)?;
    fs::remove_file(from)
}

/// The files below a directory, in order.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}
