//! The one publisher of directories, and of files that belong together.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::directory::{CreatedDirectories, Directory};
use super::hidden_name::{aside, hidden, hidden_beside, is_aside};
use super::new_names::NewNames;
use super::output::appeared;
use crate::platform::{Kind, OsStrExt};
use crate::{Error, ids};

/// The name of kpack's directory in a hidden one.
const OWN: &str = "kpack";

/// In it: the paths that an interrupted run was giving to files of an existing directory.
const LIST: &str = ".list.tmp";

/// In it: what is being removed. If a run is killed meanwhile, half of it must not get its name back.
const REMOVED: &str = ".removed.tmp";

/// How often a directory is made again that another run removes. Some file systems, such as `/proc`, say the same of every
/// directory, so this must end.
pub(super) const MAX_TRIES: usize = 1000;

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
        // One failure should leave nothing. Nothing is removed after the outer one: its name tells the next run that this
        // one has not finished.
        let remove = |from: &Directory, name: &OsStr| {
            let _ = twice(&|| from.remove_emptied(name));
        };
        remove(&self.lock, hidden(OWN).as_ref());
        self.lock.prepare_removal();
        remove(&self.above, &self.name);
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
        Self::lock_with(&|made| Directory::make(output, made), hidden(name))
    }

    /// As [`lock`](Self::lock), in an open directory.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn lock_in(output: &Directory, name: impl AsRef<OsStr>) -> Result<Self, Error> {
        Self::lock_with(&|_| output.again(), hidden(name))
    }

    fn lock_with(
        open: &dyn Fn(&mut CreatedDirectories) -> Result<Directory, Error>,
        name: OsString,
    ) -> Result<Self, Error> {
        let mut made = CreatedDirectories::default();
        let mut tries = 0;
        loop {
            tries += 1;
            let above = open(&mut made)?;
            let refuse = |text: &str| {
                Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &above.path().join(&name), text))
            };
            // The contents will be removed, so do not follow a link.
            if above.kind(&name)? == Some(Kind::Symlink) {
                return refuse(
                    "a symbolic link, but kpack writes unfinished output here; remove it",
                );
            }
            // As soon as there is an `Outer`, it removes them.
            let mut own = CreatedDirectories::default();
            let lock = match above.make_below(name.as_ref(), &mut own) {
                // Another run removed it when it was done.
                Err(Error::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES =>
                {
                    continue;
                }
                lock => lock?,
            };
            lock.lock()?;
            // Another run may have removed it while this one waited.
            if !lock.is_still(above.below(name.as_ref()))? {
                continue;
            }
            let hidden = lock.make_below(hidden(OWN).as_ref(), &mut own)?;
            if !hidden.claim()? {
                return refuse(
                    "has a directory of another user, who could change what kpack writes; remove it",
                );
            }
            let outer = Outer { above: above.again()?, name, lock, _made: made };
            own.keep();
            let stage = Self { hidden, above, _outer: outer };
            stage.empty()?;
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
        self.hidden.provide_below(path.as_ref())
    }

    /// Gives the output `name` its name back if a run was killed while it replaced it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn recover(&self, name: &OsStr) -> Result<(), Error> {
        let Some(old) = self.set_aside(name)? else {
            return Ok(());
        };
        if self.above.kind(name)?.is_some() {
            return Ok(());
        }
        let renamed = old.rename_new(name, &self.above, name);
        renamed.map_err(|e| Error::io(&self.output(name), "recover", e))
    }

    /// The directory that has the output `name`, if a run was killed while it replaced it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_aside(&self, name: &OsStr) -> Result<Option<Directory>, Error> {
        for aside in self.hidden.names()?.iter().filter(|name| is_aside(name)) {
            let aside = self.hidden.below(aside.as_ref())?;
            if aside.kind(name)?.is_some() {
                return Ok(Some(aside));
            }
        }
        Ok(None)
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
    pub fn fill(
        &self,
        tree: &Directory,
        new: &NewNames<'_>,
        finish: &dyn Fn(&Directory) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let earlier = self.unfinished()?;
        let mut all = earlier.clone();
        all.extend(new.names.iter().chain(&new.replaced).map(|name| name.to_path_buf()));
        all.extend(new.last.iter().map(PathBuf::from));
        let paths: Vec<&[u8]> = all.iter().map(|path| path.as_os_str().as_bytes()).collect();
        let failed = |e| Error::io(&self.hidden.path().join(LIST), "write", e);
        // One that is half written must not be read.
        let new_list = OsStr::new(".new-list.tmp");
        let mut list = self.hidden.create(new_list).map_err(failed)?;
        list.write_all(&paths.join(&0)).and_then(|()| list.sync_all()).map_err(failed)?;
        drop(list);
        self.hidden.rename(new_list, LIST.as_ref()).map_err(failed)?;
        let is_undone = Cell::new(true);
        let filled = self.hidden.sync().and_then(|()| self.fill_all(tree, new, finish, &is_undone));
        if let Err(error) = filled {
            // Otherwise the next run has to know what this one left.
            if earlier.is_empty() && is_undone.get() {
                let _ = self.hidden.remove(LIST.as_ref());
            }
            return Err(error);
        }
        twice(&|| self.clear())
    }

    /// If anything fails, even the removal of the list, everything is as before: without the list, the next run would not
    /// know these files.
    fn fill_all(
        &self,
        tree: &Directory,
        new: &NewNames<'_>,
        finish: &dyn Fn(&Directory) -> Result<(), Error>,
        is_undone: &Cell<bool>,
    ) -> Result<(), Error> {
        let mut renames = Renames::begin_with(self, tree, new, Some(is_undone))?;
        renames.publish_all()?;
        renames.publish_last()?;
        finish(&self.above)?;
        self.hidden.remove(LIST.as_ref())?;
        renames.keep();
        Ok(())
    }

    /// Removes what was replaced, and what else is in the hidden directory.
    fn clear(&self) -> Result<(), Error> {
        for aside in self.hidden.names()?.into_iter().filter(|name| is_aside(name)) {
            self.discard(&self.hidden, &aside)?;
        }
        self.empty()
    }

    /// Gives the output its final names, and those after all others that come last.
    ///
    /// What was there before goes first the same way: as long as one of the last is there, it is complete, and all others
    /// are. That also holds after a power failure. On failure, what was there before gets its names back.
    ///
    /// # Errors
    /// [`Error::Refused`] if something is in the way; [`Error::Io`].
    pub fn publish(&self, new: &NewNames<'_>) -> Result<(), Error> {
        let mut renames = Renames::begin(self, &self.hidden, new)?;
        renames.publish_all()?;
        renames.publish_last()?;
        renames.keep();
        twice(&|| self.discard_replaced(&|name| new.replaced.iter().any(|path| *path == name)))
    }

    /// As [`publish`](Self::publish), after the output of another stage: all appear, or none, and what comes last in this
    /// one after that.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_after(
        &self,
        (other, others): (&Self, &NewNames<'_>),
        new: &NewNames<'_>,
    ) -> Result<(), Error> {
        let mut own = Renames::begin(self, &self.hidden, new)?;
        let mut others = Renames::begin(other, &other.hidden, others)?;
        others.publish_all()?;
        own.publish_last()?;
        own.keep();
        others.keep();
        twice(&|| other.discard_replaced(&|_| false))?;
        twice(&|| self.discard_replaced(&|_| false))
    }

    /// Removes what is in the hidden directory but for what was set aside, and the list.
    fn empty(&self) -> Result<(), Error> {
        for name in self.hidden.names()? {
            if is_aside(&name) {
                self.hidden.remove_empty(&name);
            } else if name != LIST {
                self.hidden.remove_tree(&name)?;
            }
        }
        Ok(())
    }

    /// Removes what was set aside of outputs that are there again, and of those that are `gone`. What a killed run has set
    /// aside besides is nowhere else.
    fn discard_replaced(&self, gone: &dyn Fn(&OsStr) -> bool) -> Result<(), Error> {
        for name in self.hidden.names()?.into_iter().filter(|name| is_aside(name)) {
            let aside = self.hidden.below(name.as_ref())?;
            for output in aside.names()? {
                if gone(&output) || self.above.kind(&output)?.is_some() {
                    self.discard(&aside, &output)?;
                }
            }
            // Windows keeps a directory that is open.
            drop(aside);
            self.hidden.remove_empty(&name);
        }
        Ok(())
    }

    /// Removes an entry of the directory `from` in the hidden one. If the run is killed meanwhile, half of it cannot get
    /// its name back.
    fn discard(&self, from: &Directory, name: &OsStr) -> Result<(), Error> {
        let removed = OsStr::new(REMOVED);
        match from.rename_into(name, &self.hidden, removed) {
            Ok(()) => self.hidden.remove_tree(removed),
            Err(_) => from.remove_tree(name),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What was replaced is still here if it could not get its name back.
        let _ = twice(&|| self.empty());
    }
}

/// Renames that belong together: unless all succeed, they are undone in reverse order.
struct Renames<'a> {
    stage: &'a Stage,
    /// Where the output was made.
    tree: &'a Directory,
    new: &'a NewNames<'a>,
    /// The directory in the hidden one for what is replaced, once there is one.
    aside: Option<Directory>,
    made: Vec<Rename>,
    /// Directories that were created for the output, each after those above it.
    created: Vec<PathBuf>,
    /// Gets whether everything was undone.
    is_undone: Option<&'a Cell<bool>>,
}

enum Rename {
    /// Output at this path got its name.
    Published(PathBuf),
    /// As above, and what was there has its hidden name.
    Exchanged(PathBuf),
    /// What was at this path is in the directory for what is replaced.
    SetAside(PathBuf),
}

impl<'a> Renames<'a> {
    /// Sets the `last` output of an earlier run aside.
    fn begin(stage: &'a Stage, tree: &'a Directory, new: &'a NewNames<'a>) -> Result<Self, Error> {
        Self::begin_with(stage, tree, new, None)
    }

    /// As [`begin`](Self::begin). `is_undone` gets whether everything was undone.
    fn begin_with(
        stage: &'a Stage,
        tree: &'a Directory,
        new: &'a NewNames<'a>,
        is_undone: Option<&'a Cell<bool>>,
    ) -> Result<Self, Error> {
        // After a power failure, no name may refer to content that was lost.
        stage.hidden.sync_file_system()?;
        let (made, created) = (Vec::new(), Vec::new());
        let mut renames = Self { stage, tree, new, aside: None, made, created, is_undone };
        for name in new.last {
            renames.check(&stage.above, name.as_ref())?;
            renames.set_aside(name.as_ref())?;
        }
        if !new.last.is_empty() {
            renames.sync()?;
        }
        Ok(renames)
    }

    /// Gives all output but the last its names, and sets aside what is replaced.
    fn publish_all(&mut self) -> Result<(), Error> {
        for name in &self.new.names {
            self.publish(name, self.new.last.is_empty())?;
        }
        for name in &self.new.replaced {
            self.set_aside(name)?;
        }
        for path in &self.new.directories {
            self.parent(path)?;
        }
        self.sync()
    }

    /// Gives the last output its names.
    fn publish_last(&mut self) -> Result<(), Error> {
        for name in self.new.last {
            self.publish(name.as_ref(), false)?;
        }
        if !self.new.last.is_empty() {
            self.stage.above.sync()?;
        }
        Ok(())
    }

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
                return Err(appeared(&self.stage.output(path)));
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
        (self.new.may_replace)(path).map(|()| true)
    }

    /// Opens the directory `path` of the output, creating it if missing.
    fn parent(&mut self, path: &Path) -> Result<Directory, Error> {
        let (directory, created) = self.stage.above.make_listed(path)?;
        self.created.extend(created);
        Ok(directory)
    }

    /// Renames what is at `path`, if anything is, into the directory for what is replaced.
    fn set_aside(&mut self, path: &Path) -> Result<(), Error> {
        let (parent, name) = split(path);
        let Some(from) = self.stage.above.find_below(parent)? else {
            return Ok(());
        };
        if from.kind(name)?.is_none() {
            return Ok(());
        }
        let aside = self.aside()?;
        let mut made = CreatedDirectories::default();
        let renamed = from.rename_new(name, &aside.make_below(parent, &mut made)?, name);
        match renamed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(|e| Error::io(&self.stage.output(path), "replace", e))?,
        }
        made.keep();
        self.made.push(Rename::SetAside(path.to_owned()));
        Ok(())
    }

    /// The directory for what this run replaces. An interrupted run may have left one of its own.
    fn aside(&mut self) -> Result<&Directory, Error> {
        let hidden = &self.stage.hidden;
        Ok(match &mut self.aside {
            Some(there) => there,
            none => {
                let mut number = 0;
                while hidden.kind(&aside(number))?.is_some() {
                    number += 1;
                }
                none.insert(self.stage.make(aside(number))?)
            }
        })
    }

    /// Makes the names durable.
    fn sync(&self) -> Result<(), Error> {
        // First the names of what was set aside, which may be the only complete output.
        if let Some(aside) = &self.aside {
            aside.sync()?;
            self.stage.hidden.sync()?;
        }
        self.stage.above.sync()?;
        let is_below = |rename: &Rename| match rename {
            Rename::Published(path) | Rename::Exchanged(path) | Rename::SetAside(path) => {
                !split(path).0.as_os_str().is_empty()
            }
        };
        match self.made.iter().any(is_below) {
            true => self.stage.above.sync_file_system(),
            false => Ok(()),
        }
    }

    fn undo(&self, rename: &Rename) -> Result<(), Error> {
        let above = &self.stage.above;
        let undone = match rename {
            Rename::SetAside(path) => {
                let (parent, name) = split(path);
                let Some(aside) = &self.aside else { return Ok(()) };
                aside.below(parent)?.rename_new(name, &above.below(parent)?, name)
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
        let mut is_undone = true;
        for rename in self.made.iter().rev() {
            is_undone &= self.undo(rename).is_ok();
        }
        if let Some(result) = self.is_undone {
            result.set(is_undone);
        }
        if let Some(aside) = self.aside.take_if(|_| is_undone && !self.made.is_empty()) {
            let name = aside.path().file_name().unwrap_or_default().to_owned();
            // Windows keeps a directory that is open.
            drop(aside);
            let _ = self.stage.hidden.remove_tree(&name);
        }
        for (parent, name) in self.created.iter().rev().map(|path| split(path)) {
            if let Ok(parent) = self.stage.above.below(parent) {
                parent.remove_empty(name);
            }
        }
    }
}

/// Removes what is left when all output is there, or none is. If a call fails only once, that is not the result of the run.
pub(super) fn twice(remove: &dyn Fn() -> Result<(), Error>) -> Result<(), Error> {
    remove().or_else(|_| remove())
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

    /// Some artifacts, and the generic one after them.
    fn with_generic<'a>(names: &'a [&'a str]) -> NewNames<'a> {
        NewNames::new(names).with_last(&[GENERIC])
    }

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
        stage.publish(&with_generic(&[ONE])).unwrap();
        drop(stage);
        assert_eq!(version().unwrap(), "1");

        // The second target's artifact cannot be renamed: it is not there. Everything is as before.
        let stage = lock();
        write(&stage, GENERIC, "2");
        write(&stage, ONE, "2");
        let published = stage.publish(&with_generic(&[ONE, OTHER]));
        assert!(matches!(published, Err(Error::Io { .. })));
        drop(stage);
        assert_eq!(version().unwrap(), "1");
        assert_eq!(names(output.path()), [GENERIC, ONE]);

        let stage = lock();
        for name in [GENERIC, ONE, OTHER] {
            write(&stage, name, "2");
        }
        stage.publish(&with_generic(&[ONE, OTHER])).unwrap();
        drop(stage);
        assert_eq!(version().unwrap(), "2");
        assert_eq!(names(output.path()), [GENERIC, ONE, OTHER]);
    }

    #[test]
    fn artifacts_that_an_interrupted_run_set_aside_stay_until_another_run_succeeds() {
        let output = tempfile::tempdir().unwrap();
        let hidden = Stage::beside(&output.path().join("blas_lib"));
        // A run was killed after it had set the generic artifact aside and replaced another.
        for name in [GENERIC, ONE] {
            fs::create_dir_all(hidden.join(".old-0.tmp").join(name)).unwrap();
            fs::write(hidden.join(".old-0.tmp").join(name).join("version"), "1").unwrap();
        }
        fs::write(hidden.join(".scratch"), "").unwrap();
        fs::create_dir(output.path().join(ONE)).unwrap();

        // The next run fails, before its first rename or after it.
        for names_to_publish in [&[][..], &[ONE, OTHER]] {
            let stage = Stage::lock(output.path(), "blas_lib").unwrap();
            write(&stage, GENERIC, "2");
            write(&stage, ONE, "2");
            if !names_to_publish.is_empty() {
                stage.publish(&with_generic(names_to_publish)).unwrap_err();
            }
            drop(stage);
            assert_eq!(names(&hidden), [".old-0.tmp"]);
            assert_eq!(names(&hidden.join(".old-0.tmp")), [GENERIC, ONE]);
        }

        let stage = Stage::lock(output.path(), "blas_lib").unwrap();
        write(&stage, GENERIC, "2");
        write(&stage, ONE, "2");
        stage.publish(&with_generic(&[ONE])).unwrap();
        drop(stage);
        assert_eq!(names(output.path()), [GENERIC, ONE]);
    }

    #[test]
    fn what_another_interrupted_run_set_aside_stays_while_it_is_nowhere_else() {
        let output = tempfile::tempdir().unwrap();
        let lock = || Stage::lock(output.path(), "blas_lib").unwrap();
        let stage = lock();
        write(&stage, ONE, "1");
        write(&stage, OTHER, "1");
        stage.publish(&NewNames::new(&[ONE, OTHER])).unwrap();
        // A run is killed after it has set two artifacts aside, and has published one of them.
        let new = NewNames::new(&[ONE]);
        let mut renames = Renames::begin(&stage, &stage.hidden, &new).unwrap();
        renames.set_aside(ONE.as_ref()).unwrap();
        renames.set_aside(OTHER.as_ref()).unwrap();
        write(&stage, ONE, "2");
        renames.publish(ONE.as_ref(), false).unwrap();
        renames.keep();
        drop(stage);

        let stage = lock();
        write(&stage, GENERIC, "3");
        stage.publish(&with_generic(&[])).unwrap();
        drop(stage);
        let stage = lock();
        stage.recover(ONE.as_ref()).unwrap();
        stage.recover(OTHER.as_ref()).unwrap();
        drop(stage);
        let version = |name| fs::read_to_string(output.path().join(name).join("version")).unwrap();
        assert_eq!([GENERIC, ONE, OTHER].map(version), ["3", "2", "1"]);
        assert_eq!(names(output.path()), [GENERIC, ONE, OTHER]);
    }

    #[test]
    fn output_may_be_called_like_what_was_replaced() {
        let output = tempfile::tempdir().unwrap();
        let hidden = Stage::beside(&output.path().join("blas_lib"));
        let all = [ONE, "old.blas_lib_gfx1100"];
        for version in ["1", "2"] {
            // A run was killed before it published.
            for name in all {
                fs::create_dir_all(hidden.join(name)).unwrap();
                fs::write(hidden.join(name).join("half"), "").unwrap();
            }
            let stage = Stage::lock(output.path(), "blas_lib").unwrap();
            assert!(names(&hidden).is_empty());
            for name in all {
                write(&stage, name, version);
            }
            stage.publish(&NewNames::new(&[ONE]).with_last(&[all[1]])).unwrap();
            drop(stage);
            for name in all {
                let directory = output.path().join(name);
                assert_eq!(fs::read_to_string(directory.join("version")).unwrap(), version);
                assert_eq!(names(&directory), ["version"]);
            }
        }
        assert_eq!(names(output.path()), all);
    }

    #[test]
    fn output_in_two_directories_is_all_there_or_as_it_was() {
        let (devices, hosts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let version = |directory: &Path, name| {
            fs::read_to_string(directory.join(name).join("version")).unwrap_or_default()
        };
        for (new, expected) in [("1", "1"), ("2", "2"), ("3", "2")] {
            let device = Stage::lock(devices.path(), "blas").unwrap();
            let host = Stage::lock(hosts.path(), "blas").unwrap();
            write(&device, ONE, new);
            write(&host, GENERIC, new);
            if new == "3" {
                // It cannot get its name.
                host.directory().remove_tree(GENERIC.as_ref()).unwrap();
            }
            // While the new devices get their names, no host is there that could need the old ones.
            let asked = |path: &Path| {
                let is_device = path == Path::new(ONE);
                assert!(!is_device || names(hosts.path()) == [".blas.tmp"]);
                Ok(())
            };
            let others = NewNames::new(&[ONE]).where_allowed(&asked);
            let own = with_generic(&[]).where_allowed(&asked);
            let published = host.publish_after((&device, &others), &own);
            assert_eq!(published.is_ok(), new == expected);
            drop((device, host));
            assert_eq!(version(devices.path(), ONE), expected);
            assert_eq!(version(hosts.path(), GENERIC), expected);
            assert_eq!(names(devices.path()), [ONE]);
        }
    }

    #[test]
    fn what_a_failed_run_could_not_take_back_is_still_known() {
        for is_undone in [true, false] {
            let output = tempfile::tempdir().unwrap();
            let stage = Stage::lock(output.path(), "kpack-unpack").unwrap();
            write(&stage, "new", "1");
            let tree = stage.make("new").unwrap();
            let names = [PathBuf::from("version")];
            let filled = stage.fill(&tree, &NewNames::new(&names), &|above| {
                if !is_undone {
                    tree.create("version".as_ref()).unwrap();
                }
                Err(Error::changed(above.path()))
            });
            assert!(matches!(filled, Err(Error::Changed { .. })), "{filled:?}");
            assert_eq!(output.path().join("version").exists(), !is_undone);
            drop((tree, stage));
            let stage = Stage::lock(output.path(), "kpack-unpack").unwrap();
            assert_eq!(stage.unfinished().unwrap().is_empty(), is_undone);
        }
    }

    #[test]
    fn what_appears_meanwhile_stays() {
        let output = tempfile::tempdir().unwrap();
        let refuse = |path: &Path| Err(Error::changed(path));
        let stage = Stage::lock(output.path(), ONE).unwrap();
        write(&stage, ONE, "new");
        fs::create_dir(output.path().join(ONE)).unwrap();
        fs::write(output.path().join(ONE).join("thesis"), "mine").unwrap();
        stage.publish(&NewNames::new(&[ONE]).where_allowed(&refuse)).unwrap_err();
        drop(stage);
        assert_eq!(names(&output.path().join(ONE)), ["thesis"]);
        assert_eq!(names(output.path()), [ONE]);
    }
}
