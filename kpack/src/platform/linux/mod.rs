//! Linux.

mod memory;
mod process_map;

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(crate) use memory::read_memory;
pub use process_map::discover_binary_path;

/// The identity of a file: different after the file was replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileId {
    /// The identity of the file that `path` leads to.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|metadata| Self::from(&metadata))
    }

    /// The identity of an open file.
    pub(crate) fn of(_file: &File, metadata: &Metadata) -> io::Result<Self> {
        Ok(Self::from(metadata))
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// The path in a C string.
pub fn path_of(text: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text))
}

/// A path as C strings have it.
pub fn text_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Opens a file for reading. Does not wait for a pipe.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Reads at a position, for any number of threads; returns the number of bytes.
pub(crate) fn read_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<usize> {
    file.read_at(bytes, position)
}

/// Whether the process has more rights than whoever started it (AT_SECURE, see getauxval(3)).
pub(crate) fn is_secure() -> bool {
    // SAFETY: getauxval has no precondition.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The paths by which the dynamic linker loaded the libraries of this process. It has none for the program
/// itself.
pub(crate) fn loaded_objects() -> Vec<PathBuf> {
    unsafe extern "C" fn add(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: both pointers are valid during the call, and nobody else has the list.
        let (name, paths) = unsafe { ((*object).dlpi_name, &mut *paths.cast::<Vec<PathBuf>>()) };
        if !name.is_null() {
            // SAFETY: it ends with NUL.
            let name = unsafe { CStr::from_ptr(name) };
            paths.push(PathBuf::from(OsStr::from_bytes(name.to_bytes())));
        }
        0
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    // SAFETY: `add` gets the list, which lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut paths).cast()) };
    paths
}
