//! Directories that are made beside the one that they replace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::Error;

/// Removes a directory that may be missing, with all that is in it.
pub fn remove_directory(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if !is_missing(&error) => Err(Error::io(path, "remove", error)),
        _ => Ok(()),
    }
}

/// Renames that belong together: unless all are made, those that were are undone, the last first.
#[derive(Debug, Default)]
pub struct Renames {
    made: Vec<Rename>,
}

/// What was called `before` is called `now`, and the other way round where they were exchanged.
#[derive(Debug)]
struct Rename {
    before: PathBuf,
    now: PathBuf,
    flags: RenameFlags,
}

impl Renames {
    /// Gives `new` the name `path`, which is free.
    pub fn rename(&mut self, new: &Path, path: &Path) -> Result<(), Error> {
        self.make(new, path, RenameFlags::empty())
            .map_err(|e| Error::io(path, "replace", e))
    }

    /// Gives what is at `path`, which may be nothing, the name `aside`, which is free.
    pub fn set_aside(&mut self, path: &Path, aside: &Path) -> Result<(), Error> {
        match self.make(path, aside, RenameFlags::empty()) {
            Err(error) if !is_missing(&error) => Err(Error::io(path, "replace", error)),
            _ => Ok(()),
        }
    }

    /// Gives `new` the name `path`, and what is there the name `aside` or `new`: at once, where the
    /// file system can exchange two names.
    pub fn replace(&mut self, new: &Path, path: &Path, aside: &Path) -> Result<(), Error> {
        if self.make(new, path, RenameFlags::EXCHANGE).is_ok() {
            return Ok(());
        }
        self.set_aside(path, aside)?;
        self.rename(new, path)
    }

    fn make(&mut self, before: &Path, now: &Path, flags: RenameFlags) -> io::Result<()> {
        renameat_with(CWD, before, CWD, now, flags)?;
        self.made.push(Rename {
            before: before.to_owned(),
            now: now.to_owned(),
            flags,
        });
        Ok(())
    }

    /// All are made.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Renames {
    fn drop(&mut self) {
        for made in self.made.iter().rev() {
            let _ = renameat_with(CWD, &made.now, CWD, &made.before, made.flags);
        }
    }
}

/// Gives the directory `new` the name `path`. What has that name is called `old`, which has to be
/// free, until then. On failure it has its name again.
pub fn replace_directory(new: &Path, path: &Path, old: &Path) -> Result<(), Error> {
    let mut renames = Renames::default();
    renames.set_aside(path, old)?;
    renames.rename(new, path)?;
    renames.keep();
    Ok(())
}

/// Gives `old` its name again where a run was killed between the two renames of
/// [`replace_directory`].
pub fn recover_directory(path: &Path, old: &Path) -> Result<(), Error> {
    match fs::rename(old, path) {
        Err(error) if !is_missing(&error) => Err(Error::io(old, "rename", error)),
        _ => Ok(()),
    }
}

/// Whether there was nothing, or a file where a directory above it would be.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_that_are_not_all_made_are_undone() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, text) in [
            ("a", "old"),
            ("a.new", "new"),
            ("b", "old"),
            ("b.new", "new"),
        ] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("text"), text).unwrap();
        }
        let replace_all = |names: &[&str]| {
            let mut renames = Renames::default();
            for name in names {
                renames.set_aside(&at(name), &at(&format!("{name}.old")))?;
                renames.rename(&at(&format!("{name}.new")), &at(name))?;
            }
            renames.keep();
            Ok::<(), Error>(())
        };
        let state =
            || ["a", "a.new", "b", "b.new"].map(|name| fs::read(at(name).join("text")).ok());
        let before = state();
        replace_all(&["a", "b", "missing"]).unwrap_err();
        assert_eq!(state(), before);

        // Exchanged names, too.
        let mut renames = Renames::default();
        renames
            .replace(&at("a.new"), &at("a"), &at("a.old"))
            .unwrap();
        assert_ne!(state(), before);
        drop(renames);
        assert_eq!(state(), before);

        replace_all(&["a", "b"]).unwrap();
        assert_eq!(fs::read(at("a/text")).unwrap(), b"new");
        assert_eq!(fs::read(at("b.old/text")).unwrap(), b"old");
    }
}
