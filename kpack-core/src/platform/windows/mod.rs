//! Windows.

mod adapters;
mod handle;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::windows::fs::{OpenOptionsExt, symlink_dir, symlink_file};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use kpack_format::names::fold_case;
use winapi_util::file::information;

use super::{FileIdentity, SharedInode};

pub(crate) use adapters::display_adapters;
pub(crate) use handle::Handle;

/// FILE_FLAG_BACKUP_SEMANTICS: directories may be opened, too.
const DIRECTORIES: u32 = 0x0200_0000;
/// FILE_FLAG_OPEN_REPARSE_POINT: what is there itself is opened, not where it leads.
const NOT_FOLLOWED: u32 = 0x0020_0000;
/// FILE_FLAG_DELETE_ON_CLOSE.
const REMOVED_AT_END: u32 = 0x0400_0000;
/// GENERIC_READ | GENERIC_WRITE | DELETE.
const ALL_ACCESS: u32 = 0xc001_0000;

/// Reads and writes at positions, as the trait of the same name for Unix.
pub trait FileExt {
    /// Reads at a position; returns the number of bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes at a position; returns the number of bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize>;

    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`], and those of the system.
    fn read_exact_at(&self, mut bytes: &mut [u8], mut position: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read_at(bytes, position) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    bytes = &mut bytes[read..];
                    position += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// Those of the system.
    fn write_all_at(&self, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    position += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl FileExt for File {
    fn read_at(&self, bytes: &mut [u8], position: u64) -> io::Result<usize> {
        at_position(self, || std::os::windows::fs::FileExt::seek_read(self, bytes, position))
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        at_position(self, || std::os::windows::fs::FileExt::seek_write(self, bytes, position))
    }
}

/// Windows moves the position of the file, from which its one reader or writer goes on. Threads that do this at once
/// restore what others set, so they read and write a file that they share only at positions.
fn at_position<T>(mut file: &File, access: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = file.stream_position()?;
    let done = access();
    file.seek(SeekFrom::Start(before))?;
    done
}

/// What Unix knows about a file, as far as there is something like it.
pub trait MetadataExt {
    /// Permission bits. Everybody may read; a directory may be entered, and what is not read-only written.
    fn mode(&self) -> u32;
    /// The number of names: one, since only an open file tells.
    fn nlink(&self) -> u64;
    /// When it was written, in seconds since 1970.
    fn mtime(&self) -> i64;
    /// What it takes on the disk, in blocks of 512 bytes: kpack makes no holes here.
    fn blocks(&self) -> u64;
    /// The owner: the same for all, since Windows has no numbers for owners.
    fn uid(&self) -> u32;
    /// The group, in the same way.
    fn gid(&self) -> u32;
}

impl MetadataExt for Metadata {
    fn mode(&self) -> u32 {
        let write = if self.permissions().readonly() { 0 } else { 0o200 };
        write | if self.is_dir() { 0o555 } else { 0o444 }
    }

    fn nlink(&self) -> u64 {
        1
    }

    fn mtime(&self) -> i64 {
        let modified = self.modified().ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        since.map_or(0, |since| since.as_secs() as i64)
    }

    fn uid(&self) -> u32 {
        0
    }

    fn gid(&self) -> u32 {
        0
    }

    fn blocks(&self) -> u64 {
        self.len().div_ceil(512)
    }
}

/// When a file was last written or made. A copy that keeps the time of the content was made later.
///
/// # Errors
/// The file system has no times.
pub fn changed_at(metadata: &Metadata) -> io::Result<SystemTime> {
    Ok(metadata.modified()?.max(metadata.created()?))
}

/// Kinds of files that Windows does not have in directories.
pub trait FileTypeExt {
    /// Never.
    fn is_fifo(&self) -> bool {
        false
    }
    /// Never.
    fn is_socket(&self) -> bool {
        false
    }
    /// Never.
    fn is_block_device(&self) -> bool {
        false
    }
    /// Never.
    fn is_char_device(&self) -> bool {
        false
    }
}

impl FileTypeExt for FileType {}

/// Bytes of names. They are UTF-8, but for names that are no Unicode.
pub trait OsStrExt {
    /// The bytes.
    fn as_bytes(&self) -> &[u8];
    /// The name of these bytes. Those that are no UTF-8 stand for no name that a file has.
    fn from_bytes(bytes: &[u8]) -> &Self;
}

/// What cannot be in a name.
const NO_NAME: &str = "\u{fffd}?";

impl OsStrExt for OsStr {
    fn as_bytes(&self) -> &[u8] {
        self.as_encoded_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> &Self {
        Self::new(std::str::from_utf8(bytes).unwrap_or(NO_NAME))
    }
}

/// As [`OsStrExt`], owned.
pub trait OsStringExt {
    /// The name of these bytes.
    fn from_vec(bytes: Vec<u8>) -> Self;
    /// The bytes.
    fn into_vec(self) -> Vec<u8>;
}

impl OsStringExt for OsString {
    fn from_vec(bytes: Vec<u8>) -> Self {
        OsStr::from_bytes(&bytes).to_owned()
    }

    fn into_vec(self) -> Vec<u8> {
        self.into_encoded_bytes()
    }
}

pub(super) fn identity(file: &File) -> io::Result<FileIdentity> {
    let found = information(file)?;
    Ok(FileIdentity {
        id: (found.volume_serial_number(), found.file_index()),
        size: found.file_size(),
        modified: (found.last_write_time().unwrap_or(0) as i64, 0),
    })
}

/// The number of names of an open file.
pub(crate) fn link_count(file: &File) -> io::Result<u64> {
    information(file).map(|found| found.number_of_links())
}

/// The file system of what a path leads to, and its number there. `metadata` is of the same.
///
/// # Errors
/// Those of the system.
pub fn id_of(path: &Path, _metadata: &Metadata) -> io::Result<(u64, u64)> {
    identity(&open_to_ask(path)?).map(|identity| identity.id)
}

/// Opens what a path leads to without access to its content.
fn open_to_ask(path: &Path) -> io::Result<File> {
    OpenOptions::new().access_mode(0).custom_flags(DIRECTORIES).open(path)
}

/// Unknown, since only an open file tells: each name counts as a file.
pub fn shared_inode(_metadata: &Metadata) -> Option<SharedInode> {
    None
}

/// Which file is at a path, if it has more than one name. What [`shared_inode`] found says nothing here.
///
/// # Errors
/// Those of the system.
pub fn shared_inode_at(
    path: &Path,
    _found: Option<SharedInode>,
) -> io::Result<Option<SharedInode>> {
    let file = open_to_ask(path)?;
    let is_shared = link_count(&file)? > 1;
    is_shared.then(|| identity(&file).map(SharedInode)).transpose()
}

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Windows has no pipes with paths that other processes were given.
///
/// # Errors
/// Always.
pub(crate) fn open_pipe(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Windows has no permission bits; who may use a new file is inherited from its directory.
///
/// # Errors
/// None.
pub fn set_mode(_file: &File, _mode: u32) -> io::Result<()> {
    Ok(())
}

/// As [`set_mode`]; what the owner may write is not read-only.
///
/// # Errors
/// Those of the system.
pub fn set_mode_at(path: &Path, mode: u32) -> io::Result<()> {
    let mut permissions = fs::metadata(path)?.permissions();
    let is_readonly = mode & 0o200 == 0;
    if permissions.readonly() == is_readonly {
        return Ok(());
    }
    permissions.set_readonly(is_readonly);
    fs::set_permissions(path, permissions)
}

/// Creates a symbolic link. Windows has two kinds, for files and for directories, and needs a privilege for them.
///
/// # Errors
/// Those of the system.
pub fn symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    // Windows does not follow `/` in links.
    let target = target.as_ref().to_string_lossy().replace('/', r"\");
    let (target, link) = (Path::new(&target), link.as_ref());
    let above = link.parent().unwrap_or(Path::new(""));
    if above.join(target).is_dir() { symlink_dir(target, link) } else { symlink_file(target, link) }
}

/// Unknown: writing fails where the space ends.
///
/// # Errors
/// None.
pub(crate) fn free_space(_directory: &Path) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Whether an error comes from a disk that is full or read-only.
pub(crate) fn is_disk_failure(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Whether an error says that a name or a path is too long (`ERROR_FILENAME_EXCED_RANGE`).
// `io::ErrorKind::InvalidFilename` is stable since Rust 1.87.
pub(crate) fn is_name_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(206)
}

/// Whether the system makes up the file system of a directory: there are none.
///
/// # Errors
/// None.
pub fn is_pseudo_file_system(_directory: &Path) -> io::Result<bool> {
    Ok(false)
}

/// The path without symbolic links.
///
/// # Errors
/// Those of the system.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// Whether a file can have this name: others lead to devices or to another stream of a file, or Windows changes them
/// ("Naming Files, Paths, and Namespaces").
pub fn is_file_name(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_numbered = |device: &str| {
        let number = stem.strip_prefix(device);
        number.is_some_and(|number| matches!(number, "¹" | "²" | "³") || is_digit(number))
    };
    let is_device = matches!(&*stem, "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$")
        || ["COM", "LPT"].iter().any(|device| is_numbered(device));
    let is_special = |c: char| c.is_control() || r#"<>:"|?*/\"#.contains(c);
    !is_device && !name.contains(is_special) && !name.ends_with(['.', ' '])
}

/// What the names of one file have in common: case does not matter.
pub fn name_key(name: &str) -> Cow<'_, str> {
    fold_case(name).into()
}

fn is_digit(text: &str) -> bool {
    text.len() == 1 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A text as people write its paths: Windows returns the real path of a file as `\\?\C:\…`.
pub fn readable(text: &str) -> Cow<'_, str> {
    if text.contains(VERBATIM) {
        let text = text.replace(r"\\?\UNC\", r"\\");
        text.replace(VERBATIM, "").into()
    } else {
        text.into()
    }
}

/// How such a path begins.
const VERBATIM: &str = r"\\?\";

/// Windows has no limit to raise.
pub fn raise_open_files() {}

/// Locks a file of kpack's own, unless another process has; says whether. Other processes can neither read nor write it
/// meanwhile.
#[expect(
    clippy::incompatible_msrv,
    reason = "Debian, which has Rust 1.85, builds nothing for Windows"
)]
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Programs that read a host file would fail while it is locked, so it is not.
pub(crate) fn try_lock_host(_file: &File) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Windows writes when it likes.
pub(crate) fn begin_flush(_file: &File, _at: u64, _size: u64) {}

/// Holes are not looked for.
pub(crate) fn next_data(_file: &File, at: u64) -> io::Result<Option<u64>> {
    Ok(Some(at))
}

/// Holes are not looked for.
pub(crate) fn next_hole(_file: &File, _at: u64) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Who owns and may use a new file is inherited from its directory.
pub(crate) fn keep_attributes(_new: &File, _old: &File) -> io::Result<Vec<String>> {
    Ok(Vec::new())
}
