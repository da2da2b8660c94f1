//! Opens, identifies and reads input files. [`inspect`](crate::inspect) describes them.

mod archives;
mod kpacks;
mod linked;
mod locate;
mod markers;
mod overlay;
pub(crate) mod unlinked;

use std::path::PathBuf;

use crate::Error;

pub(crate) use archives::{Archives, OpenArchive};
pub(crate) use kpack_build::shared::input::{
    FileKind, bundle_error, check_code_object, check_code_object_head, digest, elf_error, identify,
    manifest_parts, open, open_archive, open_bundle, read_manifest, wrapper_error,
};
pub use kpacks::{Kpack, Kpacks};
pub(crate) use kpacks::{find_kpacks, prefix_of};
pub(crate) use linked::{Linked, has_bundle};
pub(crate) use locate::{KpackPath, Located, Prefix, plain};
pub(crate) use markers::Marked;
pub(crate) use overlay::Overlay;

/// The result, or the file that was refused and why; other errors stay errors.
pub(crate) fn or_refused<T>(
    result: Result<T, Error>,
) -> Result<Result<T, (PathBuf, String)>, Error> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Refused { path, reason }) => Ok(Err((path, reason))),
        Err(error) => Err(error),
    }
}
