//! Linux.

mod attributes;
mod handle;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Advice, FlockOperation, OFlags, SeekFrom, flock, statvfs};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{FileIdentity, SharedInode};
use crate::parallel::lock;

pub(crate) use attributes::keep as keep_attributes;
pub(crate) use handle::Handle;
pub use std::os::unix::ffi::{OsStrExt, OsStringExt};
pub use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};

/// The IDs of the display adapters, where only these tell the GPUs. Linux has KFD.
pub(crate) fn display_adapters() -> Vec<String> {
    Vec::new()
}

pub(crate) fn identity(file: &File) -> io::Result<FileIdentity> {
    file.metadata().map(|metadata| identity_in(&metadata))
}

fn identity_in(metadata: &Metadata) -> FileIdentity {
    FileIdentity {
        id: (metadata.dev(), metadata.ino()),
        size: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// When a file was last written, renamed or otherwise changed. `cp -p` and `rsync -t` set only the time of the content.
///
/// # Errors
/// The system does not say.
pub fn changed_at(metadata: &Metadata) -> io::Result<SystemTime> {
    let since = Duration::new(
        u64::try_from(metadata.ctime()).unwrap_or_default(),
        u32::try_from(metadata.ctime_nsec()).unwrap_or_default(),
    );
    Ok(metadata.modified()?.max(UNIX_EPOCH + since))
}

/// The number of names of an open file.
pub(crate) fn link_count(file: &File) -> io::Result<u64> {
    file.metadata().map(|metadata| metadata.nlink())
}

/// The file system of what a path leads to, and its number there. `metadata` is of the same.
///
/// # Errors
/// None.
pub fn id_of(_path: &Path, metadata: &Metadata) -> io::Result<(u64, u64)> {
    Ok((metadata.dev(), metadata.ino()))
}

/// Which file it is, if it has more than one name.
pub fn shared_inode(metadata: &Metadata) -> Option<SharedInode> {
    (metadata.is_file() && metadata.nlink() > 1).then(|| SharedInode(identity_in(metadata)))
}

/// What [`shared_inode`] found of the file at a path, where that is all that is known; Windows opens the file.
///
/// # Errors
/// None.
pub fn shared_inode_at(
    _path: &Path,
    found: Option<SharedInode>,
) -> io::Result<Option<SharedInode>> {
    Ok(found)
}

/// Opens a file for reading. Does not wait for the writer of a FIFO.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Opens a FIFO, or the pipe behind an open descriptor, for reading and writing. Neither opening nor reading waits, and
/// other users of the pipe do not notice. Refuses everything else: what is read from a file would be overwritten.
pub(crate) fn open_pipe(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pipe"))
    }
}

/// Sets permission bits.
///
/// # Errors
/// Those of the system.
pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// As [`set_mode`], of what a path leads to.
///
/// # Errors
/// Those of the system.
pub fn set_mode_at(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The free bytes of the file system of a directory; `None` if it does not say.
///
/// # Errors
/// Those of the system.
pub(crate) fn free_space(directory: &Path) -> io::Result<Option<u64>> {
    let system = statvfs(directory)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    Ok((system.f_blocks != 0).then_some(free))
}

/// The file systems that the kernel makes up: they show what it knows, and nothing is stored in them (statfs(2)).
const PSEUDO_FILE_SYSTEMS: &[u64] = &[
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x4249_4e4d, // binfmt_misc
    0x1980_0202, // mqueue
    0x6573_5543, // fusectl
    0x6265_6570, // configfs
    0x6e73_6673, // nsfs
    0x6759_6969, // rpc_pipefs
];

/// Whether an error comes from a disk that fails, or is full or read-only.
pub(crate) fn is_disk_failure(error: &io::Error) -> bool {
    let number = Errno::from_io_error(error);
    matches!(number, Some(Errno::IO | Errno::NOSPC | Errno::DQUOT | Errno::ROFS))
}

/// Whether an error says that a name or a path is too long.
// `io::ErrorKind::InvalidFilename` is stable since Rust 1.87.
pub(crate) fn is_name_too_long(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NAMETOOLONG)
}

/// Whether a directory is in a file system that the kernel makes up, such as `/proc`.
///
/// # Errors
/// Those of the system.
pub fn is_pseudo_file_system(directory: &Path) -> io::Result<bool> {
    // Its type differs between machines, in size and sign; the numbers have 32 bits.
    let found = rustix::fs::statfs(directory)?.f_type as u64 & 0xffff_ffff;
    Ok(PSEUDO_FILE_SYSTEMS.contains(&found))
}

/// The path without symbolic links. One below an [anchor](crate::publish::Directory::anchor) stays so.
///
/// # Errors
/// Those of the system.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    let real = path.canonicalize()?;
    let mut parts = path.components();
    let anchor: PathBuf = parts.by_ref().take(5).collect();
    let is_anchor = anchor.strip_prefix(DESCRIPTORS).is_ok_and(|fd| fd != Path::new(""));
    let within = if is_anchor { real.strip_prefix(anchor.canonicalize()?).ok() } else { None };
    Ok(within.map_or_else(|| real.clone(), |within| anchor.join(within)))
}

/// Whether a file can have this name.
pub fn is_file_name(_name: &OsStr) -> bool {
    true
}

/// What the names of one file have in common.
pub fn name_key(name: &str) -> Cow<'_, str> {
    name.into()
}

/// The paths by which the directories were opened that [anchors](crate::publish::Directory::anchor) lead to.
static ANCHORS: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());

/// The anchor of an open directory, which was opened by `path`.
pub(crate) fn anchor(directory: &File, path: &Path) -> PathBuf {
    let anchor = Path::new(DESCRIPTORS).join(directory.as_raw_fd().to_string());
    if !anchor.exists() {
        return path.to_owned();
    }
    lock(&ANCHORS).insert(anchor.clone(), path.to_owned());
    anchor
}

/// Where Linux has this process's open files.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A text as people write its paths: without anchors.
pub fn readable(text: &str) -> Cow<'_, str> {
    let mut text = Cow::from(text);
    if text.contains(DESCRIPTORS) {
        // The last one first: it may begin as another.
        for (anchor, path) in lock(&ANCHORS).iter().rev() {
            text = text.replace(&*anchor.to_string_lossy(), &path.to_string_lossy()).into();
        }
    }
    text
}

/// Permits as many open files as this process may have.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    // If that fails, most work is still possible.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Locks a file, unless another process has; says whether. `File::try_lock` would need Rust 1.89.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    try_flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// As [`try_lock`], for a lock that several processes have.
fn try_lock_shared(file: &File) -> io::Result<bool> {
    try_flock(file, FlockOperation::NonBlockingLockShared)
}

fn try_flock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// As [`try_lock`], for a file that other programs use.
pub(crate) use try_lock as try_lock_host;

/// Starts to move bytes that were just written to the disk.
pub(crate) fn begin_flush(file: &File, at: u64, size: u64) {
    // Linux takes this as a reason to write the range now. It drops from memory only what is on the
    // disk already.
    let _ = rustix::fs::fadvise(file, at, NonZeroU64::new(size), Advice::DontNeed);
}

/// Where the next bytes after `at` are that are not in a hole; `None` if only a hole follows.
pub(crate) fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where the next hole after `at` is.
pub(crate) fn next_hole(file: &File, at: u64) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::Hole(at))?)
}
