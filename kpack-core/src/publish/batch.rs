//! Files for a directory that is not the run's own, which appear together.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use super::directory::{CreatedDirectories, Directory};
use super::hidden_name::{numbered, numbered_stem};
use super::staged_file::MODE;
use crate::Error;
use crate::files;
use crate::interrupt;
use crate::platform::{self, Kind};

/// What the hidden directory is named after.
const NAME: &str = "kpack";

/// New files of a run for a directory that other runs and programs write to as well. They are in a hidden directory in
/// it, `.kpack.<16 hexadecimal digits>.tmp`, until all of them are published. The directory is locked as long as this
/// lives; an unlocked one is a leftover. If dropped before, nothing changes. Takes few descriptors for any number of
/// files.
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

    /// Begins one in the directory `path`, creating it if missing. `flushes`: whether the files are made durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(path: &Path, flushes: bool) -> Result<Self, Error> {
        let mut made = CreatedDirectories::default();
        let mut root = Directory::make(path, &mut made)?;
        if !flushes {
            root = root.without_flushes();
        }
        loop {
            let name = numbered(NAME.as_ref());
            let mut own = CreatedDirectories::default();
            let hidden = root.make_below(name.as_ref(), &mut own)?;
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
        let file = self.hidden.create(&number(self.files.len()));
        let file = file.map_err(|e| Error::io(&path, "write", e))?;
        self.files.push(relative);
        platform::set_mode(&file, MODE).map_err(|e| Error::io(&path, "set the mode of", e))?;
        Ok(file)
    }

    /// Gives all files their final names, and makes that durable. On failure none has it.
    ///
    /// # Errors
    /// [`Error::Refused`] if something that is no file is in the place of one; [`Error::Io`].
    pub fn publish(mut self) -> Result<(), Error> {
        let mut published = Published { root: &self.root, files: Vec::new(), made: Vec::new() };
        let mut changed = Vec::new();
        for (index, relative) in self.files.iter().enumerate() {
            let parent = relative.parent().unwrap_or(Path::new(""));
            let file_name = relative.file_name().unwrap_or_default();
            let directory = published.directory(parent)?;
            directory.check_output(file_name, Kind::File)?;
            let renamed = self.hidden.rename_into(&number(index), &directory, file_name);
            renamed.map_err(|e| Error::io(&self.root.path().join(relative), "write", e))?;
            published.files.push(relative);
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
}

impl Drop for Batch {
    fn drop(&mut self) {
        for index in 0..self.files.len() {
            let _ = self.hidden.remove(&number(index));
        }
        self.root.remove_empty(&self.name);
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
        let path = self.root.path();
        let missing = relative.ancestors();
        let missing = missing.take_while(|above| !path.join(above).exists());
        let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        let mut made = CreatedDirectories::default();
        let directory = self.root.make_below(relative, &mut made)?;
        self.made.extend(missing.into_iter().rev());
        made.keep();
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
        if let Ok(hidden) = root.below(name.as_ref())
            && hidden.try_lock()
        {
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
