//! Inspects files: fat or split binary, archive, manifest, bundle, code object.
//!
//! Reads only headers and tables, and one code object at a time if a table is compressed. So
//! inspecting a binary of a gigabyte does not need a gigabyte of memory.

mod archive;
mod code_objects;
mod json;
mod linked;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use kpack_format::code_object::{CodeObject, CodeObjectError};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::offload_binary::{self, OffloadImage};
use kpack_format::offload_bundle::Bundle;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSymbol as _, ReadCache};

use kpack_core::platform::FileExt;
use kpack_core::{Error, ids};
use kpack_split::elf::{DeviceCode, NoDeviceCode};
use kpack_split::input::{self, FileKind, LinkedBinary, offload_error};

pub use archive::Archive;
pub use code_objects::{CodeObjects, SelectedCode, TakeCode};
pub use kpack_build::internal::{DeviceObject, Unlinked};
pub use kpack_split::input::{Kpack, Kpacks};
pub use linked::{FatBinary, SplitBinary};
pub use rocm_kpack::lookup::Rule;

/// The result of inspecting a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its content.
    pub content: Content,
    /// Its images in LLVM's format, for OpenMP and other offloading runtimes.
    pub images: Vec<OffloadImage>,
}

/// The kind and content of a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Content {
    /// An executable or shared object with its device code in it.
    FatBinary(FatBinary),
    /// An executable or shared object whose device code is in archives.
    SplitBinary(SplitBinary),
    /// An executable or shared object without device code to split off.
    HostBinary(NoDeviceCode),
    /// A relocatable object or static library.
    Unlinked(Unlinked),
    /// A `.kpack` archive.
    Archive(Archive),
    /// A `.kpm` manifest.
    Manifest(Manifest),
    /// An offload bundle in its own file.
    Bundle(Bundle),
    /// A code object in its own file, and the number of its kernels, if it has symbols.
    CodeObject(CodeObject, Option<usize>),
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
            Content::Unlinked(unlinked)
        }
        Some(FileKind::OffloadBinary) => {
            let read = offload_binary::read(size, &mut |at, buffer| file.read_exact_at(buffer, at));
            images = read.map_err(|error| offload_error(path, error))?;
            Content::OffloadBinary
        }
        Some(FileKind::Archive) => Content::Archive(Archive::read(path)?),
        Some(FileKind::Manifest) => Content::Manifest(input::read_manifest(path)?),
        Some(FileKind::Bundle) => Content::Bundle(bundle(path, file, size)?),
        Some(FileKind::CodeObject) => code_object(path, file, size)?,
        None => {
            let found = if size == 0 { "empty" } else { "not recognised" };
            return Err(Error::rejected(
                ids::UNKNOWN_FILE,
                path,
                format!(
                    "{found}: expected a program or library, an object, a static library, a .kpack archive, a .kpm \
                     manifest or an offload bundle; for wheels, run `kpack wheel`"
                ),
            ));
        }
    };
    Ok(Inspection { path: path.to_owned(), size, content, images })
}

fn linked_binary(linked: &LinkedBinary) -> Result<Content, Error> {
    Ok(match &linked.code {
        DeviceCode::Fat(fat) => Content::FatBinary(FatBinary::read(linked, fat)?),
        DeviceCode::Split(wrappers) => {
            Content::SplitBinary(SplitBinary::read(linked, wrappers.clone())?)
        }
        DeviceCode::None(reason) => Content::HostBinary(*reason),
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
    Ok(Content::CodeObject(code_object, kernels(file)))
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

/// The code object version for an ABI version; `None` for an unknown one. ELFABIVERSION_AMDGPU_HSA_V2
/// is 0, and so on (LLVM's AMDGPU usage document).
pub(crate) fn code_object_version(code_object: &CodeObject) -> Option<u8> {
    let version = code_object.abi_version;
    (version <= 4).then(|| version + 2)
}

/// Whether an archive that the manifest at `path` lists exists.
pub(crate) fn is_present(path: &Path, listed: &KpackFile) -> bool {
    path.with_file_name(&listed.filename).is_file()
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
