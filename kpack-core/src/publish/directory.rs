//! A directory held open by its descriptor: operations stay in it, even if its path later leads
//! elsewhere.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::identity::Identity;
use crate::files;
use crate::interrupt;
use crate::platform::{Entry, Handle, Kind, is_name_too_long, try_lock_host};
use crate::{Error, ids};

/// The mode of new directories, regardless of the umask; CMake's `install` uses the same.
const MODE: u32 = 0o755;

/// Time between attempts to lock. Waiting in the kernel would delay signals too.
const RETRY: Duration = Duration::from_millis(20);

/// Attempts after which a user should know what a run waits for: about two seconds.
const MOMENT: u32 = 100;

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: Handle,
    /// Whether what is published in it is made durable.
    flushes: bool,
    /// Whether the umask, or the default ACL, is for what is created in it.
    obeys_umask: bool,
}

impl Directory {
    /// Opens a directory by a path from the caller; follows symbolic links.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let shown = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let handle = Handle::open(shown).map_err(|e| Error::io(shown, "open", e))?;
        Ok(Self { path: path.to_owned(), handle, flushes: true, obeys_umask: false })
    }

    /// For files of the user's own rather than of an installation: the umask, or the default ACL, is for what is created
    /// in it and below.
    pub(super) fn obey_umask(&mut self) {
        self.obeys_umask = true;
    }

    /// The same, for a build directory: what is published in it and below need not survive a power failure, since the
    /// build can be repeated.
    pub fn without_flushes(self) -> Self {
        Self { flushes: false, ..self }
    }

    pub(super) fn stop_flushing(&mut self) {
        self.flushes = false;
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
        let mut names = names(relative).peekable();
        while let Some(name) = names.next() {
            let name = name?;
            found = match found.child(name) {
                // Whoever may not list a directory may go through it.
                Err(Error::Io { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied
                        && names.peek().is_some() =>
                {
                    found.entered(name, found.handle.passage(name))?
                }
                opened => opened?,
            };
        }
        Ok(found)
    }

    /// As [`below`](Self::below); `None` if there is no such directory. That it cannot be opened does not mean that it is
    /// missing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn find_below(&self, relative: &Path) -> Result<Option<Self>, Error> {
        match self.below(relative) {
            // A link or a file has its name.
            Err(Error::Refused { .. }) => Ok(None),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Like [`below`](Self::below), but creates missing directories and records them in `made`.
    pub fn make_below(
        &self,
        relative: &Path,
        made: &mut CreatedDirectories,
    ) -> Result<Self, Error> {
        let mut found = self.again()?;
        for name in names(relative) {
            let name = name?;
            let path = found.path.join(name);
            // Open the parent first, so that nothing can fail between creating a directory and
            // recording it.
            let above = found.again()?;
            let mode = if self.obeys_umask { 0o777 } else { MODE };
            match found.handle.make(name, mode) {
                Ok(true) => made.directories.push((above, name.to_owned())),
                Ok(false) => {
                    found = found.child(name)?;
                    continue;
                }
                Err(error) => return Err(Error::io(&path, "create directory", error)),
            }
            found = found.child(name)?;
            if !self.obeys_umask {
                let set = found.handle.set_mode(MODE);
                set.map_err(|e| Error::io(&path, "set the mode of", e))?;
            }
        }
        Ok(found)
    }

    /// Opens the directory `relative` in this one, creating it if missing. What it creates stays.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if something else has the name of one.
    pub fn provide_below(&self, relative: &Path) -> Result<Self, Error> {
        let mut made = CreatedDirectories::default();
        let directory = self.make_below(relative, &mut made);
        made.keep();
        directory
    }

    /// Like [`make_below`](Self::make_below), and returns the paths of those that it created, each after those above it.
    /// They stay.
    pub(super) fn make_listed(&self, relative: &Path) -> Result<(Self, Vec<PathBuf>), Error> {
        let mut made = CreatedDirectories::default();
        let opened = self.make_below(relative, &mut made)?;
        let number = made.directories.len();
        made.keep();
        let mut paths: Vec<PathBuf> =
            relative.ancestors().take(number).map(Path::to_owned).collect();
        paths.reverse();
        Ok((opened, paths))
    }

    /// Opens the directory `path`, creating it and its parents if missing.
    pub fn make(path: &Path, made: &mut CreatedDirectories) -> Result<Self, Error> {
        let mut there = Path::new("");
        for above in path.ancestors() {
            if files::metadata_of(above)?.is_some() {
                there = above;
                break;
            }
        }
        let rest = path.strip_prefix(there).unwrap_or(path);
        let is_plain = |part: &Component<'_>| *part != Component::ParentDir;
        let plain = PathBuf::from_iter(rest.components().take_while(is_plain));
        let first = there.join(plain.components().next().map_or("".as_ref(), Component::as_os_str));
        if first.is_symlink() && files::metadata_of(&first)?.is_none() {
            let text = "a dangling symbolic link; create its target directory, or choose another";
            return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &first, text));
        }
        let found = Self::open(there)?.make_below(&plain, made)?;
        if rest.components().all(|part| is_plain(&part)) {
            return Ok(found);
        }
        // What `..` leads to is there now.
        Self::make(path, made)
    }

    fn child(&self, name: &OsStr) -> Result<Self, Error> {
        self.entered(name, self.handle.child(name))
    }

    fn entered(&self, name: &OsStr, opened: io::Result<Option<Handle>>) -> Result<Self, Error> {
        let path = self.path.join(name);
        match opened {
            Ok(Some(handle)) => Ok(self.with(path, handle)),
            Ok(None) => Err(Error::rejected(
                ids::CHANGED,
                &path,
                "no longer a directory (expected no symbolic link); run the command again",
            )),
            Err(error) => Err(Error::io(&path, "open", error)),
        }
    }

    /// Opens the directory that it is in, which has to be the one of this [`id`](Self::id): somebody may have moved it.
    pub(super) fn parent(&self, id: (u64, u64)) -> Result<Self, Error> {
        let opened = self.handle.parent().map_err(|e| Error::io(&self.path, "open", e))?;
        let parent = self.with(self.path.parent().unwrap_or(Path::new("")).to_owned(), opened);
        match parent.id()? == id {
            true => Ok(parent),
            false => Err(Error::changed(&self.path)),
        }
    }

    /// A second handle, without the lock.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn again(&self) -> Result<Self, Error> {
        let handle = self.handle.again().map_err(|e| Error::io(&self.path, "open", e))?;
        Ok(self.with(self.path.clone(), handle))
    }

    fn with(&self, path: PathBuf, handle: Handle) -> Self {
        Self { path, handle, flushes: self.flushes, obeys_umask: self.obeys_umask }
    }

    /// A path that leads to it whatever becomes of its name, as long as it is open, where the system has such paths. Child
    /// processes cannot use it.
    pub fn anchor(&self) -> PathBuf {
        self.handle.anchor(&self.path)
    }

    /// The path it was opened by, which may lead elsewhere by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the lock on it. It leaves no file behind.
    pub fn lock(&self) -> Result<(), Error> {
        let locked = wait_for_lock(&self.path, || self.handle.try_lock())?;
        locked.map_err(|error| Error::io(&self.path, "lock", error))
    }

    /// As [`lock`](Self::lock), or for a lock that others share. Calls `waits` once, if it takes longer than a moment. The
    /// inner error says that the file system has no locks.
    pub(super) fn wait_for_part(
        &self,
        is_shared: bool,
        waits: &dyn Fn(),
    ) -> Result<io::Result<()>, Error> {
        let tries = Cell::new(0);
        wait_for_lock(&self.path, || {
            tries.set(tries.get() + 1);
            if tries.get() == MOMENT {
                waits();
            }
            if is_shared { self.handle.try_lock_shared() } else { self.handle.try_lock() }
        })
    }

    /// Locks it, unless another run has; says whether.
    pub(super) fn try_lock(&self) -> bool {
        matches!(self.handle.try_lock(), Ok(true))
    }

    /// The file system that it is on, and its number there.
    pub(super) fn id(&self) -> Result<(u64, u64), Error> {
        self.handle.id().map_err(|e| Error::io(&self.path, "read", e))
    }

    /// Whether `other` is the same directory.
    pub fn is(&self, other: &Self) -> bool {
        match (self.handle.id(), other.handle.id()) {
            (Ok(own), Ok(other)) => own == other,
            _ => false,
        }
    }

    /// Whether it is what was found under its name after it was locked; another run may have removed or replaced it
    /// before.
    ///
    /// # Errors
    /// Those of `found`, but for a missing directory.
    pub(super) fn is_still(&self, found: Result<Self, Error>) -> Result<bool, Error> {
        match found {
            Ok(found) => Ok(found.is(self)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a new file, accessible only to its owner.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], and those of the system.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        self.handle.create(name, 0o600)
    }

    /// Creates a new file that all may read and execute, as far as the umask allows.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_open(&self, name: &OsStr, is_executable: bool) -> io::Result<File> {
        self.handle.create(name, if is_executable { 0o777 } else { 0o666 })
    }

    /// Creates a symbolic link to `target`.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn symlink(&self, name: &OsStr, target: &Path) -> io::Result<()> {
        self.handle.symlink(name, target)
    }

    /// The target of the symbolic link of that name.
    ///
    /// # Errors
    /// Those of the system, such as for what is no symbolic link.
    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        self.handle.read_link(name)
    }

    /// Creates another name of the regular file `from` in the directory `other`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if that is no regular file; as [`create`](Self::create).
    pub fn hard_link(&self, name: &OsStr, other: &Self, from: &OsStr) -> io::Result<()> {
        match other.handle.entry(from)? {
            Some(there) if there.kind == Kind::File => {
                self.handle.hard_link(name, &other.handle, from)
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether the path `relative` in it leads out of it, by symbolic links. What leads nowhere stays in it. It looks at
    /// one name after another, since not every system has `openat2`; nobody else may change what is in it meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn leads_out(&self, relative: &Path) -> Result<bool, Error> {
        let parts = |path: &Path| -> Vec<OsString> {
            let parts = path.components().rev();
            let name = |part: Component<'_>| match part {
                Component::Prefix(_) | Component::RootDir => "/".into(),
                part => part.as_os_str().to_owned(),
            };
            parts.map(name).collect()
        };
        let mut left = parts(relative);
        // Without links.
        let mut there = PathBuf::new();
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == "/" || part == ".." && !there.pop() {
                return Ok(true);
            }
            if part == ".." || part == "." {
                continue;
            }
            there.push(&part);
            match self.read_link(there.as_os_str()) {
                // As many as Linux follows.
                Ok(_) if links == 40 => return Ok(false),
                Ok(target) => {
                    links += 1;
                    there.pop();
                    left.extend(parts(&target));
                }
                Err(error) => match error.kind() {
                    // No link.
                    io::ErrorKind::InvalidInput => {}
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return Ok(false),
                    // A path that is too long to look at.
                    _ if is_name_too_long(&error) => return Ok(true),
                    _ => return Err(Error::io(&self.path.join(there), "read", error)),
                },
            }
        }
        Ok(false)
    }

    /// Sets its mode.
    ///
    /// # Errors
    /// Those of the system.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.handle.set_whole_mode(mode)
    }

    /// Makes it a directory that only its owner uses. Returns whether this process's user is that owner.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn claim(&self) -> Result<bool, Error> {
        // Not every file system has modes.
        let _ = self.handle.set_mode(0o700);
        self.handle.is_own().map_err(|e| Error::io(&self.path, "read", e))
    }

    /// Sets the times of the symbolic link of that name.
    ///
    /// # Errors
    /// Those of the system.
    pub fn set_symlink_times(
        &self,
        name: &OsStr,
        accessed: SystemTime,
        modified: SystemTime,
    ) -> io::Result<()> {
        self.handle.set_symlink_times(name, accessed, modified)
    }

    /// When the newest of its entries was changed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn newest(&self) -> io::Result<SystemTime> {
        let mut newest = SystemTime::UNIX_EPOCH;
        for (name, _) in self.handle.entries()? {
            newest = newest.max(self.handle.entry(&name)?.map_or(newest, |there| there.modified));
        }
        Ok(newest)
    }

    /// Sets its time of change.
    ///
    /// # Errors
    /// Those of the system.
    pub fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.handle.set_modified(time)
    }

    /// Creates a file without a name, accessible only to its owner.
    pub(super) fn create_nameless(&self) -> io::Result<File> {
        self.handle.create_nameless()
    }

    /// Gives a nameless file a name in it.
    pub(super) fn link(&self, file: &File, name: &OsStr) -> io::Result<()> {
        self.handle.link(file, name)
    }

    /// Opens a regular file for reading; `None` if there is none.
    pub fn open_file(&self, name: &OsStr) -> Result<Option<File>, Error> {
        Ok(self.open_with_metadata(name)?.map(|(file, _)| file))
    }

    /// As [`open_file`](Self::open_file), for writing as well.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Changed`] if it is no longer there.
    pub fn open_to_change(&self, name: &OsStr) -> Result<File, Error> {
        let path = self.path.join(name);
        let opened = self.handle.open_to_change(name).map_err(|e| Error::io(&path, "open", e))?;
        opened.ok_or_else(|| Error::changed(&path))
    }

    /// As [`open_file`](Self::open_file), with its metadata.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_with_metadata(&self, name: &OsStr) -> Result<Option<(File, Metadata)>, Error> {
        let opened = self.handle.open_file(name);
        let Some(file) = opened.map_err(|e| Error::io(&self.path.join(name), "open", e))? else {
            return Ok(None);
        };
        let metadata = file.metadata().map_err(|e| Error::io(&self.path.join(name), "read", e))?;
        Ok(metadata.is_file().then_some((file, metadata)))
    }

    /// Opens the file that had this identity when it was found under this name.
    ///
    /// # Errors
    /// [`Error::Changed`] if something else is there by now; [`Error::Io`].
    pub fn open_same(&self, name: &OsStr, found: &Identity) -> Result<File, Error> {
        let path = self.path.join(name);
        match self.open_file(name)? {
            Some(file) if Identity::of(&path, &file)? == *found => Ok(file),
            _ => Err(Error::changed(&path)),
        }
    }

    /// Removes the file or symbolic link that had this identity when it was found under this name.
    ///
    /// # Errors
    /// [`Error::Changed`] if something else is there by now; [`Error::Io`].
    pub fn remove_same(&self, name: &OsStr, found: &Identity) -> Result<(), Error> {
        match self.identity(name)? {
            Some(there) if there == *found => self.remove(name),
            _ => Err(Error::changed(&self.path.join(name))),
        }
    }

    /// The permission bits of a regular file in it, which need not be readable.
    pub(super) fn mode_of(&self, name: &OsStr) -> Option<u32> {
        let there = self.handle.entry(name).ok().flatten()?;
        (there.kind == Kind::File).then_some(there.mode)
    }

    /// As [`check_output`](super::check_output), for an entry of it.
    pub(crate) fn check_output(&self, name: &OsStr, new: Kind) -> Result<(), Error> {
        match self.entry(name)? {
            Some(there) => check_kind(&self.path.join(name), there.kind, new),
            None => Ok(()),
        }
    }

    /// What is there under a name.
    pub(super) fn kind(&self, name: &OsStr) -> Result<Option<Kind>, Error> {
        Ok(self.entry(name)?.map(|there| there.kind))
    }

    /// Whether there is an entry of that name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn has(&self, name: &OsStr) -> Result<bool, Error> {
        Ok(self.entry(name)?.is_some())
    }

    /// The identity of the entry of that name, if there is one. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn identity(&self, name: &OsStr) -> Result<Option<Identity>, Error> {
        Ok(self.entry(name)?.map(|there| Identity::from(there.identity)))
    }

    fn entry(&self, name: &OsStr) -> Result<Option<Entry>, Error> {
        let there = self.handle.entry(name);
        there.map_err(|error| Error::io(&self.path.join(name), "read", error))
    }

    /// Renames a file in it.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.handle.rename(from, &self.handle, to)
    }

    /// Renames an entry of it to a name in `other` that is free.
    pub(super) fn rename_new(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        self.handle.rename_new(from, &other.handle, to)
    }

    /// Exchanges its entry with the one of the same name in `other`. Not every file system can do so.
    pub(super) fn exchange(&self, name: &OsStr, other: &Self) -> io::Result<()> {
        self.handle.exchange(name, &other.handle)
    }

    /// Renames a file in it into the directory `other`, where it replaces one.
    ///
    /// # Errors
    /// Those of the system.
    pub fn rename_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<()> {
        self.handle.rename(from, &other.handle, to)
    }

    /// Removes a file in it, if it exists.
    pub fn remove(&self, name: &OsStr) -> Result<(), Error> {
        match self.handle.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(&self.path.join(name), "remove", error))
            }
            _ => Ok(()),
        }
    }

    /// Opens a directory in it, even if the mode forbids that; `None` if it is a link to one, or none.
    pub(super) fn open_up(&self, name: &OsStr) -> io::Result<Option<Self>> {
        let opened = match self.handle.child(name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.handle.open_up(name)?;
                self.handle.child(name)
            }
            opened => opened,
        };
        Ok(opened?.map(|handle| self.with(self.path.join(name), handle)))
    }

    /// Removes a directory in it, which must be empty and may be missing.
    pub(super) fn remove_emptied(&self, name: &OsStr) -> Result<(), Error> {
        match self.handle.remove_empty(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(&self.path.join(name), "remove", error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a directory in it, if it is empty.
    pub fn remove_empty(&self, name: &OsStr) {
        let _ = self.handle.remove_empty(name);
    }

    /// Gives up what keeps it from being removed.
    pub(super) fn prepare_removal(&mut self) {
        self.handle.prepare_removal();
    }

    /// The names of its entries.
    pub fn names(&self) -> Result<Vec<OsString>, Error> {
        Ok(self.entries()?.into_iter().map(|(name, _)| name).collect())
    }

    /// The same, and what each is, where listing says so.
    pub(super) fn entries(&self) -> Result<Vec<(OsString, Option<Kind>)>, Error> {
        let entries = self.handle.entries();
        entries.map_err(|error| Error::io(&self.path, "list", error))
    }

    /// Makes everything written to its file system durable.
    pub fn sync_file_system(&self) -> Result<(), Error> {
        if !self.flushes {
            return Ok(());
        }
        let synced = self.handle.sync_file_system();
        synced.map_err(|e| Error::io(&self.path, "write", e))
    }

    /// Makes renames and removals in it durable. Not every file system supports this.
    pub fn sync(&self) -> Result<(), Error> {
        if !self.flushes {
            return Ok(());
        }
        let synced = self.handle.sync();
        synced.map_err(|e| Error::io(&self.path, "write", e))
    }
}

/// Refuses what is of the kind `there` in the place of the output `path` of the kind `new`, unless they are the
/// same.
fn check_kind(path: &Path, there: Kind, new: Kind) -> Result<(), Error> {
    let what = match there {
        there if there == new => return Ok(()),
        Kind::File => "a file",
        Kind::Directory => "a directory",
        Kind::Symlink => "a symbolic link",
        Kind::Fifo => "a FIFO",
        Kind::Socket => "a socket",
        Kind::Device => "a device",
    };
    let expected = match new {
        Kind::Directory => "a directory",
        _ => "a regular file",
    };
    let reason = format!(
        "{what} is in its place (expected {expected} to replace, or nothing); choose another name, or remove it"
    );
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, reason))
}

/// The names in a relative path. Anything else in it would lead out of the directory.
fn names(relative: &Path) -> impl Iterator<Item = Result<&OsStr, Error>> {
    relative.components().filter_map(move |part| match part {
        Component::CurDir => None,
        Component::Normal(name) => Some(Ok(name)),
        Component::Prefix(_) | Component::RootDir | Component::ParentDir => {
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "expected a path below a directory that is there, without `..`",
            );
            Some(Err(Error::io(relative, "open", error)))
        }
    })
}

/// Waits for the lock on a host file, which is at `path`. The inner error says that the system or the file system
/// cannot lock a file opened for reading (Windows, NFS, or Lustre without the mount option `flock`).
pub(super) fn wait_for_host(file: &File, path: &Path) -> Result<io::Result<()>, Error> {
    wait_for_lock(path, || try_lock_host(file))
}

/// Tries again until there is a lock on `path`, or an error.
fn wait_for_lock(
    path: &Path,
    try_lock: impl Fn() -> io::Result<bool>,
) -> Result<io::Result<()>, Error> {
    loop {
        match try_lock() {
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {
                interrupt::check(path, "lock")?;
                std::thread::sleep(RETRY);
            }
            Err(error) => return Ok(Err(error)),
        }
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
        self.directories.iter().try_for_each(|(above, _)| above.sync())
    }
}

impl Drop for CreatedDirectories {
    fn drop(&mut self) {
        // Windows keeps a directory that is open, so each is closed before the one above is removed.
        while let Some((above, name)) = self.directories.pop() {
            above.remove_empty(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn paths_below_a_directory_do_not_lead_out() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let opened = Directory::open(&root).unwrap();
        let absolute = directory.path().join("new");
        for path in ["../new".as_ref(), "a/../../new".as_ref(), absolute.as_path()] {
            let mut made = CreatedDirectories::default();
            assert!(opened.make_below(path, &mut made).is_err());
            assert!(opened.below(path.parent().unwrap()).is_err());
        }
        assert!(!absolute.exists());
        assert_eq!(opened.names().unwrap(), Vec::<OsString>::new());
        // People may write such paths, though.
        let mut made = CreatedDirectories::default();
        Directory::make(&root.join("a/../b/./c"), &mut made).unwrap();
        made.keep();
        assert!(root.join("a").is_dir() && root.join("b/c").is_dir());
    }

    #[test]
    fn a_dangling_link_is_called_that() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for path in [link.clone(), link.join("a/b")] {
            let made = Directory::make(&path, &mut CreatedDirectories::default());
            let error = made.unwrap_err().to_string();
            let expected = format!("{}: a dangling symbolic link; create", link.display());
            assert!(error.starts_with(&expected), "{error}");
        }
        assert!(!directory.path().join("nowhere").exists());
    }

    #[test]
    fn a_failed_look_is_not_called_a_failed_write() {
        let directory = tempfile::tempdir().unwrap();
        let opened = Directory::open(directory.path()).unwrap();
        let error = opened.has("x".repeat(300).as_ref()).unwrap_err().to_string();
        assert!(error.contains("read") && !error.contains("write"), "{error}");
    }

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
            assert_eq!(opened.leads_out(Path::new(link)).unwrap(), expected, "{link}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_locked_is_no_reason_to_fail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libvec.so");
        std::fs::write(&path, "host").unwrap();
        // No file system locks such a descriptor, as with a read-only one on NFS.
        let flags = rustix::fs::OFlags::PATH.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&path).unwrap();
        assert!(wait_for_host(&file, &path).unwrap().is_err());
    }
}
