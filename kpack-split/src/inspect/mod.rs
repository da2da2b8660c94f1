//! Inspects files: fat or split binary, archive, manifest, bundle, code object.
//!
//! Reads only headers and tables, and one code object at a time if a table is compressed. So
//! inspecting a binary of a gigabyte does not need a gigabyte of memory.

mod archive;
mod bundle;
mod code_objects;
mod linked;
mod manifest;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Error;

use crate::input::{self, FileKind, Linked, unlinked};

pub use crate::input::unlinked::{DeviceObject, Unlinked};
pub use crate::input::{Kpack, Kpacks};
pub use archive::{Archive, Kernel};
pub use bundle::{Bundle, BundleEntry, CodeObject};
pub use code_objects::CodeObjects;
pub use linked::{
    FatBinary, FatWrapper, NoDeviceCode, SplitBinary, SplitObject, SplitWrapper, TargetTotal,
};
pub use manifest::{Manifest, ManifestEntry};

/// The result of inspecting a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The file.
    #[serde(serialize_with = "crate::lossy::path")]
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its content.
    #[serde(flatten)]
    pub content: Content,
}

/// The kind and content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Content {
    /// An executable or shared object with its device code in it.
    FatBinary(FatBinary),
    /// An executable or shared object whose device code is in kpacks.
    SplitBinary(SplitBinary),
    /// An executable or shared object without device code to split off.
    HostBinary(NoDeviceCode),
    /// A relocatable object or static library.
    Unlinked(Unlinked),
    /// A `.kpack` archive.
    Archive(Archive),
    /// A `.kpm` manifest.
    Manifest(Manifest),
    /// An offload bundle in a file of its own.
    Bundle(Bundle),
    /// A code object in a file of its own.
    CodeObject(CodeObject),
}

/// Inspects the file at `path`.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::Refused`] if it is damaged or of an unknown kind.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let file = input::open(path)?;
    let size = file
        .metadata()
        .map_err(|e| Error::io(path, "read", e))?
        .len();
    let content = match input::identify(path, &file)? {
        Some(FileKind::Linked) => linked::inspect(Linked::read(path, file)?)?,
        Some(FileKind::Object | FileKind::StaticLibrary) => {
            Content::Unlinked(unlinked::read(path, &file)?)
        }
        Some(FileKind::Archive) => Content::Archive(archive::inspect(path)?),
        Some(FileKind::Manifest) => Content::Manifest(manifest::inspect(path)?),
        Some(FileKind::Bundle) => Content::Bundle(bundle::inspect(path, file, size)?),
        Some(FileKind::CodeObject) => {
            Content::CodeObject(bundle::inspect_code_object(path, file, size)?)
        }
        None => {
            return Err(Error::refused(
                path,
                "not recognised: expected an ELF file, a static library, a .kpack archive, a .kpm \
                 manifest or an offload bundle",
            ));
        }
    };
    Ok(Inspection {
        path: path.to_owned(),
        size,
        content,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A file opened only for writing: reading it always fails.
    #[test]
    fn what_cannot_be_read_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let open = || {
            let file = File::create(&path).unwrap();
            file.set_len(4096).unwrap();
            file
        };
        let results = [
            Linked::read(&path, open()).map(|_| ()),
            bundle::inspect(&path, open(), 100).map(|_| ()),
            bundle::inspect_code_object(&path, open(), 100).map(|_| ()),
            unlinked::read(&path, &open()).map(|_| ()),
        ];
        for (index, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{index}: {error:?}");
        }
    }
}
