//! An open directory.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;

use super::{
    ALL_ACCESS, DIRECTORIES, MetadataExt, NOT_FOLLOWED, REMOVED_AT_END, identity, set_mode_at,
    symlink,
};
use crate::platform::{Entry, Kind};
use crate::publish::numbered;

/// The file that exists while its directory is locked.
const LOCK: &str = ".kpack-lock.tmp";
/// ERROR_SHARING_VIOLATION.
const IN_USE: i32 = 32;
/// ERROR_ACCESS_DENIED: of a file that is being removed, or for want of rights.
const DENIED: i32 = 5;
/// How many tries in a row may be denied, since the file may be being removed: two seconds, at one in 20 ms.
const MOST_DENIED: u32 = 100;

/// An open directory, and the path that led to it. Windows has no operations relative to it; they use the path.
#[derive(Debug)]
pub(crate) struct Handle {
    path: PathBuf,
    file: File,
    lock: OnceLock<File>,
    /// How many of the last tries to lock it were denied.
    denied: AtomicU32,
}

impl Handle {
    /// Follows symbolic links.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::new(path.to_owned(), 0).and_then(|found| found.ok_or_else(no_directory))
    }

    /// A second one, without the lock.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
            file: self.file.try_clone()?,
            lock: OnceLock::new(),
            denied: AtomicU32::new(0),
        })
    }

    /// A directory in it; `None` if that is no directory, or a link to one.
    pub(crate) fn child(&self, name: &OsStr) -> io::Result<Option<Self>> {
        Self::new(self.path.join(name), NOT_FOLLOWED)
    }

    /// As [`child`](Self::child), only to open what is in it.
    pub(crate) fn passage(&self, name: &OsStr) -> io::Result<Option<Self>> {
        self.child(name)
    }

    fn new(path: PathBuf, flags: u32) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(DIRECTORIES | flags).open(&path)?;
        let is_directory = file.metadata()?.is_dir();
        Ok(is_directory.then(|| Self {
            path,
            file,
            lock: OnceLock::new(),
            denied: AtomicU32::new(0),
        }))
    }

    /// The directory that it is in.
    pub(crate) fn parent(&self) -> io::Result<Self> {
        Self::open(self.path.parent().unwrap_or(Path::new("")))
    }

    /// Creates a directory in it. Says whether it did; there may be one.
    pub(crate) fn make(&self, name: &OsStr, _mode: u32) -> io::Result<bool> {
        match fs::create_dir(self.path.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn set_mode(&self, _mode: u32) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn set_whole_mode(&self, mode: u32) -> io::Result<()> {
        set_mode_at(&self.path, mode)
    }

    /// Who may use a new directory is inherited from the one it is in.
    pub(crate) fn is_own(&self) -> io::Result<bool> {
        Ok(true)
    }

    pub(crate) fn anchor(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    pub(crate) fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        let mut options = OpenOptions::new();
        // FILE_WRITE_ATTRIBUTES.
        let file = options.access_mode(0x100).custom_flags(DIRECTORIES);
        file.open(&self.path)?.set_times(FileTimes::new().set_modified(time))
    }

    /// Which directory it is.
    pub(crate) fn id(&self) -> io::Result<(u64, u64)> {
        identity(&self.file).map(|identity| identity.id)
    }

    /// Locks it, unless another process has; says whether. Directories cannot be locked, so the lock is a file that
    /// nobody else can open, and that Windows removes with its owner.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        if self.lock.get().is_some() {
            return Ok(true);
        }
        let mut options = OpenOptions::new();
        options.access_mode(ALL_ACCESS).share_mode(0).create(true).write(true);
        options.custom_flags(REMOVED_AT_END);
        let opened = options.open(self.path.join(LOCK));
        let denied = self.denied.swap(0, Relaxed);
        match opened {
            Ok(lock) => {
                let _ = self.lock.set(lock);
                Ok(true)
            }
            // It was removed meanwhile, which whoever locks it finds out next.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(IN_USE) => Ok(false),
                Some(DENIED) if denied < MOST_DENIED => {
                    self.denied.store(denied + 1, Relaxed);
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    /// A lock is a file here, which has no room for several owners, so nobody waits.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        Ok(true)
    }

    pub(crate) fn create(&self, name: &OsStr, _mode: u32) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).open(self.path.join(name))
    }

    /// A file that Windows removes when it is closed.
    pub(crate) fn create_nameless(&self) -> io::Result<File> {
        let number = RandomState::new().hash_one(std::process::id());
        let name = format!(".scratch.{number:016x}.tmp");
        let mut options = OpenOptions::new();
        options.access_mode(ALL_ACCESS).write(true).create_new(true);
        options.custom_flags(REMOVED_AT_END).open(self.path.join(name))
    }

    /// What is removed when it is closed cannot stay.
    pub(crate) fn link(&self, _file: &File, _name: &OsStr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Opens a file for reading; `None` if there is none, or it is a link or a directory.
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.open_regular(name, false)
    }

    /// The same, for writing as well.
    pub(crate) fn open_to_change(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.open_regular(name, true)
    }

    fn open_regular(&self, name: &OsStr, writes: bool) -> io::Result<Option<File>> {
        match self.entry(name)? {
            Some(there) if there.kind == Kind::File => {}
            _ => return Ok(None),
        }
        let opened = OpenOptions::new().read(true).write(writes).open(self.path.join(name));
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn symlink(&self, name: &OsStr, target: &Path) -> io::Result<()> {
        symlink(target, self.path.join(name))
    }

    pub(crate) fn set_symlink_times(
        &self,
        name: &OsStr,
        accessed: SystemTime,
        modified: SystemTime,
    ) -> io::Result<()> {
        let mut options = OpenOptions::new();
        // FILE_WRITE_ATTRIBUTES.
        options.access_mode(0x100).custom_flags(DIRECTORIES | NOT_FOLLOWED);
        let times = FileTimes::new().set_accessed(accessed).set_modified(modified);
        options.open(self.path.join(name))?.set_times(times)
    }

    pub(crate) fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        if fs::symlink_metadata(&path)?.is_symlink() {
            fs::read_link(path)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    pub(crate) fn hard_link(&self, name: &OsStr, other: &Self, from: &OsStr) -> io::Result<()> {
        fs::hard_link(other.path.join(from), self.path.join(name))
    }

    /// What is there under a name.
    pub(crate) fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
        let mut options = OpenOptions::new();
        options.access_mode(0).custom_flags(DIRECTORIES | NOT_FOLLOWED);
        let file = match options.open(self.path.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let kind = match metadata.file_type() {
            kind if kind.is_symlink() => Kind::Symlink,
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_file() => Kind::File,
            _ => Kind::Device,
        };
        let modified = metadata.modified()?;
        Ok(Some(Entry { kind, mode: metadata.mode(), modified, identity: identity(&file)? }))
    }

    /// Renames a file in it into the directory `other`, where it replaces one. Not every version of Windows replaces a
    /// file that is open, and none a library that is loaded, but each lets them be renamed.
    pub(crate) fn rename(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        let (from, into) = (self.path.join(from), other.path.join(to));
        match fs::rename(&from, &into) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && into.is_file() => {}
            renamed => return renamed,
        }
        // What cannot be removed now is a leftover, which the next run removes.
        let aside = other.path.join(numbered(to));
        fs::rename(&into, &aside)?;
        let renamed = fs::rename(&from, &into);
        let _ = match renamed {
            Ok(()) => fs::remove_file(&aside),
            Err(_) => fs::rename(&aside, &into),
        };
        renamed
    }

    /// Renames an entry of it to a name in `other` that is free.
    pub(crate) fn rename_new(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        match other.entry(to)? {
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => {
                let (from, to) = (self.path.join(from), other.path.join(to));
                // A rename would replace a file that appears now, but never a directory.
                match fs::hard_link(&from, &to) {
                    Ok(()) => fs::remove_file(&from),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                    // A directory, or a file system without links.
                    Err(_) => fs::rename(&from, &to),
                }
            }
        }
    }

    /// Windows cannot exchange names.
    pub(crate) fn exchange(&self, _name: &OsStr, _other: &Self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Only files can be read-only.
    pub(crate) fn open_up(&self, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    pub(crate) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(self.path.join(name))
    }

    /// Gives up the lock, which is a file in it. Whoever locks it from now on keeps it from being removed.
    pub(crate) fn prepare_removal(&mut self) {
        self.lock = OnceLock::new();
    }

    pub(crate) fn entries(&self) -> io::Result<Vec<(OsString, Option<Kind>)>> {
        let names = fs::read_dir(&self.path)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .filter(|name| !name.as_ref().is_ok_and(|name| name == LOCK));
        names.map(|name| Ok((name?, None))).collect()
    }

    /// Only files can be flushed, and each was; NTFS keeps the order of what is done to directories.
    pub(crate) fn sync_file_system(&self) -> io::Result<()> {
        Ok(())
    }

    /// As [`sync_file_system`](Self::sync_file_system).
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn no_directory() -> io::Error {
    io::ErrorKind::NotADirectory.into()
}
