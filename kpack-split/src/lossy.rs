//! Paths in reports that are serialised: as text, in which what is not UTF-8 is replaced. One odd
//! name must not cost the whole report.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

pub(crate) fn list<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}
