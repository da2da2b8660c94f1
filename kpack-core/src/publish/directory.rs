//! A directory held open by its descriptor: operations stay in it, even if its path later leads
//! elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock};
use rustix::io::Errno;

use super::identity::Identity;
use crate::interrupt;
use crate::{Error, ids};

/// The mode of new directories, regardless of the umask; CMake's `install` uses the same.
const MODE: u32 = 0o755;

/// Time between attempts to lock. Waiting in the kernel would delay signals too.
const RETRY: Duration = Duration::from_millis(20);

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    file: File,
    /// Whether what is published in it is made durable.
    flushes: bool,
}

impl Directory {
    /// Opens a directory by a path from the caller; follows symbolic links.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let shown = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let file = rustix::fs::open(shown, directory_flags(), Mode::empty());
        let file = file.map_err(|e| Error::io(shown, "open", e.into()))?;
        Ok(Self {
            path: path.to_owned(),
            file: file.into(),
            flushes: true,
        })
    }

    /// The same, for a build directory: what is published in it and below need not survive a power failure, since the
    /// build can be repeated.
    pub fn without_flushes(self) -> Self {
        Self {
            flushes: false,
            ..self
        }
    }

    /// Whether what is published in it is made durable.
    pub(super) fn flushes(&self) -> bool {
        self.flushes
    }

    /// Opens the directory of the file at `path`.
    pub fn of(path: &Path) -> Result<Self, Error> {
        Self::open(path.parent().unwrap_or(Path::new("")))
    }

    /// Opens the directory `relative` in this one without following symbolic links: the path had
    /// none when it was found, so one placed there now would redirect the output.
    pub fn below(&self, relative: &Path) -> Result<Self, Error> {
        let mut found = self.again()?;
        for name in names(relative) {
            found = found.child(name)?;
        }
        Ok(found)
    }

    /// Like [`below`](Self::below), but creates missing directories and records them in `made`.
    pub fn make_below(
        &self,
        relative: &Path,
        made: &mut CreatedDirectories,
    ) -> Result<Self, Error> {
        let mut found = self.again()?;
        for name in names(relative) {
            let path = found.path.join(name);
            // Open the parent first, so that nothing can fail between creating a directory and
            // recording it.
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
                // Keep the set-group-ID bit that a new directory inherits.
                let mode = metadata.mode() & 0o7000 | MODE;
                found
                    .file
                    .set_permissions(std::fs::Permissions::from_mode(mode))
            });
            set.map_err(|e| Error::io(&path, "set the mode of", e))?;
        }
        Ok(found)
    }

    /// Opens the directory `path`, creating it and its parents if missing.
    pub fn make(path: &Path, made: &mut CreatedDirectories) -> Result<Self, Error> {
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
                flushes: self.flushes,
            }),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(Error::rejected(
                ids::CHANGED,
                &path,
                "no longer a directory (expected no symbolic link); run the command again",
            )),
            Err(error) => Err(Error::io(&path, "open", error.into())),
        }
    }

    /// A second handle, without the lock.
    fn again(&self) -> Result<Self, Error> {
        let file = rustix::fs::openat(&self.file, ".", directory_flags(), Mode::empty());
        let file = file.map_err(|e| Error::io(&self.path, "open", e.into()))?;
        Ok(Self {
            path: self.path.clone(),
            file: file.into(),
            flushes: self.flushes,
        })
    }

    /// The path it was opened by, which may lead elsewhere by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the lock on it. The lock is on the directory itself (`flock`), so it leaves no
    /// file behind.
    pub fn lock(&self) -> Result<(), Error> {
        let locked = wait_for_lock(&self.file, &self.path)?;
        locked.map_err(|error| Error::io(&self.path, "lock", error))
    }

    /// Locks it, unless another run has; says whether.
    pub(super) fn try_lock(&self) -> bool {
        matches!(try_lock(&self.file), Ok(true))
    }

    /// Whether `other` is the same directory.
    pub fn is(&self, other: &Self) -> bool {
        match (self.file.metadata(), other.file.metadata()) {
            (Ok(own), Ok(other)) => (own.dev(), own.ino()) == (other.dev(), other.ino()),
            _ => false,
        }
    }

    /// Creates a new file, accessible only to its owner.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], and those of the system.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.file, name, flags, mode)?.into())
    }

    /// Creates a symbolic link to `target`.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn symlink(&self, name: &OsStr, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.file, name)?)
    }

    /// The target of the symbolic link of that name.
    ///
    /// # Errors
    /// Those of the system, such as for what is no symbolic link.
    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.file, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Creates another name of the regular file `from` in the directory `other`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if that is no regular file; as [`create`](Self::create).
    pub fn hard_link(&self, name: &OsStr, other: &Self, from: &OsStr) -> io::Result<()> {
        let there = rustix::fs::statat(&other.file, from, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::NotFound.into());
        }
        let linked = rustix::fs::linkat(&other.file, from, &self.file, name, AtFlags::empty());
        Ok(linked?)
    }

    /// Whether the path `relative` in it leads out of it, by symbolic links. What leads nowhere stays in it. It looks at
    /// one name after another, since not every system has `openat2`; nobody else may change what is in it meanwhile.
    pub fn leads_out(&self, relative: &Path) -> bool {
        let parts = |path: &Path| -> Vec<OsString> {
            let parts = path.components().rev();
            parts.map(|part| part.as_os_str().to_owned()).collect()
        };
        let mut left = parts(relative);
        // Without links.
        let mut there = PathBuf::new();
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == "/" || part == ".." && !there.pop() {
                return true;
            }
            if part == ".." || part == "." {
                continue;
            }
            there.push(&part);
            match self.read_link(there.as_os_str()) {
                // As many as Linux follows.
                Ok(_) if links == 40 => return false,
                Ok(target) => {
                    links += 1;
                    there.pop();
                    left.extend(parts(&target));
                }
                Err(error) => match error.kind() {
                    // No link.
                    io::ErrorKind::InvalidInput => {}
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return false,
                    _ => return true,
                },
            }
        }
        false
    }

    /// Sets its time of change.
    ///
    /// # Errors
    /// Those of the system.
    pub fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.file
            .set_times(std::fs::FileTimes::new().set_modified(time))
    }

    /// Creates a file without a name, accessible only to its owner.
    pub(super) fn create_nameless(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.file, ".", flags, mode)?.into())
    }

    /// Gives a nameless file a name in it.
    pub fn link(&self, file: &File, name: &OsStr) -> io::Result<()> {
        // Linking a descriptor itself needs a capability before Linux 6.10.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, path, &self.file, name, flags)?)
    }

    /// Opens a regular file for reading; `None` if there is none.
    pub fn open_file(&self, name: &OsStr) -> Result<Option<File>, Error> {
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

    /// The permission bits of a regular file in it, which need not be readable.
    pub(super) fn mode_of(&self, name: &OsStr) -> Option<u32> {
        let there = rustix::fs::statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        is_file.then_some(there.st_mode & 0o777)
    }

    /// As [`check_output`](super::check_output), for an entry of it.
    pub(super) fn check_output(&self, name: &OsStr, new: FileType) -> Result<(), Error> {
        match self.entry(name)? {
            Some(there) => {
                let kind = FileType::from_raw_mode(there.st_mode);
                check_kind(&self.path.join(name), kind, new)
            }
            None => Ok(()),
        }
    }

    /// The identity of the entry of that name, if there is one.
    pub(super) fn identity(&self, name: &OsStr) -> Result<Option<Identity>, Error> {
        Ok(self.entry(name)?.as_ref().map(Identity::of_entry))
    }

    fn entry(&self, name: &OsStr) -> Result<Option<Stat>, Error> {
        match rustix::fs::statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok(Some(there)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io(&self.path.join(name), "write", error.into())),
        }
    }

    /// Renames a file in it.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.file, from, &self.file, to)?)
    }

    /// Renames a file in it into the directory `other`.
    pub(super) fn rename_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.file, from, &other.file, to)?)
    }

    /// Removes a file in it, if it exists.
    pub fn remove(&self, name: &OsStr) -> Result<(), Error> {
        match rustix::fs::unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::io(&self.path.join(name), "remove", error.into())),
        }
    }

    /// Removes a directory in it, if it is empty.
    pub fn remove_empty(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.file, name, AtFlags::REMOVEDIR);
    }

    /// The names of its entries.
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

    /// Makes everything written to its file system durable.
    pub fn sync_file_system(&self) -> Result<(), Error> {
        let synced = rustix::fs::syncfs(&self.file);
        synced.map_err(|e| Error::io(&self.path, "write", e.into()))
    }

    /// Makes renames and removals in it durable. Not every file system supports this.
    pub fn sync(&self) -> Result<(), Error> {
        if !self.flushes {
            return Ok(());
        }
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

/// Refuses what is of the kind `there` in the place of the output `path` of the kind `new`, unless they are the
/// same.
fn check_kind(path: &Path, there: FileType, new: FileType) -> Result<(), Error> {
    let what = match there {
        there if there == new => return Ok(()),
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    let expected = match new {
        FileType::Directory => "a directory",
        _ => "a regular file",
    };
    let reason = format!(
        "{what} is in its place (expected {expected} to replace, or nothing); choose another name, or remove it"
    );
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, reason))
}

/// Creates the directory `path` and its parents.
pub fn make_directories(path: &Path) -> Result<(), Error> {
    let mut made = CreatedDirectories::default();
    Directory::make(path, &mut made)?;
    made.keep();
    Ok(())
}

/// The components of a path without `..`.
fn names(relative: &Path) -> impl Iterator<Item = &OsStr> {
    relative.components().filter_map(|part| match part {
        Component::CurDir => None,
        part => Some(part.as_os_str()),
    })
}

/// Waits for the lock on `file`, which is at `path`. The inner error says that the file system cannot lock
/// a file opened for reading (NFS, or Lustre without the mount option `flock`).
pub(super) fn wait_for_lock(file: &File, path: &Path) -> Result<io::Result<()>, Error> {
    loop {
        match try_lock(file) {
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {
                interrupt::check(path, "lock")?;
                std::thread::sleep(RETRY);
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Locks `file`, unless another process has; says whether. `File::try_lock` would need Rust 1.89.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Directories created by a run. On drop, empty ones are removed.
#[derive(Debug, Default)]
pub struct CreatedDirectories {
    /// Parent and name of each, the outermost first.
    directories: Vec<(Directory, OsString)>,
}

impl CreatedDirectories {
    /// Keeps them, even if empty.
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

impl Drop for CreatedDirectories {
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
    fn links_that_lead_out_by_way_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        let opened = Directory::open(&root).unwrap();
        for (link, target, expected) in [
            ("a/b/up", "..", false),
            ("a/top", "b/up/..", false),
            ("a/b/upper", "up/../..", true),
            ("out", "a/b/upper", true),
            ("further", "out/root/file", true),
            ("absolute", "/", true),
            ("in", "a/top/file", false),
            ("missing", "a/none/../../..", false),
            ("in-file", "file/x", false),
            ("self", "self", false),
        ] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
            assert_eq!(opened.leads_out(Path::new(link)), expected, "{link}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_locked_is_no_reason_to_fail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libvec.so");
        std::fs::write(&path, "host").unwrap();
        // No file system locks such a descriptor, as with a read-only one on NFS.
        let flags = OFlags::PATH.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&path);
        let file = file.unwrap();
        assert!(wait_for_lock(&file, &path).unwrap().is_err());
    }
}
