//! The mark of artifact directories that kpack wrote: `.kpack-artifact`, beside the list of prefixes. A
//! directory with a mark may be replaced, and the mark says which databases were split.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::databases::Selection;
use kpack_core::{Error, ids};

pub(crate) const FILE_NAME: &str = ".kpack-artifact";

#[derive(Serialize, Deserialize)]
struct Mark {
    format_version: u32,
    /// The databases whose files are in the artifacts of their targets. They are stored by name,
    /// because a later version of kpack may know more of them.
    databases: Vec<String>,
}

/// The bytes of the mark for an artifact whose databases in `selection` were split.
pub(crate) fn to_bytes(selection: &Selection) -> Vec<u8> {
    naming(selection.names())
}

/// The bytes of the mark for an artifact whose databases of these names were split.
pub(crate) fn naming(databases: Vec<String>) -> Vec<u8> {
    let mark = Mark { format_version: 1, databases };
    let mut bytes = serde_json::to_vec(&mark).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// The databases that were split when the artifact was written: all, if it has no mark.
///
/// # Errors
/// [`Error::Refused`] for a mark that this version does not understand.
pub(crate) fn databases(artifact: &Path) -> Result<Selection, Error> {
    let path = artifact.join(FILE_NAME);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Selection::Auto),
        bytes => bytes.map_err(|e| Error::io(&path, "read", e))?,
    };
    match serde_json::from_slice(&bytes) {
        Ok(Mark { format_version: 1, databases }) => Ok(Selection::Named(databases)),
        Ok(Mark { format_version, .. }) => Err(Error::rejected(
            ids::UNSUPPORTED_MARK,
            &path,
            format!("unsupported version (expected 1, found {format_version}); use a later kpack"),
        )),
        Err(error) => Err(Error::rejected(ids::UNSUPPORTED_MARK, &path, error.to_string())),
    }
}

/// Whether kpack wrote the artifact.
pub(crate) fn is_marked(artifact: &Path) -> bool {
    artifact.join(FILE_NAME).is_file()
}

/// Refuses to replace `path` unless kpack wrote it, or it is an empty directory, as Ninja creates
/// for a command's output.
pub(crate) fn check_replaceable(path: &Path) -> Result<(), Error> {
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if path.symlink_metadata().is_err() || is_marked(path) || is_empty() {
        return Ok(());
    }
    let reason = format!(
        "is in the way: kpack replaces only directories that it wrote, which have a file {FILE_NAME}; \
         choose another output directory, or remove this one"
    );
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, reason))
}
