//! The directory of a release, made in a hidden directory next to it and renamed at the end. It
//! replaces only the release of an earlier run without other files.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kpack_core::files::with_slashes;
use kpack_core::publish::{
    Directory, HiddenDirectory, Renames, StagedFile, make_directories, recover_directory,
    remove_tree, replace_directory,
};
use kpack_core::{Error, ids};

/// Marks a directory as staged, and lists every file of the release.
pub(super) const STAMP: &str = ".kpack-stage";

/// Its first line.
const STAMP_HEAD: &str = "# Made by `kpack stage`, which replaces this directory while it has these files and no others.";

/// What exists at the path of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExistingOutput {
    Nothing,
    Empty,
    Release,
}

/// In the hidden directory: a release being written or removed.
const NEW: &str = "new";
/// In the hidden directory: a release that was replaced. It is complete.
const OLD: &str = "old";

/// A release in progress. If dropped before it is committed, it is removed.
pub(super) struct OutputDir {
    /// The directory where it is made.
    pub(super) hidden: PathBuf,
    /// Its final path.
    pub(super) path: PathBuf,
    /// Locked, so that runs for one path take turns.
    lock: HiddenDirectory,
}

impl OutputDir {
    /// Starts a release for `path`, following a symbolic link there. Waits for another run that does so.
    ///
    /// # Errors
    /// [`Error::Refused`] for an existing file, or files that were not staged.
    pub(super) fn begin(path: &Path) -> Result<Self, Error> {
        let given = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
        let path = match given.symlink_metadata() {
            Ok(_) => fs::canonicalize(&given).map_err(|e| Error::io(&given, "follow", e))?,
            Err(_) => given,
        };
        if path.file_name().is_none() {
            return Err(Error::usage(format!(
                "`{}` is not a valid directory name",
                path.display()
            )));
        }
        let lock = HiddenDirectory::lock(&path)?;
        let old = lock.path().join(OLD);
        if !path.exists() && old.exists() {
            // A run may have been killed while it replaced a release.
            recover_directory(&path, &old)?;
        }
        let output = Self { hidden: lock.path().join(NEW), path, lock };
        there(&output.path)?;
        output.remove_leftovers()?;
        make_directories(&output.hidden)?;
        Ok(output)
    }

    /// The final path of a file of the release. Others stay as they are.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        let real = fs::canonicalize(&self.hidden).ok();
        let hidden = [Some(&self.hidden), real.as_ref()];
        let mut names = hidden.into_iter().flatten();
        let name = names.find_map(|hidden| path.strip_prefix(hidden).ok());
        name.map_or_else(|| path.to_owned(), |name| self.path.join(name))
    }

    /// Removes both releases from the hidden directory. The old one is renamed first, so that what is left of it
    /// if this run is killed does not get its name back.
    fn remove_leftovers(&self) -> Result<(), Error> {
        let old = self.lock.path().join(OLD);
        remove_tree(&self.hidden)?;
        let mut renames = Renames::default();
        match renames.set_aside(&old, &self.hidden) {
            Ok(_) => renames.keep(),
            // Nothing may be left of it.
            Err(_) => remove_tree(&old)?,
        }
        remove_tree(&self.hidden)
    }

    /// Lists the files of the release in the stamp.
    fn stamp(&self, files: &BTreeSet<PathBuf>) -> Result<(), Error> {
        let mut text = format!("{STAMP_HEAD}\n");
        for file in files {
            text += &format!("{}\n", with_slashes(file));
        }
        let path = self.hidden.join(STAMP);
        let (staged, ()) = StagedFile::write(&path, |staged| {
            let written = staged.file().write_all(text.as_bytes());
            written.map_err(|e| Error::io(&path, "write", e))
        })?;
        staged.commit().map(drop)
    }

    /// Renames it to its final path, replacing an earlier release.
    pub(super) fn commit(self) -> Result<(), Error> {
        let mut content = ReleaseContent::of(&self.hidden)?;
        content.files.remove(Path::new(STAMP));
        self.stamp(&content.files)?;
        // After a power failure, no name may refer to content that was lost.
        Directory::open(&self.hidden)?.sync_file_system()?;
        let failed = |e| Error::io(&self.path, "create", e);
        // Check again: somebody may have put a file there in the meantime.
        match there(&self.path)? {
            ExistingOutput::Nothing => {
                fs::rename(&self.hidden, &self.path).map_err(failed)?;
                Directory::of(&self.path)?.sync()?;
            }
            ExistingOutput::Empty => {
                self.move_into().map_err(failed)?;
                Directory::open(&self.path)?.sync()?;
            }
            ExistingOutput::Release => {
                let old = self.lock.path().join(OLD);
                replace_directory(&Directory::of(&self.path)?, &self.hidden, &self.path, &old)?;
            }
        }
        self.remove_leftovers()
    }

    /// Moves the release into an existing empty directory, which keeps its attributes. Both directories have the
    /// stamp meanwhile, so that the next run goes on after an interrupted one. Programs go last, since they need
    /// the rest.
    fn move_into(&self) -> io::Result<()> {
        let stamps = [&self.hidden, &self.path].map(|directory| directory.join(STAMP));
        let mut entries = fs::read_dir(&self.hidden)?.collect::<io::Result<Vec<_>>>()?;
        entries.retain(|entry| entry.file_name() != STAMP);
        entries.sort_by_key(|entry| entry.file_name() == "bin");
        let mut moved = Vec::new();
        let move_all = || {
            match fs::hard_link(&stamps[0], &stamps[1]) {
                // Some file systems have no hard links.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    fs::copy(&stamps[0], &stamps[1])?;
                }
                linked => linked?,
            }
            for entry in entries {
                let to = self.path.join(entry.file_name());
                fs::rename(entry.path(), &to)?;
                moved.push((entry.path(), to));
            }
            Ok(())
        };
        if let Err(error) = move_all() {
            for (from, to) in moved.into_iter().rev() {
                let _ = fs::rename(to, from);
            }
            let _ = fs::remove_file(&stamps[1]);
            return Err(error);
        }
        fs::remove_file(&stamps[0])?;
        fs::remove_dir(&self.hidden)
    }
}

impl Drop for OutputDir {
    fn drop(&mut self) {
        let _ = remove_tree(&self.hidden);
    }
}

fn is_stamped(path: &Path) -> bool {
    let text = fs::read_to_string(path.join(STAMP));
    text.is_ok_and(|text| text.starts_with(STAMP_HEAD))
}

/// Examines `path`.
///
/// # Errors
/// [`Error::Refused`] for a file or directory that must not be replaced.
fn there(path: &Path) -> Result<ExistingOutput, Error> {
    if path.symlink_metadata().is_err() {
        return Ok(ExistingOutput::Nothing);
    }
    let refused = |what: String| {
        Error::rejected(
            ids::OUTPUT_IN_THE_WAY,
            path,
            format!("cannot replace it: {what}; choose another directory, or remove it"),
        )
    };
    if !path.is_dir() {
        return Err(refused("it is not a directory".to_owned()));
    }
    let content = ReleaseContent::of(path)?;
    if content.files.is_empty() && content.empty.is_empty() {
        return Ok(ExistingOutput::Empty);
    }
    if !is_stamped(path) {
        return Err(refused(format!(
            "it is not empty and was not staged (it has no file `{STAMP}`)"
        )));
    }
    let stamp = path.join(STAMP);
    let text = fs::read_to_string(&stamp).map_err(|e| Error::io(&stamp, "read", e))?;
    // Include their parent directories, in case somebody removed files from them.
    let files = text.lines().skip(1).map(Path::new);
    let mut known: BTreeSet<&Path> = files.flat_map(Path::ancestors).collect();
    known.insert(Path::new(STAMP));
    let mut all = content.files.iter().chain(&content.empty);
    match all.find(|found| !known.contains(found.as_path())) {
        Some(foreign) => {
            Err(refused(format!("it has `{}`, which was not staged", foreign.display())))
        }
        None => Ok(ExistingOutput::Release),
    }
}

/// The content of a directory, by relative path.
struct ReleaseContent {
    /// All entries except directories.
    files: BTreeSet<PathBuf>,
    /// Empty directories.
    empty: BTreeSet<PathBuf>,
}

impl ReleaseContent {
    fn of(directory: &Path) -> Result<Self, Error> {
        let (mut files, mut directories) = (BTreeSet::new(), BTreeSet::new());
        for entry in walkdir::WalkDir::new(directory).min_depth(1) {
            let entry = entry.map_err(|e| Error::io(directory, "list", e.into()))?;
            let path = entry.path().strip_prefix(directory);
            let path = path.unwrap_or(entry.path()).to_owned();
            match entry.file_type().is_dir() {
                true => directories.insert(path),
                false => files.insert(path),
            };
        }
        let mut empty = directories.clone();
        for path in files.iter().chain(&directories) {
            for above in path.ancestors().skip(1) {
                empty.remove(above);
            }
        }
        Ok(Self { files, empty })
    }
}
