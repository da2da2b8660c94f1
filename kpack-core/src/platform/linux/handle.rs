//! A directory held open by its descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, renameat_with,
};
use rustix::io::Errno;

use super::{set_mode, set_mode_at};
use crate::platform::{Entry, FileIdentity, Kind};

/// An open directory: what is done with it stays in it, even if its path later leads elsewhere.
#[derive(Debug)]
pub(crate) struct Handle(File);

impl Handle {
    /// Follows symbolic links.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = rustix::fs::open(path, directory_flags(), Mode::empty())?;
        Ok(Self(file.into()))
    }

    /// A second one, without the lock.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let file = rustix::fs::openat(&self.0, ".", directory_flags(), Mode::empty())?;
        Ok(Self(file.into()))
    }

    /// A directory in it; `None` if that is no directory, or a link to one.
    pub(crate) fn child(&self, name: &OsStr) -> io::Result<Option<Self>> {
        let flags = directory_flags() | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(Self(file.into()))),
            Err(Errno::LOOP | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`child`](Self::child), only to open what is in it, for which it need not be readable.
    pub(crate) fn passage(&self, name: &OsStr) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(Self(file.into()))),
            Err(Errno::LOOP | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The directory that it is in now.
    pub(crate) fn parent(&self) -> io::Result<Self> {
        let file = rustix::fs::openat(&self.0, "..", directory_flags(), Mode::empty())?;
        Ok(Self(file.into()))
    }

    /// Creates a directory in it. Says whether it did; there may be one.
    pub(crate) fn make(&self, name: &OsStr, mode: u32) -> io::Result<bool> {
        match rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(mode)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets its own mode. Keeps the set-group-ID bit that a new directory inherits.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        let own = self.0.metadata()?.mode();
        set_mode(&self.0, own & 0o7000 | mode)
    }

    /// Sets its own mode to exactly this.
    pub(crate) fn set_whole_mode(&self, mode: u32) -> io::Result<()> {
        set_mode(&self.0, mode)
    }

    /// Whether it belongs to this process's user. A server may know that user by another number, as a new file shows.
    pub(crate) fn is_own(&self) -> io::Result<bool> {
        let owner = self.0.metadata()?.uid();
        // Not every file system has nameless files.
        let of_new = || self.create_nameless()?.metadata().map(|metadata| metadata.uid());
        Ok(owner == rustix::process::geteuid().as_raw() || of_new().is_ok_and(|new| new == owner))
    }

    /// A path that leads to it whatever becomes of its name.
    pub(crate) fn anchor(&self, path: &Path) -> PathBuf {
        super::anchor(&self.0, path)
    }

    pub(crate) fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.0.set_times(FileTimes::new().set_modified(time))
    }

    /// Which directory it is.
    pub(crate) fn id(&self) -> io::Result<(u64, u64)> {
        let metadata = self.0.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Locks it, unless another process has; says whether. The lock is on the directory itself (`flock`), so it
    /// leaves no file behind.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        super::try_lock(&self.0)
    }

    /// Locks it together with others who share it, unless a process has locked it alone; says whether.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        super::try_lock_shared(&self.0)
    }

    /// Creates a file with this mode, as far as the umask allows.
    pub(crate) fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    pub(crate) fn create_nameless(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.0, ".", flags, mode)?.into())
    }

    /// Gives a nameless file a name in it.
    pub(crate) fn link(&self, file: &File, name: &OsStr) -> io::Result<()> {
        // Linking a descriptor itself needs a capability before Linux 6.10.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, path, &self.0, name, flags)?)
    }

    /// Opens a regular file for reading; `None` if there is none. Nothing else is opened, because opening a device can
    /// change it, and opening a FIFO wakes its writer; only what takes the file's place meanwhile may be.
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.open_regular(name, OFlags::RDONLY)
    }

    /// The same, for writing as well.
    pub(crate) fn open_to_change(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.open_regular(name, OFlags::RDWR)
    }

    fn open_regular(&self, name: &OsStr, access: OFlags) -> io::Result<Option<File>> {
        match self.entry(name)? {
            Some(there) if there.kind == Kind::File => {}
            _ => return Ok(None),
        }
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn symlink(&self, name: &OsStr, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.0, name)?)
    }

    pub(crate) fn set_symlink_times(
        &self,
        name: &OsStr,
        accessed: SystemTime,
        modified: SystemTime,
    ) -> io::Result<()> {
        let times =
            Timestamps { last_access: timespec(accessed), last_modification: timespec(modified) };
        Ok(rustix::fs::utimensat(&self.0, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(crate) fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.0, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    pub(crate) fn hard_link(&self, name: &OsStr, other: &Self, from: &OsStr) -> io::Result<()> {
        let linked = rustix::fs::linkat(&other.0, from, &self.0, name, AtFlags::empty());
        Ok(linked?)
    }

    /// What is there under a name.
    pub(crate) fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
        let there = match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => there,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Entry {
            kind: kind_of(FileType::from_raw_mode(there.st_mode)),
            mode: there.st_mode & 0o777,
            modified: at(there.st_mtime, there.st_mtime_nsec as u32),
            identity: FileIdentity {
                id: (there.st_dev, there.st_ino),
                size: there.st_size as u64,
                modified: (there.st_mtime, there.st_mtime_nsec as i64),
            },
        }))
    }

    /// Renames a file in it into the directory `other`, where it replaces one.
    pub(crate) fn rename(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &other.0, to)?)
    }

    /// Renames an entry of it to a name in `other` that is free.
    pub(crate) fn rename_new(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        match renameat_with(&self.0, from, &other.0, to, RenameFlags::NOREPLACE) {
            // Not every file system can do so at once.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match other.entry(to)? {
                Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
                None => self.rename(from, other, to),
            },
            renamed => Ok(renamed?),
        }
    }

    /// Exchanges its entry with the one of the same name in `other`. Not every file system can do so.
    pub(crate) fn exchange(&self, name: &OsStr, other: &Self) -> io::Result<()> {
        Ok(renameat_with(&self.0, name, &other.0, name, RenameFlags::EXCHANGE)?)
    }

    /// Lets its owner into a directory in it, which cannot be opened.
    pub(crate) fn open_up(&self, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        // A descriptor of this kind has no operation for it.
        set_mode_at(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())), 0o700)
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    pub(crate) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Its lock may stay.
    pub(crate) fn prepare_removal(&mut self) {}

    pub(crate) fn entries(&self) -> io::Result<Vec<(OsString, Option<Kind>)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                // Not every file system says.
                let kind = Some(entry.file_type()).filter(|kind| *kind != FileType::Unknown);
                entries.push((OsStr::from_bytes(name).to_owned(), kind.map(kind_of)));
            }
        }
        Ok(entries)
    }

    /// Makes everything written to its file system durable.
    pub(crate) fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    /// Makes renames and removals in it durable. Not every file system supports this.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.0.sync_all() {
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            _ => Ok(()),
        }
    }
}

fn kind_of(found: FileType) -> Kind {
    match found {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::Device,
    }
}

fn timespec(time: SystemTime) -> Timespec {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let (seconds, nanoseconds) = match since {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        // Nanoseconds count forward.
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (-(before.as_secs() as i64), 0),
                part => (-(before.as_secs() as i64) - 1, 1_000_000_000 - part),
            }
        }
    };
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() }
}

fn at(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    let time = start.and_then(|start| start.checked_add(Duration::from_nanos(nanoseconds.into())));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}
