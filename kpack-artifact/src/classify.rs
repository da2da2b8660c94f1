//! Classifies the files in a prefix: for the host, a fat binary, for one target, or unknown.
//!
//! A file's path says where it belongs, by the known kernel databases, and its content says so too,
//! where it is a code object, a bundle, an archive or a library file. Nothing is written here.

use std::path::Path;

use walkdir::DirEntry;

pub(super) use super::classifier::classify_entry;
pub(crate) use super::classifier::{Classified, Parsed};
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
    classify_once(prefix, databases, Parsed::default())
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
    classify_found(prefix, databases, parsed, walk(prefix))
}

/// Gives what is below `prefix` to `add`, in the order of [`Classification::entries`], while it is listed. Directories
/// are taken to be empty.
///
/// # Errors
/// As [`classify`]; `add` has got what is before that.
pub(crate) fn classify_each(
    prefix: &Path,
    databases: &Selection,
    parsed: Parsed<'_>,
    add: impl FnMut(Classified) + Send,
) -> Result<(), Error> {
    each_found(prefix, databases, parsed, walk(prefix), add)
}

/// As [`classify`], without FIFOs, sockets and devices, which have no bytes.
///
/// # Errors
/// As [`classify`], but for these.
pub(crate) fn classify_without_special_files(
    prefix: &Path,
    databases: &Selection,
) -> Result<Classification, Error> {
    let has_bytes = |entry: &DirEntry| {
        let kind = entry.file_type();
        kind.is_file() || kind.is_dir() || kind.is_symlink()
    };
    let found = walk(prefix).filter(|entry| entry.as_ref().map_or(true, has_bytes));
    classify_found(prefix, databases, Parsed::default(), found)
}

/// Everything below `directory`, sorted by path.
fn walk(directory: &Path) -> impl Iterator<Item = Result<DirEntry, Error>> + Send {
    let walk = input::walk(directory).min_depth(1).into_iter();
    walk.map(move |entry| entry.map_err(|error| walk_error(directory, error)))
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
    let found = walk.flatten().filter(is_of_one).map(Ok);
    classify_found(prefix, databases, parsed, found)
}

fn classify_found(
    prefix: &Path,
    databases: &Selection,
    parsed: Parsed<'_>,
    found: impl Iterator<Item = Result<DirEntry, Error>> + Send,
) -> Result<Classification, Error> {
    let mut classification = Classification::default();
    each_found(prefix, databases, parsed, found, |Classified { entry, observations, binary }| {
        let binary = binary.map(|binary| (entry.path.clone(), binary));
        classification.binaries.extend(binary);
        classification.entries.push(entry);
        classification.observations.extend(observations);
    })?;
    let entries = classification.entries.iter_mut();
    let entries = entries.map(|entry| (&*entry.path, &mut entry.node, &mut entry.class));
    mark_empty(entries, &Class::Host);
    Ok(classification)
}

fn each_found(
    prefix: &Path,
    databases: &Selection,
    parsed: Parsed<'_>,
    found: impl Iterator<Item = Result<DirEntry, Error>> + Send,
    add: impl FnMut(Classified) + Send,
) -> Result<(), Error> {
    let mut unlisted = None;
    let listed = found.map_while(|entry| entry.map_err(|error| unlisted = Some(error)).ok());
    let mut listed = listed.fuse();
    let classify = |found| classify_entry(prefix, databases, parsed, &found);
    let classified = parallel::try_in_order(&mut listed, classify, add);
    // A directory that cannot be listed is reported first, wherever it is, so list the rest.
    listed.for_each(drop);
    unlisted.map_or(classified, Err)
}

/// Marks a directory as not empty, and its class as `host`, if the next entry is in it.
pub(super) fn mark_empty<'e, C: Clone + 'e>(
    entries: impl Iterator<Item = (&'e Path, &'e mut Node, &'e mut C)>,
    host: &C,
) {
    let mut last: Option<(&Path, &mut Node, &mut C)> = None;
    for next in entries {
        if let Some((path, node, class)) = last
            && *node == (Node::Directory { empty: true })
            && next.0.starts_with(path)
        {
            *node = Node::Directory { empty: false };
            class.clone_from(host);
        }
        last = Some(next);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_cannot_be_listed_is_told_before_what_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let _socket = UnixListener::bind(directory.path().join("a")).unwrap();
        std::fs::write(directory.path().join("b"), "").unwrap();
        let classify = |found: Vec<Result<DirEntry, Error>>| {
            let databases = Selection::default();
            classify_found(directory.path(), &databases, Parsed::default(), found.into_iter())
        };
        let mut found = Vec::from_iter(walk(directory.path()));
        let refused = classify(Vec::from_iter(walk(directory.path()))).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
        found.push(Err(Error::io(directory.path(), "read", std::io::ErrorKind::Other.into())));
        let unlisted = classify(found).unwrap_err();
        assert!(matches!(unlisted, Error::Io { .. }), "{unlisted}");
    }
}
