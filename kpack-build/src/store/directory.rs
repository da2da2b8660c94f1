//! A directory, held by its descriptor: what is done in it stays in it, whatever its path leads to
//! meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::Error;
use crate::interrupt;

/// What directories get that a run makes, whatever the umask: what CMake's `install` gives them.
const MODE: u32 = 0o755;

/// How long to wait before a lock is tried again. Waiting in the kernel would keep a signal waiting, too.
const RETRY: Duration = Duration::from_millis(20);

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    file: File,
}

impl Directory {
    /// Opens a directory by a path that the caller chose, through symbolic links.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let shown = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        let file = rustix::fs::open(shown, directory_flags(), Mode::empty());
        let file = file.map_err(|e| Error::io(shown, "open", e.into()))?;
        Ok(Self {
            path: path.to_owned(),
            file: file.into(),
        })
    }

    /// The directory of a file at `path`.
    pub fn of(path: &Path) -> Result<Self, Error> {
        Self::open(path.parent().unwrap_or(Path::new("")))
    }

    /// Opens the directory `relative` in this one. No symbolic link is followed: a path without any
    /// was found before, and whoever puts one there now wants the output elsewhere.
    pub fn below(&self, relative: &Path) -> Result<Self, Error> {
        let mut found = self.again()?;
        for name in names(relative) {
            found = found.child(name)?;
        }
        Ok(found)
    }

    /// The same, where directories that are missing are made; `made` knows them.
    pub fn make_below(&self, relative: &Path, made: &mut Made) -> Result<Self, Error> {
        let mut found = self.again()?;
        for name in names(relative) {
            let path = found.path.join(name);
            // Opened before, so that nothing can keep what is made from being known.
            let above = found.again()?;
            match rustix::fs::mkdirat(&found.file, name, Mode::from_raw_mode(MODE)) {
                Ok(()) => made.directories.push((above, name.to_owned())),
                Err(Errno::EXIST) => {
                    found = found.child(name)?;
                    continue;
                }
                Err(error) => return Err(Error::io(&path, "create directory", error.into())),
            }
            found = found.child(name)?;
            let set = found.file.metadata().and_then(|metadata| {
                // What a directory with set-group-ID gives to those in it stays.
                let mode = metadata.mode() & 0o7000 | MODE;
                found
                    .file
                    .set_permissions(std::fs::Permissions::from_mode(mode))
            });
            set.map_err(|e| Error::io(&path, "set the mode of", e))?;
        }
        Ok(found)
    }

    /// Opens the directory `path`, which is made where it is missing, with those above it.
    pub fn make(path: &Path, made: &mut Made) -> Result<Self, Error> {
        let there = path.ancestors().find(|above| above.exists());
        let there = there.unwrap_or(Path::new(""));
        let rest = path.strip_prefix(there).unwrap_or(path);
        Self::open(there)?.make_below(rest, made)
    }

    fn child(&self, name: &OsStr) -> Result<Self, Error> {
        let path = self.path.join(name);
        let flags = directory_flags() | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.file, name, flags, Mode::empty()) {
            Ok(file) => Ok(Self {
                path,
                file: file.into(),
            }),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(Error::refused(
                &path,
                "it is no longer a directory (expected no symbolic link); run this again",
            )),
            Err(error) => Err(Error::io(&path, "open", error.into())),
        }
    }

    /// A second handle, which has no lock.
    fn again(&self) -> Result<Self, Error> {
        let file = rustix::fs::openat(&self.file, ".", directory_flags(), Mode::empty());
        let file = file.map_err(|e| Error::io(&self.path, "open", e.into()))?;
        Ok(Self {
            path: self.path.clone(),
            file: file.into(),
        })
    }

    /// Its path, as far as that still leads to it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until no other run has the lock on it. The lock is on the directory itself (`flock`), so
    /// nothing is left behind.
    pub fn lock(&self) -> Result<(), Error> {
        lock(&self.file, &self.path)
    }

    /// Whether `other` is the same directory.
    pub fn is(&self, other: &Self) -> bool {
        match (self.file.metadata(), other.file.metadata()) {
            (Ok(own), Ok(other)) => (own.dev(), own.ino()) == (other.dev(), other.ino()),
            _ => false,
        }
    }

    /// Creates a file that is not there, for its owner alone.
    pub(super) fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.file, name, flags, mode)?.into())
    }

    /// Creates a file without a name, for its owner alone.
    pub(super) fn create_nameless(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.file, ".", flags, mode)?.into())
    }

    /// Opens a file to read it; `None` where there is none, or anything but a regular file.
    pub(super) fn open_file(&self, name: &OsStr) -> Result<Option<File>, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match rustix::fs::openat(&self.file, name, flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(Error::io(&self.path.join(name), "open", error.into())),
        };
        let metadata = file.metadata();
        let metadata = metadata.map_err(|e| Error::io(&self.path.join(name), "read", e))?;
        Ok(metadata.is_file().then_some(file))
    }

    /// Renames a file in it.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.file, from, &self.file, to)?)
    }

    /// Removes a file in it that may be missing.
    pub fn remove(&self, name: &OsStr) -> Result<(), Error> {
        match rustix::fs::unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::io(&self.path.join(name), "remove", error.into())),
        }
    }

    /// Removes a directory in it, where that is empty.
    pub fn remove_empty(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.file, name, AtFlags::REMOVEDIR);
    }

    /// The names of what is in it.
    pub fn names(&self) -> Result<Vec<OsString>, Error> {
        let failed = |error: Errno| Error::io(&self.path, "list", error.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.file).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(&name).to_owned());
            }
        }
        Ok(names)
    }

    /// Makes everything durable that was written to its file system.
    pub fn sync_file_system(&self) -> Result<(), Error> {
        let synced = rustix::fs::syncfs(&self.file);
        synced.map_err(|e| Error::io(&self.path, "write", e.into()))
    }

    /// Makes what was renamed and removed in it durable. Not every file system can.
    pub fn sync(&self) -> Result<(), Error> {
        match self.file.sync_all() {
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                Err(Error::io(&self.path, "write", error))
            }
            _ => Ok(()),
        }
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Makes the directory `path`, and those above it.
pub fn make_directories(path: &Path) -> Result<(), Error> {
    let mut made = Made::default();
    Directory::make(path, &mut made)?;
    made.keep();
    Ok(())
}

/// The parts of a path that goes down only.
fn names(relative: &Path) -> impl Iterator<Item = &OsStr> {
    relative.components().filter_map(|part| match part {
        Component::CurDir => None,
        part => Some(part.as_os_str()),
    })
}

/// Waits for the lock on `file`, which is at `path`.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    match wait_for_lock(file, path)? {
        Ok(()) => Ok(()),
        Err(error) => Err(Error::io(path, "lock", error)),
    }
}

/// The same where the file system can lock a file that is open for reading: NFS cannot, nor Lustre
/// without the mount option `flock`.
pub(super) fn lock_where_possible(file: &File, path: &Path) -> Result<(), Error> {
    wait_for_lock(file, path).map(drop)
}

fn wait_for_lock(file: &File, path: &Path) -> Result<io::Result<()>, Error> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Ok(())),
            Err(std::fs::TryLockError::WouldBlock) => {
                interrupt::check(path, "lock")?;
                std::thread::sleep(RETRY);
            }
            Err(std::fs::TryLockError::Error(error)) => return Ok(Err(error)),
        }
    }
}

/// Directories that a run made. At its end, those go again that are empty.
#[derive(Debug, Default)]
pub struct Made {
    /// Each with the one that it is in, the outermost first.
    directories: Vec<(Directory, OsString)>,
}

impl Made {
    /// They stay, also empty.
    pub fn keep(mut self) {
        self.directories.clear();
    }

    /// Makes their names durable.
    pub fn sync(&self) -> Result<(), Error> {
        self.directories
            .iter()
            .try_for_each(|(above, _)| above.sync())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (above, name) in self.directories.iter().rev() {
            above.remove_empty(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_locked_is_no_reason_to_fail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libvec.so");
        std::fs::write(&path, "host").unwrap();
        // A descriptor that no file system locks, as NFS does with one that cannot write.
        let flags = OFlags::PATH.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&path);
        let file = file.unwrap();
        assert!(lock(&file, &path).is_err());
        lock_where_possible(&file, &path).unwrap();
    }
}
