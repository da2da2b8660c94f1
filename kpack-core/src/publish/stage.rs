//! The one publisher of directories, and of files that belong together.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::directory::{CreatedDirectories, Directory};
use super::hidden_name::{aside, hidden, hidden_beside, is_aside};
use crate::platform::{Kind, OsStrExt};
use crate::{Error, ids};

/// The name of kpack's directory in a hidden one.
const OWN: &str = "kpack";

/// In it: the paths that an interrupted run was giving to files of an existing directory.
const LIST: &str = ".list.tmp";

/// In it: what is being removed. If a run is killed meanwhile, half of it must not get its name back.
const REMOVED: &str = ".removed.tmp";

/// Asks whether the entry at a path may be replaced.
pub type MayReplace<'a> = &'a dyn Fn(&Path) -> Result<(), Error>;

/// `.NAME.tmp/.kpack.tmp` beside the final places of output, in which one run at a time makes it. Users may keep files in
/// `.NAME.tmp`, and kpack leaves those alone. Both are locked as long as this lives,
/// and removed then, if they are empty. All of it is done by handles of these directories, so that nothing is written or
/// removed elsewhere, whoever renames them meanwhile.
#[derive(Debug)]
pub struct Stage {
    hidden: Directory,
    above: Directory,
    _outer: Outer,
}

/// The outer directory, which is locked.
#[derive(Debug)]
struct Outer {
    above: Directory,
    name: OsString,
    lock: Directory,
    /// Their parents as well, as far as they were created.
    _made: CreatedDirectories,
}

impl Drop for Outer {
    fn drop(&mut self) {
        self.lock.remove_empty(hidden(OWN).as_ref());
        self.lock.prepare_removal();
        self.above.remove_empty(&self.name);
    }
}

impl Stage {
    /// The path of the hidden directory for the output `path`.
    pub fn beside(path: &Path) -> PathBuf {
        hidden_beside(path).join(hidden(OWN))
    }

    /// Waits for the lock on the hidden directory of the name `name` in the directory `output`, creating both if missing.
    /// What an interrupted run wrote is removed. What it set aside stays until this run succeeds: it may be the only
    /// complete one.
    ///
    /// # Errors
    /// [`Error::Refused`] if a symbolic link or another user's directory is in its place; [`Error::Io`].
    pub fn lock(output: &Path, name: impl AsRef<OsStr>) -> Result<Self, Error> {
        let name = hidden(name);
        let mut made = CreatedDirectories::default();
        loop {
            let above = Directory::make(output, &mut made)?;
            let refuse = |text: &str| {
                Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &above.path().join(&name), text))
            };
            // The contents will be removed, so do not follow a link.
            if above.kind(&name)? == Some(Kind::Symlink) {
                return refuse(
                    "a symbolic link, but kpack writes unfinished output here; remove it",
                );
            }
            let lock = match above.make_below(name.as_ref(), &mut made) {
                // Another run removed it when it was done.
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                lock => lock?,
            };
            lock.lock()?;
            // Another run may have removed it while this one waited.
            if !lock.is_still(above.below(name.as_ref()))? {
                continue;
            }
            let hidden = lock.make_below(hidden(OWN).as_ref(), &mut made)?;
            if !hidden.claim() {
                return refuse(
                    "has a directory of another user, who could change what kpack writes; remove it",
                );
            }
            let outer = Outer { above: above.again()?, name, lock, _made: made };
            let stage = Self { hidden, above, _outer: outer };
            stage.empty(false)?;
            return Ok(stage);
        }
    }

    /// The same, for a build directory: what is published need not survive a power failure.
    pub fn without_flushes(mut self) -> Self {
        self.hidden.stop_flushing();
        self.above.stop_flushing();
        self
    }

    /// The same, for files of the user's own rather than of an installation: the umask, or the default ACL, is for what is
    /// created.
    pub fn obeying_umask(mut self) -> Self {
        self.hidden.obey_umask();
        self.above.obey_umask();
        self
    }

    /// The hidden directory, in which output is made under its final name, and temporary files.
    pub fn directory(&self) -> &Directory {
        &self.hidden
    }

    /// The directory in which output appears.
    pub fn above(&self) -> &Directory {
        &self.above
    }

    /// The final path of the output `name`.
    pub fn output(&self, name: impl AsRef<Path>) -> PathBuf {
        self.above.path().join(name)
    }

    /// Opens the directory `path` in the hidden one, creating it if missing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn make(&self, path: impl AsRef<Path>) -> Result<Directory, Error> {
        let mut made = CreatedDirectories::default();
        let directory = self.hidden.make_below(path.as_ref(), &mut made);
        made.keep();
        directory
    }

    /// Gives the output `name` its name back if a run was killed while it replaced it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn recover(&self, name: &OsStr) -> Result<(), Error> {
        let old = aside(name);
        if self.hidden.kind(&old)?.is_none() || self.above.kind(name)?.is_some() {
            return Ok(());
        }
        let renamed = self.hidden.rename_new(&old, &self.above, name);
        renamed.map_err(|e| Error::io(&self.output(name), "recover", e))
    }

    /// The paths that an interrupted [`fill`](Self::fill) was giving to files.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn unfinished(&self) -> Result<BTreeSet<PathBuf>, Error> {
        let mut bytes = Vec::new();
        if let Some(mut list) = self.hidden.open_file(LIST.as_ref())? {
            let read = list.read_to_end(&mut bytes);
            read.map_err(|e| Error::io(&self.hidden.path().join(LIST), "read", e))?;
        }
        let paths = bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        Ok(paths.map(|path| OsStr::from_bytes(path).into()).collect())
    }

    /// As [`publish`](Self::publish), from the directory `tree` in the hidden one into an existing directory of the user's, which [`unfinished`](Self::unfinished)
    /// recognises if this is interrupted. In the end, `finish` gets that directory.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); those of `finish`.
    pub fn fill<P: AsRef<Path>>(
        &self,
        tree: &Directory,
        names: &[P],
        last: Option<&str>,
        replaced: &[P],
        may_replace: MayReplace<'_>,
        finish: &dyn Fn(&Directory) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let earlier = self.unfinished()?;
        let mut all = earlier.clone();
        all.extend(names.iter().chain(replaced).map(|name| name.as_ref().to_owned()));
        all.extend(last.map(PathBuf::from));
        let paths: Vec<&[u8]> = all.iter().map(|path| path.as_os_str().as_bytes()).collect();
        let failed = |e| Error::io(&self.hidden.path().join(LIST), "write", e);
        // One that is half written must not be read.
        let new = OsStr::new(".new-list.tmp");
        let mut list = self.hidden.create(new).map_err(failed)?;
        list.write_all(&paths.join(&0)).and_then(|()| list.sync_all()).map_err(failed)?;
        drop(list);
        self.hidden.rename(new, LIST.as_ref()).map_err(failed)?;
        let published = self.hidden.sync();
        let published =
            published.and_then(|()| self.rename_all(tree, names, last, replaced, may_replace));
        if published.is_err() && earlier.is_empty() {
            self.hidden.remove(LIST.as_ref())?;
        }
        published?;
        finish(&self.above)?;
        self.empty(true)
    }

    /// Gives the output at these paths its final names, and `last` one, whose presence says that all others are there and
    /// complete.
    ///
    /// What was there before goes first the same way: as long as there is a last one, it is complete, and all others
    /// are. That also holds after a power failure. On failure, what was there before gets its names back. `may_replace` is
    /// asked when something is there. What is at `replaced`, whose contents have other names now, is removed.
    ///
    /// # Errors
    /// [`Error::Refused`] if something is in the way; [`Error::Io`].
    pub fn publish<P: AsRef<Path>>(
        &self,
        names: &[P],
        last: Option<&str>,
        replaced: &[P],
        may_replace: MayReplace<'_>,
    ) -> Result<(), Error> {
        self.rename_all(&self.hidden, names, last, replaced, may_replace)?;
        self.empty(true)
    }

    fn rename_all<P: AsRef<Path>>(
        &self,
        tree: &Directory,
        names: &[P],
        last: Option<&str>,
        replaced: &[P],
        may_replace: MayReplace<'_>,
    ) -> Result<(), Error> {
        // After a power failure, no name may refer to content that was lost.
        self.hidden.sync_file_system()?;
        let mut renames =
            Renames { stage: self, tree, may_replace, made: Vec::new(), created: Vec::new() };
        if let Some(last) = last {
            renames.check(&self.above, last.as_ref())?;
            renames.set_aside(last.as_ref())?;
            self.above.sync()?;
        }
        for name in names {
            renames.publish(name.as_ref(), last.is_none())?;
        }
        for name in replaced {
            renames.set_aside(name.as_ref())?;
        }
        renames.sync()?;
        if let Some(last) = last {
            renames.publish(last.as_ref(), false)?;
            self.above.sync()?;
        }
        renames.keep();
        Ok(())
    }

    /// Removes what is in the hidden directory; what was set aside and the list only if `all`.
    fn empty(&self, all: bool) -> Result<(), Error> {
        let names = self.hidden.names()?;
        let (kept, others): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| is_aside(name) || *name == LIST);
        others.into_iter().try_for_each(|name| self.hidden.remove_tree(name))?;
        for name in kept.into_iter().filter(|name| all && *name != LIST) {
            let renamed = self.hidden.rename(name, REMOVED.as_ref());
            self.hidden.remove_tree(if renamed.is_ok() { REMOVED.as_ref() } else { name })?;
        }
        if all { self.hidden.remove(LIST.as_ref()) } else { Ok(()) }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What was replaced is still here if it could not get its name back.
        let _ = self.empty(false);
    }
}

/// Renames that belong together: unless all succeed, they are undone in reverse order.
struct Renames<'a> {
    stage: &'a Stage,
    /// Where the output was made.
    tree: &'a Directory,
    may_replace: MayReplace<'a>,
    made: Vec<Rename>,
    /// Directories that were created for the output, each after those above it.
    created: Vec<PathBuf>,
}

enum Rename {
    /// Output at this path got its name.
    Published(PathBuf),
    /// As above, and what was there has its hidden name.
    Exchanged(PathBuf),
    /// What was at this path has this name in the hidden directory.
    SetAside(PathBuf, OsString),
}

impl Renames<'_> {
    /// Gives the output at `path` its name. What is there is exchanged with it, if that is possible and `at_once`.
    fn publish(&mut self, path: &Path, at_once: bool) -> Result<(), Error> {
        let (parent, name) = split(path);
        let from = self.tree.below(parent)?;
        let to = self.parent(parent)?;
        let failed = |e| Error::io(&self.stage.output(path), "replace", e);
        if from.kind(name)?.is_none() {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        if self.check(&to, path)? {
            if at_once && from.exchange(name, &to).is_ok() {
                self.made.push(Rename::Exchanged(path.to_owned()));
                return Ok(());
            }
            self.set_aside(path)?;
        }
        match from.rename_new(name, &to, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let text =
                    "it appeared while kpack ran; run the command again, or choose another output";
                let path = self.stage.output(path);
                return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &path, text));
            }
            renamed => renamed.map_err(failed)?,
        }
        self.made.push(Rename::Published(path.to_owned()));
        Ok(())
    }

    /// Whether something is at `path`, in the directory `to`. If so, it must be replaceable.
    fn check(&self, to: &Directory, path: &Path) -> Result<bool, Error> {
        let (parent, name) = split(path);
        if to.kind(name)?.is_none() {
            return Ok(false);
        }
        let new = self.tree.below(parent)?.kind(name)?;
        to.check_output(name, new.unwrap_or(Kind::File))?;
        (self.may_replace)(path).map(|()| true)
    }

    /// Opens the directory `path` of the output, creating it if missing.
    fn parent(&mut self, path: &Path) -> Result<Directory, Error> {
        let above = &self.stage.above;
        let is_missing = |path: &&Path| above.below(path).is_err();
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        missing.reverse();
        let mut made = CreatedDirectories::default();
        let directory = above.make_below(path, &mut made)?;
        made.keep();
        self.created.extend(missing.into_iter().map(Path::to_owned));
        Ok(directory)
    }

    /// Renames what is at `path`, if anything is, into the hidden directory.
    fn set_aside(&mut self, path: &Path) -> Result<(), Error> {
        let (parent, name) = split(path);
        let Ok(from) = self.stage.above.below(parent) else {
            return Ok(());
        };
        let hidden = &self.stage.hidden;
        let mut old = aside(name);
        // An interrupted run may have left others.
        while hidden.kind(&old)?.is_some() {
            old.push("_");
        }
        match from.rename_new(name, hidden, &old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::io(&self.stage.output(path), "replace", error)),
            Ok(()) => {
                self.made.push(Rename::SetAside(path.to_owned(), old));
                Ok(())
            }
        }
    }

    /// Makes the names durable.
    fn sync(&self) -> Result<(), Error> {
        self.stage.above.sync()?;
        let is_below = |rename: &Rename| match rename {
            Rename::Published(path) | Rename::Exchanged(path) | Rename::SetAside(path, _) => {
                !split(path).0.as_os_str().is_empty()
            }
        };
        match self.made.iter().any(is_below) {
            true => self.stage.above.sync_file_system(),
            false => Ok(()),
        }
    }

    fn undo(&self, rename: &Rename) -> Result<(), Error> {
        let Stage { hidden, above, .. } = self.stage;
        let undone = match rename {
            Rename::SetAside(path, old) => {
                let (parent, name) = split(path);
                hidden.rename_new(old, &above.below(parent)?, name)
            }
            Rename::Published(path) | Rename::Exchanged(path) => {
                let (parent, name) = split(path);
                let (from, to) = (above.below(parent)?, self.tree.below(parent)?);
                match rename {
                    Rename::Exchanged(_) => from.exchange(name, &to),
                    _ => from.rename_new(name, &to, name),
                }
            }
        };
        undone.map_err(|e| Error::io(above.path(), "restore", e))
    }

    fn keep(mut self) {
        self.made.clear();
        self.created.clear();
    }
}

impl Drop for Renames<'_> {
    fn drop(&mut self) {
        for rename in self.made.iter().rev() {
            let _ = self.undo(rename);
        }
        for (parent, name) in self.created.iter().rev().map(|path| split(path)) {
            if let Ok(parent) = self.stage.above.below(parent) {
                parent.remove_empty(name);
            }
        }
    }
}

/// The directory and the name of a relative path.
fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GENERIC: &str = "blas_lib_generic";
    const ONE: &str = "blas_lib_gfx1100";
    const OTHER: &str = "blas_lib_gfx942";
    const ALL: MayReplace<'static> = &|_| Ok(());

    /// Puts an artifact with `text` into the stage.
    fn write(stage: &Stage, name: &str, text: &str) {
        let mut file = stage.make(name).unwrap().create("version".as_ref()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names = Directory::open(directory).unwrap().names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn the_generic_artifact_is_there_only_if_all_others_are() {
        let output = tempfile::tempdir().unwrap();
        let lock = || Stage::lock(output.path(), "blas_lib").unwrap();
        let version = || fs::read_to_string(output.path().join(GENERIC).join("version"));

        let stage = lock();
        write(&stage, GENERIC, "1");
        write(&stage, ONE, "1");
        stage.publish(&[ONE], Some(GENERIC), &[], ALL).unwrap();
        drop(stage);
        assert_eq!(version().unwrap(), "1");

        // The second target's artifact cannot be renamed: it is not there. Everything is as before.
        let stage = lock();
        write(&stage, GENERIC, "2");
        write(&stage, ONE, "2");
        let published = stage.publish(&[ONE, OTHER], Some(GENERIC), &[], ALL);
        assert!(matches!(published, Err(Error::Io { .. })));
        drop(stage);
        assert_eq!(version().unwrap(), "1");
        assert_eq!(names(output.path()), [GENERIC, ONE]);

        let stage = lock();
        for name in [GENERIC, ONE, OTHER] {
            write(&stage, name, "2");
        }
        stage.publish(&[ONE, OTHER], Some(GENERIC), &[], ALL).unwrap();
        drop(stage);
        assert_eq!(version().unwrap(), "2");
        assert_eq!(names(output.path()), [GENERIC, ONE, OTHER]);
    }

    #[test]
    fn artifacts_that_an_interrupted_run_set_aside_stay_until_another_run_succeeds() {
        let output = tempfile::tempdir().unwrap();
        let hidden = Stage::beside(&output.path().join("blas_lib"));
        // A run was killed after it had set the generic artifact aside and replaced another.
        for (name, text) in [("old.blas_lib_generic", "1"), ("old.blas_lib_gfx1100", "1")] {
            fs::create_dir_all(hidden.join(name)).unwrap();
            fs::write(hidden.join(name).join("version"), text).unwrap();
        }
        fs::write(hidden.join(".scratch"), "").unwrap();
        fs::create_dir(output.path().join(ONE)).unwrap();

        // The next run fails, before its first rename or after it.
        for names_to_publish in [&[][..], &[ONE, OTHER]] {
            let stage = Stage::lock(output.path(), "blas_lib").unwrap();
            write(&stage, GENERIC, "2");
            write(&stage, ONE, "2");
            if !names_to_publish.is_empty() {
                stage.publish(names_to_publish, Some(GENERIC), &[], ALL).unwrap_err();
            }
            drop(stage);
            assert_eq!(names(&hidden), ["old.blas_lib_generic", "old.blas_lib_gfx1100"]);
        }

        let stage = Stage::lock(output.path(), "blas_lib").unwrap();
        write(&stage, GENERIC, "2");
        write(&stage, ONE, "2");
        stage.publish(&[ONE], Some(GENERIC), &[], ALL).unwrap();
        drop(stage);
        assert_eq!(names(output.path()), [GENERIC, ONE]);
    }

    #[test]
    fn what_appears_meanwhile_stays() {
        let output = tempfile::tempdir().unwrap();
        let refuse = |path: &Path| Err(Error::changed(path));
        let stage = Stage::lock(output.path(), ONE).unwrap();
        write(&stage, ONE, "new");
        fs::create_dir(output.path().join(ONE)).unwrap();
        fs::write(output.path().join(ONE).join("thesis"), "mine").unwrap();
        stage.publish(&[ONE], None, &[], &refuse).unwrap_err();
        drop(stage);
        assert_eq!(names(&output.path().join(ONE)), ["thesis"]);
        assert_eq!(names(output.path()), [ONE]);
    }

    #[test]
    fn directories_that_may_not_be_written_to_are_removed() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        for mode in [0o000, 0o500] {
            for path in [&deep, &directory.path().join("a")] {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            Directory::open(directory.path()).unwrap().remove_tree("a".as_ref()).unwrap();
            assert!(!directory.path().join("a").exists());
            fs::create_dir_all(&deep).unwrap();
        }
    }
}
