//! Classifies the files in a prefix: for the host, a fat binary, for one target, or unknown.
//!
//! A file's path says where it belongs, by the known kernel databases, and its content says so too,
//! where it is a code object, a bundle, an archive or a library file. Nothing is written here.

use std::path::Path;

use walkdir::DirEntry;

use super::classifier::Classified;
pub(crate) use super::classifier::Parsed;
pub(super) use super::classifier::classify_entry;
use super::databases::Selection;
use kpack_core::Error;
use kpack_core::files::with_slashes;
use kpack_core::parallel;
use kpack_split::input::{self, walk_error};
use kpack_split::leftover::is_leftover_entry;

pub use super::entry::{Class, Classification, Entry, KPACK, Node};

/// Reads what is below `prefix`. Files of databases that are not selected are for the host.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] for a damaged file of a database or archive in `.kpack`, and
/// for what is neither a file, a directory nor a symbolic link.
pub fn classify(prefix: &Path, databases: &Selection) -> Result<Classification, Error> {
    classify_found(prefix, databases, Parsed::default(), walk(prefix)?)
}

/// As [`classify`], without parsing what is `parsed`.
///
/// # Errors
/// As [`classify`].
pub(crate) fn classify_once(
    prefix: &Path,
    databases: &Selection,
    parsed: Parsed<'_>,
) -> Result<Classification, Error> {
    classify_found(prefix, databases, parsed, walk(prefix)?)
}

/// As [`classify`], without FIFOs, sockets and devices, which have no bytes.
///
/// # Errors
/// As [`classify`], but for these.
pub(crate) fn classify_without_special_files(
    prefix: &Path,
    databases: &Selection,
) -> Result<Classification, Error> {
    let mut found = walk(prefix)?;
    found.retain(|entry| {
        let kind = entry.file_type();
        kind.is_file() || kind.is_dir() || kind.is_symlink()
    });
    classify_found(prefix, databases, Parsed::default(), found)
}

/// Everything below `directory`, sorted by path.
fn walk(directory: &Path) -> Result<Vec<DirEntry>, Error> {
    let walk = input::walk(directory).min_depth(1).into_iter();
    walk.map(|entry| entry.map_err(|error| walk_error(directory, error))).collect()
}

/// Reads the files below `prefix` that are in the place of a selected database, and nothing else. What
/// cannot be listed does not exist for it, and neither do leftovers of interrupted runs.
///
/// # Errors
/// As [`classify`].
pub(crate) fn classify_databases(
    prefix: &Path,
    databases: &Selection,
    parsed: Parsed<'_>,
) -> Result<Classification, Error> {
    let walk = input::walk(prefix).min_depth(1);
    let is_of_one = |entry: &DirEntry| {
        let path = entry.path().strip_prefix(prefix).unwrap_or(entry.path());
        let is_directory = entry.file_type().is_dir();
        let owner = databases.recognise(&with_slashes(path));
        !is_directory && owner.is_some_and(|(owner, _)| owner.is_selected())
    };
    let walk = walk.into_iter();
    let walk = walk.filter_entry(|entry| !is_leftover_entry(entry));
    let found: Vec<DirEntry> = walk.flatten().filter(is_of_one).collect();
    classify_found(prefix, databases, parsed, found)
}

fn classify_found(
    prefix: &Path,
    databases: &Selection,
    parsed: Parsed<'_>,
    found: Vec<DirEntry>,
) -> Result<Classification, Error> {
    let mut classification = Classification::default();
    // There may be many, so each is freed as soon as it is classified.
    let classified =
        parallel::try_map(found, |found| classify_entry(prefix, databases, parsed, &found))?;
    for Classified { entry, observations, binary } in classified {
        let binary = binary.map(|binary| (entry.path.clone(), binary));
        classification.binaries.extend(binary);
        classification.entries.push(entry);
        classification.observations.extend(observations);
    }
    mark_empty(&mut classification.entries);
    Ok(classification)
}

/// A directory is named before what is in it, and known to be empty by what follows.
pub(super) fn mark_empty(entries: &mut [Entry]) {
    for index in 0..entries.len() {
        let (before, from) = entries.split_at_mut(index + 1);
        let (Some(entry), next) = (before.last_mut(), from.first()) else {
            continue;
        };
        if let Node::Directory { empty } = &mut entry.node {
            *empty = next.is_none_or(|next| !next.path.starts_with(&entry.path));
            if !*empty {
                entry.class = Class::Host;
            }
        }
    }
}
