//! Files written under a hidden name next to their final one.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::Directory;
use super::hidden_name::{leftover_stem, numbered, numbered_stem, stem_of};
use super::identity::Identity;
use super::sparse::copy_range;
use crate::Error;
use crate::files::same_bytes;
use crate::interrupt;
use crate::platform::{self, Kind, MetadataExt, try_lock};

/// The mode of new files, regardless of the umask; CMake's `install` uses the same.
pub(super) const MODE: u32 = 0o644;

/// A file being written under a hidden name that no other run uses. It stays locked until dropped;
/// an unlocked one is a leftover. If dropped before it is committed, it is removed.
#[derive(Debug)]
pub struct StagedFile {
    directory: Arc<Directory>,
    hidden: OsString,
    name: OsString,
    path: PathBuf,
    file: File,
    /// Whether it already has the mode of another file.
    has_mode: bool,
    /// The only file, or symbolic link, that it may replace, if set.
    replaces: Option<Identity>,
    /// Whether that is a symbolic link, which nobody opens or locks.
    over_link: bool,
    done: bool,
}

impl StagedFile {
    /// Creates the future file `path` and lets `write` fill it.
    pub fn write<T>(
        path: &Path,
        write: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<(Self, T), Error> {
        Self::write_in(Directory::of(path)?, path.file_name().unwrap_or_default(), write)
    }

    /// Creates the future file `name` in `directory` and lets `write` fill it.
    pub fn write_in<T>(
        directory: impl Into<Arc<Directory>>,
        name: &OsStr,
        write: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<(Self, T), Error> {
        let directory = directory.into();
        directory.remove_leftovers(&|stem| stem == stem_of(name))?;
        let mut staged = Self::create(directory, name)?;
        let value = write(&mut staged)?;
        staged.sync()?;
        Ok((staged, value))
    }

    /// As [`write_in`](Self::write_in), for a copy of `input`, the file at `from`, with its mode. `change` may change it.
    ///
    /// # Errors
    /// Those of `change`; [`Error::Io`].
    pub fn copy_in(
        directory: impl Into<Arc<Directory>>,
        name: &OsStr,
        (from, input): (&Path, &File),
        change: impl FnOnce(&File) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let (staged, ()) = Self::write_in(directory, name, |staged| {
            let size = input.metadata().map(|metadata| metadata.len());
            let copied = size.and_then(|size| copy_range(input, staged.file(), 0..size, 0));
            copied.map_err(|error| Error::io(from, "copy", error))?;
            change(staged.file())?;
            staged.keep_mode(input)
        })?;
        Ok(staged)
    }

    /// As [`write_in`](Self::write_in), for a file that takes the place of the symbolic `link` of that name, and of
    /// nothing else.
    ///
    /// # Errors
    /// Also [`Error::Changed`] if that link is not there any more.
    pub fn write_over_link<T>(
        directory: impl Into<Arc<Directory>>,
        name: &OsStr,
        link: Identity,
        write: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<(Self, T), Error> {
        let directory = directory.into();
        directory.remove_leftovers(&|stem| stem == stem_of(name))?;
        let mut staged = Self::create_hidden(directory, name)?;
        (staged.replaces, staged.over_link) = (Some(link), true);
        staged.check()?;
        let value = write(&mut staged)?;
        staged.sync()?;
        Ok((staged, value))
    }

    /// Creates the future file `name` in `directory`.
    pub fn create(directory: Arc<Directory>, name: &OsStr) -> Result<Self, Error> {
        directory.check_output(name, Kind::File)?;
        Self::create_hidden(directory, name)
    }

    fn create_hidden(directory: Arc<Directory>, name: &OsStr) -> Result<Self, Error> {
        let path = directory.path().join(name);
        interrupt::check(&path, "write")?;
        loop {
            let hidden = numbered(name);
            let file = match directory.create(&hidden) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::io(&path, "write", error)),
            };
            // If locking is not supported, no run removes it as a leftover either.
            let is_taken = matches!(try_lock(&file), Ok(false));
            let staged = Self::new(&directory, hidden, name, file);
            // Before it was locked, another run may have taken it for a leftover and removed it.
            let linked = platform::link_count(&staged.file).map(|count| count > 0);
            if linked.map_err(|e| Error::io(&path, "write", e))? && !is_taken {
                return Ok(staged);
            }
        }
    }

    /// Makes `file`, which is [nameless](super::scratch_file) or has other names, the future file `name` in
    /// `directory`. `None` if the system cannot name it there.
    pub fn adopt(
        directory: &Arc<Directory>,
        name: &OsStr,
        file: &File,
    ) -> Result<Option<Self>, Error> {
        let path = directory.path().join(name);
        interrupt::check(&path, "write")?;
        directory.check_output(name, Kind::File)?;
        let file = file.try_clone().map_err(|e| Error::io(&path, "write", e))?;
        // Before any run can see it. If locking is not supported, none removes it as a leftover either.
        let _ = try_lock(&file);
        loop {
            let hidden = numbered(name);
            match directory.link(&file, &hidden) {
                Ok(()) => return Ok(Some(Self::new(directory, hidden, name, file))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // That does not mean that the file could not have this name.
                Err(error) if platform::is_disk_failure(&error) => {
                    return Err(Error::io(&path, "link", error));
                }
                Err(_) => return Ok(None),
            }
        }
    }

    fn new(directory: &Arc<Directory>, hidden: OsString, name: &OsStr, file: File) -> Self {
        Self {
            directory: Arc::clone(directory),
            hidden,
            name: name.to_owned(),
            path: directory.path().join(name),
            file,
            has_mode: false,
            replaces: None,
            over_link: false,
            done: false,
        }
    }

    /// The file under its hidden name.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Lets `write` fill it, then copies owner, mode and extended attributes from the original file:
    /// every write removes capabilities. Returns a message for each that could not be kept.
    pub fn fill<T>(
        &mut self,
        original: &File,
        write: impl FnOnce(&File) -> Result<T, Error>,
    ) -> Result<(T, Vec<String>), Error> {
        let value = write(&self.file)?;
        self.has_mode = true;
        let lost = platform::keep_attributes(&self.file, original)
            .map_err(|e| Error::io(&self.path, "set the mode of", e))?;
        Ok((value, lost))
    }

    /// Copies the mode of the original file.
    pub fn keep_mode(&mut self, of: &File) -> Result<(), Error> {
        self.has_mode = true;
        let mode = of.metadata().map(|metadata| metadata.mode() & 0o777);
        mode.and_then(|mode| platform::set_mode(&self.file, mode))
            .map_err(|e| Error::io(&self.path, "set the mode of", e))
    }

    /// Lets it replace only the file `opened`.
    pub fn replaces(&mut self, opened: &File) -> Result<(), Error> {
        self.replaces = Some(Identity::of(&self.path, opened)?);
        Ok(())
    }

    /// The only file that it may replace, if set, opened.
    pub(super) fn replaced(&self) -> Result<Option<(Identity, File)>, Error> {
        let Some(expected) = self.replaces.filter(|_| !self.over_link) else {
            return Ok(None);
        };
        match self.directory.open_file(&self.name)? {
            Some(there) if Identity::of(&self.path, &there)? == expected => {
                Ok(Some((expected, there)))
            }
            _ => Err(Error::changed(&self.path)),
        }
    }

    /// If it has no mode yet, sets that of the replaced file or of new files.
    pub fn complete(&mut self) -> Result<(), Error> {
        if !self.has_mode {
            let mode = self.directory.mode_of(&self.name).unwrap_or(MODE);
            let set = platform::set_mode(&self.file, mode);
            set.map_err(|error| Error::io(&self.path, "write", error))?;
            self.has_mode = true;
        }
        Ok(())
    }

    /// Makes it durable, unless it is in a build directory.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.complete()?;
        if self.directory.flushes() {
            let synced = self.file.sync_all();
            synced.map_err(|error| Error::io(&self.path, "write", error))?;
        }
        Ok(())
    }

    /// Fails if the file to replace is not the original any more.
    pub fn check(&self) -> Result<(), Error> {
        let there = self.directory.identity(&self.name)?;
        if self.replaces.is_some() && there != self.replaces {
            return Err(Error::changed(&self.path));
        }
        Ok(())
    }

    /// Whether the existing file has the same bytes.
    fn is_unchanged(&self) -> Result<bool, Error> {
        let failed = |e| Error::io(&self.path, "read", e);
        let there = match self.directory.open_file(&self.name) {
            Ok(Some(there)) => there,
            // Whoever may write the directory may replace a file that they cannot read.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(false);
            }
            Ok(None) => return Ok(false),
            Err(error) => return Err(error),
        };
        same_bytes(&there, &self.file).map_err(failed)
    }

    /// Renames it to its final name, unless the existing file has the same bytes. Returns whether
    /// it did.
    pub fn commit(self) -> Result<bool, Error> {
        let unchanged = self.replaces.is_none() && self.is_unchanged()?;
        if !unchanged {
            self.replace()?;
        }
        Ok(!unchanged)
    }

    /// Renames it to its final name.
    pub(super) fn replace(mut self) -> Result<(), Error> {
        self.check()?;
        let renamed = self.directory.rename(&self.hidden, &self.name);
        renamed.map_err(|e| Error::io(&self.path, "replace", e))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.directory.remove(&self.hidden);
        }
    }
}

impl Directory {
    /// Removes hidden files of interrupted runs, if `is_own` accepts their final names.
    pub fn remove_leftovers(&self, is_own: &dyn Fn(&OsStr) -> bool) -> Result<(), Error> {
        let names = self.names()?;
        let mut own = names.iter().filter(|name| leftover_stem(name).is_some_and(is_own));
        own.try_for_each(|name| self.remove_leftover(name))
    }

    /// Removes hidden files of interrupted runs next to the files that they were to replace.
    pub fn remove_all_leftovers(&self) -> Result<(), Error> {
        let names = self.names()?;
        let stems: BTreeSet<OsString> = names.iter().map(|name| stem_of(name)).collect();
        // Other programs may write `.NAME.tmp`.
        let is_own = |name: &&OsString| numbered_stem(name).is_some_and(|s| stems.contains(s));
        let mut own = names.iter().filter(is_own);
        own.try_for_each(|name| self.remove_leftover(name))
    }

    fn remove_leftover(&self, name: &OsStr) -> Result<(), Error> {
        // A file that cannot be opened is not ours.
        match self.open_file(name) {
            Ok(Some(file)) if matches!(try_lock(&file), Ok(true)) => self.remove(name),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn write(path: &Path, text: &str) -> StagedFile {
        let written = StagedFile::write(path, |staged| {
            staged.file().write_all(text.as_bytes()).unwrap();
            Ok(())
        });
        written.unwrap().0
    }

    #[test]
    fn two_that_become_one_file_do_not_share_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libvec.so");
        let half = StagedFile::write(&path, |staged| {
            staged.file().write_all(b"half").unwrap();
            write(&path, "whole").commit()
        });
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        drop(half);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_came_meanwhile_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libvec.so");
        fs::write(&path, "version 1").unwrap();
        let opened = File::open(&path).unwrap();
        let mut staged = write(&path, "split version 1");
        staged.replaces(&opened).unwrap();
        staged.check().unwrap();
        fs::write(directory.path().join("new"), "version 2").unwrap();
        fs::rename(directory.path().join("new"), &path).unwrap();
        let error = staged.commit().unwrap_err();
        assert_eq!(error.id().as_str(), "changed-while-read");
        assert_eq!(fs::read(&path).unwrap(), b"version 2");
    }
}
