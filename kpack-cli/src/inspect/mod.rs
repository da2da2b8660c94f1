//! Inspects files: fat or split binary, archive, manifest, bundle, code object.
//!
//! Reads only headers and tables, and one code object at a time if a table is compressed. So
//! inspecting a binary of a gigabyte does not need a gigabyte of memory.

mod archive;
mod code_objects;
mod linked;
mod small;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use kpack_build::internal::Unlinked;
use kpack_format::code_object::{CodeObject, CodeObjectError};
use kpack_format::offload_binary::{self, OffloadImage};
use kpack_format::offload_bundle::Bundle;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSymbol as _, ReadCache};
use serde::Serialize;

use kpack_core::files::describe_package;
use kpack_core::platform::FileExt;
use kpack_core::{Error, ids, lossy};
use kpack_split::elf::DeviceCode;
use kpack_split::input::{self, FileKind, LinkedBinary, offload_error};

pub(crate) use archive::ArchiveDescription;
pub use code_objects::{SelectedCode, SelectedCodeObjects, TakeCode};
pub(crate) use linked::{FatDescription, SplitDescription};
pub(crate) use small::{
    BundleDescription, CodeObjectDescription, ManifestDescription, UnlinkedDescription,
};

/// The result of inspecting a file. Its fields, in this order, are the JSON of `kpack show` and `kpack list`, which is an
/// interface.
#[derive(Debug, Serialize)]
pub struct Inspection {
    #[serde(serialize_with = "lossy::path")]
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    #[serde(flatten)]
    pub(crate) content: Content,
    /// Images in LLVM's format, for OpenMP and other offloading runtimes.
    #[serde(rename = "offload_images", skip_serializing_if = "Vec::is_empty")]
    pub(crate) images: Vec<OffloadImage>,
}

/// The kind and content of a file.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Content {
    /// An executable or shared object with its device code in it.
    FatBinary(FatDescription),
    /// A split one to which `kpack join` returned device code.
    JoinedBinary(FatDescription),
    /// An executable or shared object whose device code is in archives.
    SplitBinary(SplitDescription),
    /// An executable or shared object without device code to split off.
    HostBinary(small::HostDescription),
    /// A relocatable object or static library.
    Unlinked(UnlinkedDescription),
    Archive(ArchiveDescription),
    Manifest(ManifestDescription),
    /// An offload bundle in its own file.
    Bundle(BundleDescription),
    /// A code object in its own file.
    CodeObject(CodeObjectDescription),
    /// Images for other offloading runtimes in their own file.
    OffloadBinary,
}

/// Inspects the file at `path`.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::Refused`] if it is damaged or of an unknown kind.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let file = input::open(path)?;
    let size = file.metadata().map_err(|e| Error::io(path, "read", e))?.len();
    let mut images = Vec::new();
    let content = match input::identify(path, &file)? {
        Some(FileKind::Linked) => {
            let linked = LinkedBinary::read(path, file)?;
            images = linked.offload_images()?;
            linked_binary(&linked)?
        }
        Some(FileKind::Object | FileKind::StaticLibrary) => {
            let unlinked = Unlinked::read(path, &file)?;
            let objects = unlinked.device_objects.iter();
            images = objects.flat_map(|object| object.images.clone()).collect();
            Content::Unlinked(unlinked.into())
        }
        Some(FileKind::OffloadBinary) => {
            let read = offload_binary::read(size, &mut |at, buffer| file.read_exact_at(buffer, at));
            images = read.map_err(|error| offload_error(path, error))?;
            Content::OffloadBinary
        }
        Some(FileKind::Archive) => Content::Archive(ArchiveDescription::read(path)?),
        Some(FileKind::Manifest) => {
            Content::Manifest(ManifestDescription::new(path, input::read_manifest(path)?))
        }
        Some(FileKind::Bundle) => {
            let described = BundleDescription::from(&bundle(path, file, size)?);
            Content::Bundle(BundleDescription { size: None, ..described })
        }
        Some(FileKind::CodeObject) => code_object(path, file, size)?,
        None => {
            let text = describe_package(path, &file)?.unwrap_or_else(|| {
                let found = if size == 0 { "empty" } else { "not recognised" };
                format!(
                    "{found}: expected a program or library, an object, a static library, a .kpack archive, a .kpm \
                     manifest or an offload bundle"
                )
            });
            return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
        }
    };
    Ok(Inspection { path: path.to_owned(), size, content, images })
}

fn linked_binary(linked: &LinkedBinary) -> Result<Content, Error> {
    Ok(match &linked.code {
        DeviceCode::Fat(fat) => match FatDescription::read(linked, fat)? {
            joined if joined.joined.is_some() => Content::JoinedBinary(joined),
            fat => Content::FatBinary(fat),
        },
        DeviceCode::Split(wrappers) => {
            Content::SplitBinary(SplitDescription::read(linked, wrappers)?)
        }
        DeviceCode::None(reason) => Content::HostBinary((*reason).into()),
    })
}

fn bundle(path: &Path, file: File, size: u64) -> Result<Bundle, Error> {
    let bundle = Bundle::read(&mut BufReader::new(file), size);
    bundle.map_err(|error| input::bundle_error(path, "", error))
}

fn code_object(path: &Path, file: File, size: u64) -> Result<Content, Error> {
    let mut file = BufReader::new(file);
    let read = CodeObject::read(&mut file, size);
    let code_object = read.map_err(|error| match error {
        CodeObjectError::Io(e) if e.raw_os_error().is_some() => Error::io(path, "read", e),
        error => Error::rejected(ids::DAMAGED_CODE_OBJECT, path, error.to_string()),
    })?;
    Ok(Content::CodeObject(CodeObjectDescription::new(&code_object, kernels(file))))
}

/// The number of kernels in a code object: each has a descriptor, whose symbol ends in `.kd`. `None` if it has no dynamic
/// symbols.
fn kernels(file: BufReader<File>) -> Option<usize> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<LittleEndian, _>::parse(&cache).ok()?;
    elf.dynamic_symbol_table()?;
    let names = elf.dynamic_symbols().filter_map(|symbol| symbol.name_bytes().ok());
    Some(names.filter(|name| name.ends_with(b".kd")).count())
}

#[cfg(test)]
mod tests {
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
            LinkedBinary::read(&path, open()).map(|_| ()),
            bundle(&path, open(), 100).map(|_| ()),
            code_object(&path, open(), 100).map(|_| ()),
            Unlinked::read(&path, &open()).map(|_| ()),
        ];
        for (index, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{index}: {error:?}");
        }
    }
}
