//! Serialises paths as text and replaces invalid UTF-8, so that one odd name does not make a whole report
//! fail.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// A path.
pub fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// A path, or null.
pub fn optional_path<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let path = path.as_ref().map(|path| path.to_string_lossy());
    path.serialize(serializer)
}

/// Paths.
pub fn paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// The name of a finding.
pub fn id<S: Serializer>(id: &kpack_format::finding::Id, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}
