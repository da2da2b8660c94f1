//! Files for a directory that is not the run's own, which appear together.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::directory::{CreatedDirectories, Directory};
use super::hidden_name::{numbered, numbered_stem};
use super::output::appeared;
use super::stage::{MAX_TRIES, twice};
use super::staged_file::MODE;
use crate::Error;
use crate::files;
use crate::interrupt;
use crate::platform::{self, Kind};

/// What the hidden directory is named after.
const NAME: &str = "kpack";

/// New files of a run for a directory that other runs and programs write to as well. They are in a hidden directory in
/// it, `.kpack.<16 hexadecimal digits>.tmp`, until all of them are published. The hidden directory is locked as long as
/// this lives; an unlocked one is a leftover. If dropped before, nothing changes. Takes few descriptors for any number of
/// files.
///
/// Runs may write the same file at once. The first one gives it its name, and the others use that file, so no run may
/// take it back after another one has seen it: runs publish one after the other, and whoever looks waits for them
/// ([`settled`](Batch::settled)).
#[derive(Debug)]
pub struct Batch {
    root: Directory,
    hidden: Directory,
    name: OsString,
    /// The final paths in the directory; the files' hidden names are their numbers in it.
    files: Vec<PathBuf>,
    /// The directory and those above it, as far as they were created.
    made: CreatedDirectories,
}

impl Batch {
    /// Removes what interrupted runs left in the directory `path`, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove_leftovers(path: &Path) -> Result<(), Error> {
        match files::metadata_of(path)? {
            Some(metadata) if metadata.is_dir() => remove_leftovers(&Directory::open(path)?),
            _ => Ok(()),
        }
    }

    /// Waits for runs that are giving files in the directory `path` their names. They keep them, or none has one. As long
    /// as the result lives, no run publishes there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn settled(path: &Path) -> Result<Directory, Error> {
        let root = Directory::open(path)?;
        root.lock()?;
        Ok(root)
    }

    /// Begins one in the directory `path`, creating it if missing. `flushes`: whether the files are made durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(path: &Path, flushes: bool) -> Result<Self, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut made = CreatedDirectories::default();
            let mut root = Directory::make(path, &mut made)?;
            if !flushes {
                root = root.without_flushes();
            }
            let name = numbered(NAME.as_ref());
            let mut own = CreatedDirectories::default();
            let hidden = match root.make_below(name.as_ref(), &mut own) {
                // Another run had made the directory, and removed it when it failed.
                Err(Error::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES =>
                {
                    continue;
                }
                hidden => hidden?,
            };
            hidden.lock()?;
            // Before it was locked, another run may have taken it for a leftover and removed it.
            if hidden.is_still(root.below(name.as_ref()))? {
                own.keep();
                return Ok(Self { root, hidden, name, files: Vec::new(), made });
            }
        }
    }

    /// Creates the future file `relative`, which there is none of yet.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(&mut self, relative: PathBuf) -> Result<File, Error> {
        let path = self.root.path().join(&relative);
        interrupt::check(&path, "write")?;
        let file = self
            .hidden
            .create(&number(self.files.len()))
            .map_err(|e| Error::io(&path, "write", e))?;
        self.files.push(relative);
        platform::set_mode(&file, MODE).map_err(|e| Error::io(&path, "set the mode of", e))?;
        Ok(file)
    }

    /// Gives all files their final names, and makes that durable. On failure none has it. Nothing is replaced: a file that
    /// another run has published meanwhile stays, whatever becomes of this run, and must have the same content.
    ///
    /// # Errors
    /// [`Error::Refused`] if something else is in the place of a file; [`Error::Io`].
    pub fn publish(mut self) -> Result<(), Error> {
        self.root.lock()?;
        let mut published = Published { root: &self.root, files: Vec::new(), made: Vec::new() };
        let mut changed = Vec::new();
        for (index, relative) in self.files.iter().enumerate() {
            let parent = relative.parent().unwrap_or(Path::new(""));
            let file_name = relative.file_name().unwrap_or_default();
            let directory = published.directory(parent)?;
            match self.hidden.rename_new(&number(index), &directory, file_name) {
                Ok(()) => published.files.push(relative),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.check_same(index, &directory, file_name)?;
                    self.hidden.remove(&number(index))?;
                }
                Err(error) => {
                    return Err(Error::io(&self.root.path().join(relative), "write", error));
                }
            }
            for above in parent.ancestors() {
                if !changed.contains(&above) {
                    changed.push(above);
                }
            }
        }
        for path in changed {
            self.root.below(path)?.sync()?;
        }
        self.made.sync()?;
        published.keep();
        self.files.clear();
        std::mem::take(&mut self.made).keep();
        Ok(())
    }

    /// Refuses what has the final name of a file unless it is the same file.
    fn check_same(&self, index: usize, directory: &Directory, name: &OsStr) -> Result<(), Error> {
        directory.check_output(name, Kind::File)?;
        let path = directory.path().join(name);
        let (there, own) = (directory.open_file(name)?, self.hidden.open_file(&number(index))?);
        let (Some(there), Some(own)) = (there, own) else {
            return Err(appeared(&path));
        };
        if files::same_bytes(&there, &own).map_err(|e| Error::io(&path, "read", e))? {
            Ok(())
        } else {
            Err(appeared(&path))
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The next run may have nothing to write here, and would not look for what is left.
        for number in (0..self.files.len()).map(number) {
            let _ = twice(&|| self.hidden.remove(&number));
        }
        let _ = twice(&|| self.root.remove_emptied(&self.name));
    }
}

/// What has its final name. On drop it is removed.
struct Published<'a> {
    root: &'a Directory,
    files: Vec<&'a Path>,
    /// Directories that were created for them, each after those above it.
    made: Vec<PathBuf>,
}

impl Published<'_> {
    /// Opens the directory `relative`, creating it if missing.
    fn directory(&mut self, relative: &Path) -> Result<Directory, Error> {
        let (directory, made) = self.root.make_listed(relative)?;
        self.made.extend(made);
        Ok(directory)
    }

    fn keep(mut self) {
        self.files.clear();
        self.made.clear();
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        let place = |path: &Path| {
            let parent = self.root.below(path.parent()?).ok()?;
            Some((parent, path.file_name()?.to_owned()))
        };
        for (parent, name) in self.files.iter().filter_map(|path| place(path)) {
            let _ = parent.remove(&name);
        }
        // The innermost first.
        for (parent, name) in self.made.iter().rev().filter_map(|path| place(path)) {
            parent.remove_empty(&name);
        }
    }
}

/// Removes the hidden directories of interrupted runs.
fn remove_leftovers(root: &Directory) -> Result<(), Error> {
    let names = root.names()?;
    let own = |name: &&OsString| numbered_stem(name) == Some(OsStr::new(NAME));
    for name in names.iter().filter(own) {
        // What cannot be opened is not ours, and what is locked is in use.
        let hidden = root.below(name.as_ref()).ok().filter(Directory::try_lock);
        if let Some(hidden) = hidden {
            for file in hidden.names()? {
                hidden.remove(&file)?;
            }
            root.remove_empty(name);
        }
    }
    Ok(())
}

fn number(index: usize) -> OsString {
    index.to_string().into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::thread;

    use super::*;
    use crate::ids;

    const SHARED: &str = "ab/shared.debug";

    /// A batch of these files.
    fn batch(root: &Path, files: &[(&str, &str)]) -> Batch {
        let mut batch = Batch::begin(root, true).unwrap();
        for (path, text) in files {
            let mut file = batch.create(path.into()).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        batch
    }

    /// The files below a directory, without those that have no final name yet.
    fn content(root: &Path) -> Vec<PathBuf> {
        let files = Directory::open(root).unwrap().walk().unwrap().files.into_keys();
        files.filter(|path| !path.to_string_lossy().contains(".tmp/")).collect()
    }

    #[test]
    fn what_another_run_has_published_stays_even_if_this_one_fails() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("cd/taken.debug")).unwrap();
        let own = [(SHARED, "code"), ("cd/other.debug", "more")];
        let (first, second) = (batch(root, &own[..1]), batch(root, &own));
        let failing = batch(root, &[(SHARED, "code"), ("cd/taken.debug", "never")]);
        let different = batch(root, &[("cd/new.debug", "new"), (SHARED, "other code")]);
        first.publish().unwrap();
        let inode = |path: &str| Directory::open(root).unwrap().identity(path.as_ref()).unwrap();
        let before = inode(SHARED);
        assert_eq!(failing.publish().unwrap_err().id(), ids::OUTPUT_IN_THE_WAY);
        assert_eq!(different.publish().unwrap_err().id(), ids::OUTPUT_IN_THE_WAY);
        assert_eq!(content(root), [PathBuf::from(SHARED)]);
        assert_eq!(inode(SHARED), before);
        second.publish().unwrap();
        assert_eq!(content(root), own.map(|(path, _)| PathBuf::from(path)));
        assert_eq!(
            (inode(SHARED), fs::read(root.join(SHARED)).unwrap()),
            (before, b"code".to_vec())
        );
    }

    #[test]
    fn nobody_relies_on_a_file_that_a_failing_run_takes_back() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let (failing, other) = (batch(root, &[(SHARED, "code")]), batch(root, &[(SHARED, "code")]));
        // It has published the file, and fails then.
        let lock = Batch::settled(root).unwrap();
        let mut published = Published { root: &failing.root, files: Vec::new(), made: Vec::new() };
        let to = published.directory("ab".as_ref()).unwrap();
        failing.hidden.rename_new(&number(0), &to, "shared.debug".as_ref()).unwrap();
        published.files.push(SHARED.as_ref());
        thread::scope(|scope| {
            let waits = scope.spawn(|| other.publish());
            // Without the lock, it would find the file by now.
            thread::sleep(std::time::Duration::from_millis(50));
            drop(published);
            drop(lock);
            waits.join().unwrap().unwrap();
        });
        assert_eq!(content(root), [PathBuf::from(SHARED)]);
    }

    #[test]
    fn nobody_sees_a_file_that_a_failing_run_takes_back() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let failing = batch(root, &[(SHARED, "code")]);
        let lock = Batch::settled(root).unwrap();
        let mut published = Published { root: &failing.root, files: Vec::new(), made: Vec::new() };
        let to = published.directory("ab".as_ref()).unwrap();
        failing.hidden.rename_new(&number(0), &to, "shared.debug".as_ref()).unwrap();
        published.files.push(SHARED.as_ref());
        thread::scope(|scope| {
            let looks = scope.spawn(|| Batch::settled(root).map(|_| root.join(SHARED).exists()));
            thread::sleep(std::time::Duration::from_millis(50));
            drop(published);
            drop(lock);
            assert!(!looks.join().unwrap().unwrap());
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_without_new_directories_is_an_error() {
        let error = Batch::begin(Path::new("/proc"), true).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        let error = crate::publish::Stage::lock(Path::new("/proc"), "out").unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
}
