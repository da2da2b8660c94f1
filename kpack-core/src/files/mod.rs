//! Opens, identifies and reads input files, and adds their paths to errors.

mod difference;
mod identify;
mod manifest;
mod range_reader;
mod real_paths;
mod shared_file;

use std::fs::{self, File, Metadata};
use std::io::{BufReader, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use kpack_format::Reason;
use kpack_format::TargetId;
use kpack_format::archive;
use kpack_format::code_object::{CodeObject, CodeObjectError, HEAD_SIZE};
use kpack_format::digest::{Blake3, Hasher};
use kpack_format::is_exhaustion;
use kpack_format::offload_bundle::{Bundle, BundleError, Format};

use crate::elf::{self, BinaryError};
use crate::interrupt;
use crate::platform;
use crate::{Error, ids};

pub use difference::{first_difference, same_bytes};
pub use identify::{FileKind, HostFormat, START, describe_package, first_bytes, identify, kind_of};
pub use manifest::{manifest_parts, parse_manifest, read_manifest};
pub use range_reader::RangeReader;
pub use real_paths::RealPaths;
pub use shared_file::{SharedFile, sought};

/// Opens a regular file for reading. Nothing else is opened, not even behind a link, because opening a device can change
/// it, and opening a FIFO wakes its writer.
pub fn open(path: &Path) -> Result<File, Error> {
    let found = fs::metadata(path).map_err(|error| Error::io(path, "open", error))?;
    check_regular(path, &found)?;
    open_found(path).map(|(file, _)| file)
}

/// As [`open`], for what was found to be a regular file a moment ago, so that only what took its place since is opened
/// before it is refused. Returns its metadata as well.
pub fn open_found(path: &Path) -> Result<(File, Metadata), Error> {
    interrupt::check(path, "open")?;
    let failed = |error| Error::io(path, "open", error);
    let file = platform::open(path).map_err(failed)?;
    // Something else may have taken its place.
    let metadata = file.metadata().map_err(failed)?;
    check_regular(path, &metadata)?;
    Ok((file, metadata))
}

fn check_regular(path: &Path, found: &Metadata) -> Result<(), Error> {
    if found.is_file() {
        return Ok(());
    }
    let text = if found.is_dir() {
        "a directory, not a regular file; pass a file in it"
    } else {
        "not a regular file; pass a file"
    };
    Err(Error::rejected(ids::NOT_A_FILE, path, text))
}

/// A relative path as archives, wheels and lists name it on every system, with `/`.
pub fn with_slashes(path: &Path) -> String {
    path.to_string_lossy().replace(MAIN_SEPARATOR, "/")
}

/// The directory of a file: `.` for a file name alone.
pub fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().unwrap_or(Path::new("/"));
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

/// The most names in a path that an input lists. Such a list may be made to do harm: names compress well, and each is a
/// directory. No real tree is half as deep.
pub const MAX_DEPTH: usize = 64;

/// What is at a path; `None` if nothing is, or it may not be looked at.
///
/// # Errors
/// The system failed, which says nothing about the path.
pub fn metadata_of(path: &Path) -> Result<Option<Metadata>, Error> {
    match fs::metadata(path) {
        Err(error) if is_exhaustion(&error) => Err(Error::io(path, "read", error)),
        metadata => Ok(metadata.ok()),
    }
}

/// Whether something is at a path, which is not followed if it is a symbolic link. That nobody can look does not mean that
/// nothing is there.
///
/// # Errors
/// [`Error::Io`].
pub fn is_there(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(false),
            _ => Err(Error::io(path, "read", error)),
        },
    }
}

/// The paths of a directory's entries, sorted.
pub fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::io(directory, "list", error);
    let entries = fs::read_dir(directory).map_err(failed)?;
    let mut paths = entries
        .map(|entry| Ok(entry.map_err(failed)?.path()))
        .collect::<Result<Vec<_>, Error>>()?;
    paths.sort();
    Ok(paths)
}

/// The BLAKE3 digest of a file.
pub fn digest(path: &Path) -> Result<Blake3, Error> {
    let mut hasher = Hasher::default();
    read_parts(path, &mut |part| hasher.update(part))?;
    Ok(hasher.finish())
}

/// Passes the contents of a file to `take`, in parts.
pub fn read_parts(path: &Path, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    let mut file = open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => take(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(path, "read", error)),
        }
    }
}

/// An archive in a file.
pub type ArchiveFile = archive::Archive<BufReader<SharedFile>>;

/// Opens an archive. Damage is [`Error::Refused`].
pub fn open_archive(path: &Path) -> Result<ArchiveFile, Error> {
    read_archive(path, open(path)?)
}

/// Reads the archive `file`, which is at `path`. Damage is [`Error::Refused`].
pub fn read_archive(path: &Path, file: File) -> Result<ArchiveFile, Error> {
    archive::Archive::open(archive_reader(file)).map_err(|e| Error::archive(path, "read", e))
}

/// What an archive in `file` is read from.
pub fn archive_reader(file: File) -> BufReader<SharedFile> {
    BufReader::new(SharedFile::new(file))
}

/// The same archive for another thread, neither opened nor parsed again.
pub fn share_archive(archive: &ArchiveFile) -> ArchiveFile {
    archive.share(BufReader::new(archive.source().get_ref().again()))
}

/// Reads the table of a wrapper's bundle.
pub fn open_bundle<R: Read + Seek>(
    reader: &mut R,
    wrapper: &elf::Wrapper,
) -> Result<Bundle, BundleError> {
    reader.seek(SeekFrom::Start(wrapper.bundle_offset))?;
    Bundle::read(reader, wrapper.bundle_available)
}

/// Checks a bundle, of which `range` is the place in `file`: its content against the hash in its header, if it is
/// compressed, and the headers of each code object. Of a plain bundle, nothing else is read.
pub fn check_bundle(file: &File, range: Range<u64>, bundle: &Bundle) -> Result<(), BundleError> {
    let reader = || BufReader::new(RangeReader::new(file, range.clone()));
    let damaged = |offset: u64, target: &TargetId, what: String| BundleError::Malformed {
        offset,
        reason: Reason::from(format!("the code object for {target}: {what}")).target(target),
    };
    if !matches!(bundle.format, Format::Compressed { .. }) {
        for entry in bundle.entries.iter().filter(|entry| entry.size > 0) {
            if let Some(target) = entry.id.target() {
                let start = range.start + entry.offset;
                let code = RangeReader::new(file, start..start + entry.size);
                check_code_object_in(code, entry.size, target)
                    .map_err(|what| damaged(entry.offset, target, what))?;
            }
        }
        return Ok(());
    }
    let mut code_objects = bundle.code_objects(reader(), |_| true)?;
    let mut first_error = None;
    while let Some(mut code_object) = code_objects.next_entry()? {
        let mut head = Vec::new();
        code_object.append(&mut head, HEAD_SIZE as u64)?;
        let mut checked = code_object.targets().map(|target| {
            check_code_object_head(&head, code_object.size(), target)
                .map_err(|what| damaged(code_object.offset(), target, what))
        });
        first_error = first_error.or_else(|| checked.find_map(Result::err));
    }
    // Damage of the whole bundle says more than one that follows from it.
    first_error.map_or(Ok(()), Err)
}

/// Adds the path to a bundle's error, and the location if the file has several bundles.
pub fn bundle_error(path: &Path, place: &str, error: BundleError) -> Error {
    match error {
        // A decompressor reports damage as an I/O error without an error number.
        BundleError::Io(error)
            if error.raw_os_error().is_some() || error.kind() == ErrorKind::OutOfMemory =>
        {
            Error::io(path, "read", error)
        }
        error => Error::rejected(ids::DAMAGED_BUNDLE, path, Reason::from(error).after(place)),
    }
}

/// Adds the path, wrapper and file offset to a bundle's error.
pub fn wrapper_error(path: &Path, wrapper: u32, offset: u64, error: BundleError) -> Error {
    let place = format!("wrapper {wrapper}, bundle at file offset {offset:#x}: ");
    bundle_error(path, &place, error).about(|reason| reason.at(offset))
}

/// Adds the path to a code object's error.
pub fn failed_code_object(path: &Path, error: CodeObjectError) -> Error {
    match error {
        CodeObjectError::Io(error) if error.kind() != ErrorKind::UnexpectedEof => {
            Error::io(path, "read", error)
        }
        CodeObjectError::Unsupported(_) => {
            Error::rejected(ids::DEBUG_NOT_REMOVABLE, path, error.to_string())
        }
        error => Error::rejected(ids::DAMAGED_CODE_OBJECT, path, error.to_string()),
    }
}

/// Adds the path to an ELF error.
pub fn binary_error(path: &Path, error: BinaryError) -> Error {
    let id = match error {
        BinaryError::Io(e) if e.kind() != ErrorKind::UnexpectedEof => {
            return Error::io(path, "read", e);
        }
        BinaryError::Relocatable => ids::UNKNOWN_FILE,
        BinaryError::Unsupported(_) => ids::UNSUPPORTED_BINARY,
        BinaryError::Signed => ids::SIGNED_BINARY,
        BinaryError::Unsound(_) => ids::UNSOUND_OUTPUT,
        _ => ids::DAMAGED_BINARY,
    };
    Error::rejected(id, path, error)
}

/// Checks by its own header that a code object is for `target`; the error says what differs.
pub fn check_code_object(bytes: &[u8], target: &TargetId) -> Result<(), String> {
    let size = bytes.len() as u64;
    check_target(target, || CodeObject::read(&mut Cursor::new(bytes), size))
}

/// Like [`check_code_object`], for a code object of `size` bytes that is read from `source`.
pub fn check_code_object_in(
    source: impl Read + Seek,
    size: u64,
    target: &TargetId,
) -> Result<(), String> {
    check_target(target, || CodeObject::read(&mut BufReader::new(source), size))
}

/// Like [`check_code_object`], given only the first bytes and the size.
pub fn check_code_object_head(head: &[u8], size: u64, target: &TargetId) -> Result<(), String> {
    check_target(target, || CodeObject::read_head(head, size))
}

fn check_target(
    target: &TargetId,
    read: impl FnOnce() -> Result<CodeObject, CodeObjectError>,
) -> Result<(), String> {
    // The runtime compiles SPIR-V further; it is not an AMDGPU ELF file.
    if !target.processor().starts_with("gfx") {
        return Ok(());
    }
    let checked = read().and_then(|code_object| code_object.check_target(target));
    checked.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_not_sound_is_no_fault_of_its_input() {
        let error = binary_error(Path::new("lib.so"), BinaryError::Unsound("".into()));
        assert_eq!(error.id(), ids::UNSOUND_OUTPUT);
    }
}
