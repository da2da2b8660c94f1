//! The directory of a release, made under a hidden name. A new one is renamed at the end. An existing one, such as a mount
//! point or the working directory, is filled, if it is empty or has the release of an earlier run without other files.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Component, MAIN_SEPARATOR, Path, PathBuf};

use kpack_core::files;
use kpack_core::platform::{OsStrExt, canonicalize};
use kpack_core::publish::{Directory, DirectoryListing, NewNames, Stage, hidden};
use kpack_core::{Error, ids};
use kpack_format::TargetId;

/// Marks a directory as staged, and lists every file of the release.
pub(super) const STAMP: &str = ".kpack-stage";

/// Its first line.
const STAMP_HEAD: &str = "# Made by `kpack stage`, which replaces this directory while it has these files and no others.";

/// The hidden directory in an existing output directory is called after this.
const INSIDE: &str = "kpack-stage";

/// The part of a release that every machine gets, if it is split.
pub(crate) const HOST: &str = "host";

/// A directory in which programs and libraries find each other: a release, or the host's part of it.
pub(super) struct Prefix {
    /// A path that leads to the directory where it is made.
    pub(super) hidden: PathBuf,
    /// That directory.
    pub(super) tree: Directory,
    /// Its final path.
    pub(super) path: PathBuf,
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
    /// If an existing directory is filled: the files of an earlier release in it, which are replaced.
    earlier: Option<BTreeSet<PathBuf>>,
    /// What an interrupted run was writing there. It may have made directories only.
    unfinished: BTreeSet<PathBuf>,
}

impl OutputDir {
    /// Starts a release for `path`, following a symbolic link there. Waits for another run that does so.
    ///
    /// # Errors
    /// [`Error::Refused`] for an existing file, or files that were not staged.
    pub(super) fn begin(path: &Path) -> Result<Self, Error> {
        let path = resolve(path)?;
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::usage(format!(
                "`{}` is not a valid directory name",
                path.display()
            )));
        };
        // Even beside an existing directory, a killed run may have left something.
        if !files::is_there(&path)? || files::is_there(&Stage::beside(&path))? {
            let stage = Stage::lock(above, name)?;
            // Another run may have made it while this one waited.
            if !files::is_there(&path)? {
                let tree = stage.make(name)?;
                let (earlier, unfinished) = (None, BTreeSet::new());
                return Ok(Self { hidden: tree.anchor(), tree, stage, earlier, unfinished, path });
            }
        }
        // Nothing is made in the directories of others.
        if !files::metadata_of(&path)?.is_some_and(|there| there.is_dir()) {
            return Err(cannot_replace(&path, "it is not a directory"));
        }
        let there = Directory::open(&path)?;
        if !there.has(&hidden(INSIDE))? {
            replaceable(&there, &BTreeSet::new())?;
        }
        let stage = Stage::lock_in(&there, INSIDE)?;
        let unfinished = stage.unfinished()?;
        let earlier = Some(replaceable(&there, &unfinished)?);
        let tree = stage.make("new")?;
        Ok(Self { hidden: tree.anchor(), tree, stage, earlier, unfinished, path })
    }

    /// The directory for programs and libraries: its own, or that for the host if the release `is_split`.
    pub(super) fn prefix(&self, is_split: bool) -> Result<Prefix, Error> {
        Ok(match is_split {
            false => Prefix {
                hidden: self.hidden.clone(),
                tree: self.tree.again()?,
                path: self.path.clone(),
            },
            true => Prefix {
                hidden: self.hidden.join(HOST),
                tree: self.tree.provide_below(HOST.as_ref())?,
                path: self.path.join(HOST),
            },
        })
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
        let lines = std::iter::once(STAMP_HEAD.into()).chain(files.map(|file| line_of(file)));
        let text = Vec::from_iter(lines.flat_map(|line: Vec<u8>| [line, b"\n".into()])).concat();
        let file = self.tree.create_open(STAMP.as_ref(), false);
        let written = file.and_then(|mut file| file.write_all(&text));
        written.map_err(|e| Error::io(&self.path.join(STAMP), "write", e))
    }

    /// Gives it its final path, replacing an earlier release.
    pub(super) fn commit(self) -> Result<(), Error> {
        let files = self.tree.walk()?.files;
        self.stamp(files.keys())?;
        let appeared = |path: &Path| {
            let text =
                "it appeared while kpack ran; run the command again, or choose another directory";
            Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &self.stage.output(path), text))
        };
        let Some(earlier) = &self.earlier else {
            let name = self.path.file_name().unwrap_or_default();
            return self.stage.publish(&NewNames::new(&[name]).where_allowed(&appeared));
        };
        // Somebody may have put a file there in the meantime.
        let known = earlier.union(&self.unfinished).cloned().collect();
        replaceable(self.stage.above(), &known)?;
        let mut names: Vec<PathBuf> = files.into_keys().collect();
        // Programs go last, since they need the rest.
        names.sort_by_key(|path| path.strip_prefix(HOST).unwrap_or(path).starts_with("bin"));
        names.push(STAMP.into());
        let is_stale = |path: &&PathBuf| !names.contains(path);
        let stale: Vec<PathBuf> = earlier.iter().filter(is_stale).cloned().collect();
        // An interrupted run may have removed its stale files, and not their directories.
        let gone = Vec::from_iter(stale.iter().chain(&self.unfinished).cloned());
        let may_replace =
            |path: &Path| if earlier.contains(path) { Ok(()) } else { appeared(path) };
        let new = NewNames::new(&names).instead_of(&stale).where_allowed(&may_replace);
        self.stage.fill(&self.tree, &new, &|output| {
            remove_emptied(output, &gone);
            Ok(())
        })
    }
}

/// The absolute path of a file or directory without symbolic links. It need not exist: what does not exist yet will be a directory.
///
/// # Errors
/// [`Error::Io`], if it or a directory above is a dangling symbolic link, for example.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let given = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
    let mut resolved = PathBuf::new();
    for part in given.components() {
        match part {
            // There are no links above.
            Component::ParentDir => drop(resolved.pop()),
            Component::Normal(name) => {
                resolved.push(name);
                if files::is_there(&resolved)? {
                    resolved = canonicalize(&resolved)
                        .map_err(|error| Error::io(&resolved, "follow", error))?;
                }
            }
            other => resolved.push(other),
        }
    }
    Ok(resolved)
}

/// The path of a file as a line of the stamp, with `/`. Different paths have different lines: line breaks are escaped.
fn line_of(path: &Path) -> Vec<u8> {
    let mut line = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\\' if MAIN_SEPARATOR == '\\' => line.push(b'/'),
            b'\\' => line.extend(b"\\\\"),
            b'\n' => line.extend(b"\\n"),
            other => line.push(*other),
        }
    }
    line
}

/// Whether kpack has files of its own at a path of an output directory.
pub(super) fn is_own(path: &Path) -> bool {
    path.starts_with(STAMP) || path.starts_with(hidden(INSIDE))
}

/// Removes the directories in `output` that these files were in, if they are empty now.
pub(super) fn remove_emptied(output: &Directory, files: &[PathBuf]) {
    let above = files.iter().flat_map(|path| path.ancestors().skip(1));
    // Those in others go first.
    for directory in above.collect::<BTreeSet<_>>().into_iter().rev() {
        if let (Some(parent), Some(name)) = (directory.parent(), directory.file_name())
            && let Ok(parent) = output.below(parent)
        {
            parent.remove_empty(name);
        }
    }
}

fn cannot_replace(path: &Path, why: &str) -> Error {
    let text = format!("cannot replace it: {why}; choose another directory, or remove it");
    Error::rejected(ids::OUTPUT_IN_THE_WAY, path, text)
}

/// The text of the stamp in a directory, if it has one.
fn stamp_in(directory: &Directory) -> Result<Option<Vec<u8>>, Error> {
    let Some(mut file) = directory.open_file(STAMP.as_ref())? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    let read = file.read_to_end(&mut text);
    read.map_err(|error| Error::io(&directory.path().join(STAMP), "read", error))?;
    // Otherwise it is another file of that name.
    Ok(text.starts_with(STAMP_HEAD.as_bytes()).then_some(text))
}

/// Whether a directory has the parts of a split release beside each other, and nothing else.
pub(crate) fn has_parts(path: &Path) -> bool {
    let stamp = Directory::open(path).and_then(|directory| stamp_in(&directory));
    let stamp = stamp.ok().flatten().unwrap_or_default();
    let stamp = String::from_utf8_lossy(&stamp);
    let parts = BTreeSet::from_iter(
        stamp.lines().skip(1).map(|line| line.split_once('/').map_or("", |(part, _)| part)),
    );
    let is_part = |part: &&str| *part == HOST || part.parse::<TargetId>().is_ok();
    parts.contains(HOST) && parts.iter().all(is_part)
}

/// The files in `directory` that a release replaces. An interrupted run was writing the files `unfinished`, or this one knows
/// them from when it began.
///
/// # Errors
/// [`Error::Refused`] for a file or directory that must not be replaced.
fn replaceable(
    directory: &Directory,
    unfinished: &BTreeSet<PathBuf>,
) -> Result<BTreeSet<PathBuf>, Error> {
    let DirectoryListing { files, mut directories, .. } = directory.walk()?;
    let is_own = |path: &PathBuf| path.starts_with(hidden(INSIDE));
    directories.retain(|path| !is_own(path));
    let files: BTreeSet<PathBuf> = files.into_keys().filter(|path| !is_own(path)).collect();
    // Only those that are empty count.
    for path in files.iter().chain(&directories.clone()) {
        for above in path.ancestors().skip(1) {
            directories.remove(above);
        }
    }
    if files.is_empty() && directories.is_empty() {
        return Ok(files);
    }
    if !unfinished.is_empty() && files.is_subset(unfinished) {
        return Ok(files);
    }
    let Some(text) = stamp_in(directory)? else {
        let why = format!("it is not empty and was not staged (it has no file `{STAMP}`)");
        return Err(cannot_replace(directory.path(), &why));
    };
    // Include their parent directories, in case somebody removed files from them.
    let mut known = BTreeSet::from([STAMP.as_bytes()]);
    for line in text.split(|byte| *byte == b'\n').skip(1) {
        known.insert(line);
        let ends = line.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        known.extend(ends.map(|(end, _)| &line[..end]));
    }
    match files.iter().chain(&directories).find(|found| !known.contains(&*line_of(found))) {
        Some(foreign) => {
            let why = format!("it has `{}`, which was not staged", foreign.display());
            Err(cannot_replace(directory.path(), &why))
        }
        None => Ok(files),
    }
}
