//! Opens, identifies and reads input files; the room `inspect` describes them.

mod archives;
mod compressed;
mod facts;
mod kernel_names;
mod linked;
mod locate;
mod lookup;
mod markers;
mod overlay;
mod resolver;

use std::fs;
use std::io;
use std::path::Path;

use crate::{Error, Finding, Severity, ids};
use kpack_core::Reason;
use walkdir::WalkDir;

pub use archives::{Archives, Checked, OpenArchive, ParsedArchives, check};
pub use compressed::CompressedCode;
pub use kernel_names::{KernelNames, NameHash};
pub use kpack_build::internal::Unlinked;
pub use kpack_core::files::{
    ArchiveFile, FileKind, RangeReader, SharedFile, archive_reader, binary_error, bundle_error,
    check_code_object, check_code_object_head, check_code_object_in, digest, identify, list,
    manifest_parts, metadata_of, open, open_archive, open_bundle, open_found, read_archive,
    read_manifest, read_parts, share_archive, wrapper_error,
};
pub use linked::{
    ClosedBinary, LinkedBinary, ParsedBinaries, by_bundle, has_bundle, is_spirv_archived,
    offload_error,
};
pub(crate) use linked::{in_sections, may_have_code};
pub use locate::{KpackPath, LocatedBinary, Prefix, add_linked, plain};
pub use lookup::{Kpack, Kpacks, Lookup, placed, prefix_of};
pub use markers::MarkerGroup;
pub use overlay::Overlay;
pub use resolver::{CodePlace, Obstacle, Resolver};

/// The text of the file at `path`, without a byte order mark, which some editors put at its beginning.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(|e| Error::io(path, "read", e))?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::rejected(ids::NOT_TEXT, path, format!("byte {offset} is not UTF-8 text"))
    })?;
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

/// A walk through `directory` in the order of names.
pub fn walk(directory: &Path) -> WalkDir {
    // What is in one directory differs in its name only, so comparing whole paths gives the same order, without finding
    // the name in each path.
    WalkDir::new(directory)
        .sort_by(|one, other| one.path().as_os_str().cmp(other.path().as_os_str()))
}

/// The error of a walk below `directory`.
pub fn walk_error(directory: &Path, error: walkdir::Error) -> Error {
    let path = error.path().unwrap_or(directory).to_owned();
    let text = error.to_string();
    // A loop of links is no failure of the system; there are none where links are not followed.
    let cause = error.into_io_error();
    Error::io(&path, "read", cause.unwrap_or_else(|| io::Error::other(text)))
}

/// Attempts to read files that change meanwhile.
const ATTEMPTS: usize = 10;

/// Attempts something again if a file changed while it was read: another run may replace a binary, or a
/// build.
pub fn until_unchanged<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::Changed { .. }) => {}
            result => return result,
        }
    }
    attempt()
}

/// The result, or what was refused and why, as a fault; other errors stay errors.
pub fn or_refused<T>(result: Result<T, Error>) -> Result<Result<T, Finding>, Error> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Refused { id, path, reason, details, .. }) => {
            Ok(Err(Finding::new(Severity::Fault, id, path, Reason::new(reason, details))))
        }
        Err(error) => Err(error),
    }
}
