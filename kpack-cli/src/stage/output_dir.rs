//! The directory of a release, made under a hidden name and renamed at the end, or moved into an existing empty
//! directory. It replaces only the release of an earlier run without other files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use kpack_core::files::with_slashes;
use kpack_core::platform::canonicalize;
use kpack_core::publish::{Directory, Stage, hidden};
use kpack_core::{Error, ids};

/// Marks a directory as staged, and lists every file of the release.
pub(super) const STAMP: &str = ".kpack-stage";

/// Its first line.
const STAMP_HEAD: &str = "# Made by `kpack stage`, which replaces this directory while it has these files and no others.";

/// The hidden directory in an existing output directory is called after this.
const INSIDE: &str = "kpack-stage";

/// What exists at the path of the release.
#[derive(Debug, PartialEq, Eq)]
enum ExistingOutput {
    Nothing,
    Empty,
    /// A release with these files, or a part of one.
    Release(BTreeSet<PathBuf>),
}

/// A release in progress. If dropped before it is committed, it is removed.
pub(super) struct OutputDir {
    /// A path that leads to the directory where it is made.
    pub(super) hidden: PathBuf,
    /// That directory.
    pub(super) tree: Directory,
    /// Its final path.
    pub(super) path: PathBuf,
    /// Locked, so that runs for one path take turns.
    stage: Stage,
    /// Files to replace, if an existing directory is filled.
    fills: Option<BTreeSet<PathBuf>>,
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
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::usage(format!(
                "`{}` is not a valid directory name",
                path.display()
            )));
        };
        let is_filled = || Ok(path.join(hidden(INSIDE)).exists() || is_empty(&path)?);
        if !is_filled()? {
            let stage = Stage::lock(above, name)?;
            // A run may have been killed while it replaced a release.
            stage.recover(name)?;
            if !is_filled()? {
                there(&path, &BTreeSet::new())?;
                let tree = stage.make(name)?;
                return Ok(Self { hidden: tree.anchor(), tree, stage, fills: None, path });
            }
        }
        let stage = Stage::lock(&path, INSIDE)?;
        let fills = match there(&path, &stage.unfinished()?)? {
            ExistingOutput::Release(files) => files,
            _ => BTreeSet::new(),
        };
        let tree = stage.make("new")?;
        Ok(Self { hidden: tree.anchor(), tree, stage, fills: Some(fills), path })
    }

    /// The final path of a file of the release. Others stay as they are.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        let real = canonicalize(&self.hidden).ok();
        let hidden = [Some(&self.hidden), real.as_ref()];
        let mut names = hidden.into_iter().flatten();
        let name = names.find_map(|hidden| path.strip_prefix(hidden).ok());
        name.map_or_else(|| path.to_owned(), |name| self.path.join(name))
    }

    /// Lists the files of the release in the stamp.
    fn stamp<'a>(&self, files: impl Iterator<Item = &'a PathBuf>) -> Result<(), Error> {
        let mut text = format!("{STAMP_HEAD}\n");
        for file in files {
            text += &format!("{}\n", with_slashes(file));
        }
        let file = self.tree.create_open(STAMP.as_ref(), false);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|e| Error::io(&self.path.join(STAMP), "write", e))
    }

    /// Gives it its final path, replacing an earlier release.
    pub(super) fn commit(self) -> Result<(), Error> {
        let files = self.tree.walk()?.files;
        self.stamp(files.keys())?;
        let Some(earlier) = &self.fills else {
            let name = self.path.file_name().unwrap_or_default();
            // Check again: somebody may have put a file there in the meantime.
            let may_replace = |_: &Path| there(&self.path, &BTreeSet::new()).map(drop);
            return self.stage.publish(&[name], None, &[], &may_replace);
        };
        let mut names: Vec<PathBuf> = files.into_keys().collect();
        // Programs go last, since they need the rest.
        names.sort_by_key(|path| path.starts_with("bin"));
        names.push(STAMP.into());
        let is_stale = |path: &&PathBuf| !names.contains(path);
        let stale: Vec<PathBuf> = earlier.iter().filter(is_stale).cloned().collect();
        let may_replace = |_: &Path| there(&self.path, &self.stage.unfinished()?).map(drop);
        self.stage.fill(&self.tree, &names, None, &stale, &may_replace, &|_| Ok(()))
    }
}

/// Whether `path` is an empty directory.
fn is_empty(path: &Path) -> Result<bool, Error> {
    Ok(path.is_dir() && Directory::open(path)?.names()?.is_empty())
}

fn is_stamped(path: &Path) -> bool {
    let text = fs::read_to_string(path.join(STAMP));
    text.is_ok_and(|text| text.starts_with(STAMP_HEAD))
}

/// Examines `path`, where an interrupted run was writing the files `unfinished`.
///
/// # Errors
/// [`Error::Refused`] for a file or directory that must not be replaced.
fn there(path: &Path, unfinished: &BTreeSet<PathBuf>) -> Result<ExistingOutput, Error> {
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
    let is_known = |path: &PathBuf| unfinished.contains(path);
    if !unfinished.is_empty() && content.files.iter().all(is_known) {
        return Ok(ExistingOutput::Release(content.files));
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
        None => Ok(ExistingOutput::Release(content.files)),
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
        let is_own = |name: &OsStr| name == hidden(INSIDE);
        let walk = walkdir::WalkDir::new(directory).min_depth(1).into_iter();
        for entry in walk.filter_entry(|e| e.depth() != 1 || !is_own(e.file_name())) {
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
