//! Replaces directories by new ones made next to them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::directory::Directory;
use crate::Error;
use crate::platform::exchange;

/// Renames that belong together: unless all succeed, they are undone in reverse order.
#[derive(Debug, Default)]
pub struct Renames {
    made: Vec<Rename>,
}

/// A rename from `before` to `now`, or an exchange of the two names.
#[derive(Debug)]
struct Rename {
    before: PathBuf,
    now: PathBuf,
    exchanged: bool,
}

impl Renames {
    /// Renames `new` to `path`, which must be free.
    pub fn rename(&mut self, new: &Path, path: &Path) -> Result<(), Error> {
        self.make(new, path, false).map_err(|e| Error::io(path, "replace", e))
    }

    /// Renames `path`, if it exists, to `aside`, which must be free.
    pub fn set_aside(&mut self, path: &Path, aside: &Path) -> Result<(), Error> {
        match self.make(path, aside, false) {
            Err(error) if !is_missing(&error) => Err(Error::io(path, "replace", error)),
            _ => Ok(()),
        }
    }

    /// Renames `new` to `path`, and the existing entry to `aside` or `new`: atomically, if the file
    /// system can exchange two names.
    pub fn replace(&mut self, new: &Path, path: &Path, aside: &Path) -> Result<(), Error> {
        if self.make(new, path, true).is_ok() {
            return Ok(());
        }
        self.set_aside(path, aside)?;
        self.rename(new, path)
    }

    fn make(&mut self, before: &Path, now: &Path, exchanged: bool) -> io::Result<()> {
        rename(before, now, exchanged)?;
        self.made.push(Rename { before: before.to_owned(), now: now.to_owned(), exchanged });
        Ok(())
    }

    /// Keeps the renames.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Renames {
    fn drop(&mut self) {
        for made in self.made.iter().rev() {
            let _ = rename(&made.now, &made.before, made.exchanged);
        }
    }
}

fn rename(before: &Path, now: &Path, exchanged: bool) -> io::Result<()> {
    if exchanged { exchange(before, now) } else { fs::rename(before, now) }
}

/// Replaces the directory `path` by `new`: atomically, if the file system can exchange two names. The old one
/// is then called `old`, a free name. On failure it gets its name back. This is durable, unless `above`, which
/// `path` is in, is a build directory.
pub fn replace_directory(
    above: &Directory,
    new: &Path,
    path: &Path,
    old: &Path,
) -> Result<(), Error> {
    let mut renames = Renames::default();
    renames.replace(new, path, old)?;
    if new.symlink_metadata().is_ok() {
        renames.rename(new, old)?;
    }
    above.sync()?;
    renames.keep();
    Ok(())
}

/// Restores the name of `old` after a run was killed between the two renames of
/// [`replace_directory`] on a file system that cannot exchange them.
pub fn recover_directory(path: &Path, old: &Path) -> Result<(), Error> {
    match fs::rename(old, path) {
        Err(error) if !is_missing(&error) => Err(Error::io(old, "rename", error)),
        _ => Ok(()),
    }
}

/// Whether the path does not exist, or one of its parents is a file.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_that_are_not_all_made_are_undone() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, text) in [("a", "old"), ("a.new", "new"), ("b", "old"), ("b.new", "new")] {
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

        // Exchanged names are undone too.
        let mut renames = Renames::default();
        renames.replace(&at("a.new"), &at("a"), &at("a.old")).unwrap();
        assert_ne!(state(), before);
        drop(renames);
        assert_eq!(state(), before);

        replace_all(&["a", "b"]).unwrap();
        assert_eq!(fs::read(at("a/text")).unwrap(), b"new");
        assert_eq!(fs::read(at("b.old/text")).unwrap(), b"old");
    }
}
