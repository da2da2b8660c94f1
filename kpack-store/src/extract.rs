//! Makes the files of a packed artifact. It writes through no link, and over nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::index::Entry;
use super::member::{Member, Node, Visitor, unreadable};
use kpack_artifact::{manifest_txt, mark, names};
use kpack_core::interrupt::Watched;
use kpack_core::publish::Directory;
use kpack_core::report::Progress;
use kpack_core::{Error, Reason, ids};

/// Bytes that are written at a time.
const PART: usize = 256 << 10;

/// Writes the members of an artifact.
pub(super) struct Extractor<'a> {
    archive: &'a Path,
    entry: &'a Entry,
    /// The directory of the artifact, or of all where they are flattened.
    root: Directory,
    /// For files that another artifact has as well, where artifacts are flattened.
    again: Option<&'a Directory>,
    parent: Option<(PathBuf, Directory)>,
    buffer: Vec<u8>,
    time: SystemTime,
    progress: &'a dyn Progress,
    pub(super) made: Made,
}

/// What is to be done when all artifacts are there.
#[derive(Default)]
pub(super) struct Made {
    /// The times of directories; `None` for those that are in no artifact by themselves.
    pub(super) times: BTreeMap<PathBuf, Option<SystemTime>>,
    /// Symbolic links, each with the prefix that it must not lead out of; an empty one for the root.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// Files of the same path as another one, which must be the same: the hidden name and the path.
    pub(super) again: Vec<(OsString, PathBuf)>,
    /// Files and links of the host.
    pub(super) host: BTreeSet<PathBuf>,
}

impl<'a> Extractor<'a> {
    pub(super) fn new(
        archive: &'a Path,
        entry: &'a Entry,
        root: Directory,
        again: Option<&'a Directory>,
        progress: &'a dyn Progress,
    ) -> Self {
        Self {
            archive,
            entry,
            root,
            again,
            parent: None,
            buffer: vec![0; PART],
            time: SystemTime::UNIX_EPOCH,
            progress,
            made: Made::default(),
        }
    }

    /// Where a path of the artifact is made.
    fn place(&self, path: PathBuf, installed: Option<PathBuf>) -> Option<PathBuf> {
        match self.again {
            Some(_) => installed,
            None => Some(path),
        }
    }

    /// Opens the directory of `path`, and those above it, creating them if missing.
    fn parent(&mut self, path: &Path) -> Result<&Directory, Error> {
        let above = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_ref().is_none_or(|(known, _)| known != above) {
            let opened = self.directory(above)?;
            self.parent = Some((above.to_owned(), opened));
        }
        match &self.parent {
            Some((_, parent)) => Ok(parent),
            None => Ok(&self.root),
        }
    }

    fn directory(&mut self, path: &Path) -> Result<Directory, Error> {
        let opened = self.root.provide_below(path);
        for above in path.ancestors().filter(|path| *path != Path::new("")) {
            self.made.times.entry(above.to_owned()).or_default();
        }
        opened.map_err(|error| match error {
            // A link or a file is in its place: nothing is written through it.
            Error::Refused { .. } => {
                let text = "a file or symbolic link is where its directory should be";
                self.refuse(path, text)
            }
            error => error,
        })
    }

    fn refuse(&self, path: &Path, text: &str) -> Error {
        let reason = Reason::from(text).in_member(path.display());
        Error::rejected(ids::CONFLICTING_FILES, self.archive, reason)
    }

    fn failed(&self, path: &Path, error: io::Error) -> Error {
        let path = self.root.path().join(path);
        Error::io(&path, "write", error)
    }

    /// Why a member cannot be made.
    fn not_made(&self, path: &Path, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                self.refuse(path, "another member has the same path, or differs from it by case")
            }
            _ => self.failed(path, error),
        }
    }

    fn file(
        &mut self,
        path: PathBuf,
        (size, mode): (u64, u32),
        content: &mut dyn Read,
        time: SystemTime,
    ) -> Result<(), Error> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = self.parent(&path)?;
        let is_executable = mode & 0o100 != 0;
        let file = match (parent.create_open(&name, is_executable), self.again) {
            (Err(error), Some(again)) if error.kind() == io::ErrorKind::AlreadyExists => {
                let hidden = self.again_name();
                let file = again
                    .create_open(&hidden, is_executable)
                    .map_err(|error| self.failed(&path, error))?;
                self.made.again.push((hidden, path.clone()));
                file
            }
            (created, _) => created.map_err(|error| self.not_made(&path, error))?,
        };
        self.fill(&file, &path, size, content)?;
        let set = file.set_times(FileTimes::new().set_modified(time));
        set.map_err(|error| self.failed(&path, error))?;
        self.note(path);
        Ok(())
    }

    /// Notes a file or link of the host.
    fn note(&mut self, path: PathBuf) {
        if self.entry.is_generic() {
            self.made.host.insert(path);
        }
    }

    /// The hidden name of a file to compare later with that of its path, which may not be complete yet.
    fn again_name(&self) -> OsString {
        let artifact = self.entry.artifact();
        OsString::from(format!("{artifact}.{}", self.made.again.len()))
    }

    fn fill(
        &mut self,
        file: &File,
        path: &Path,
        size: u64,
        content: &mut dyn Read,
    ) -> Result<(), Error> {
        let mut output = Watched(file);
        let mut left = size;
        while left > 0 {
            let part = usize::try_from(left).map_or(PART, |left| left.min(PART));
            let read = match content.read(&mut self.buffer[..part]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(|error| unreadable(self.archive, error))?,
            };
            if read == 0 {
                return Err(unreadable(self.archive, io::ErrorKind::UnexpectedEof.into()));
            }
            let written = output.write_all(&self.buffer[..read]);
            written.map_err(|error| self.failed(path, error))?;
            left -= read as u64;
            self.progress.advance(read as u64);
        }
        Ok(())
    }

    fn symlink(&mut self, path: PathBuf, within: &Path, target: &Path) -> Result<(), Error> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let flattens = self.again.is_some();
        let parent = self.parent(&path)?;
        if let Err(error) = parent.symlink(&name, target) {
            let is_there = flattens && error.kind() == io::ErrorKind::AlreadyExists;
            if !(is_there && link_in(parent, &name)?.is_some_and(|there| there == target)) {
                return Err(self.not_made(&path, error));
            }
        }
        let depth = within.components().count();
        let prefix = path.ancestors().nth(depth).unwrap_or(Path::new(""));
        self.made.links.push((prefix.to_owned(), path.clone()));
        self.note(path);
        Ok(())
    }

    fn hard_link(&mut self, path: &Path, to: &Path) -> Result<(), Error> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let from = to.file_name().unwrap_or_default();
        let above = to.parent().unwrap_or(Path::new(""));
        let other = self.root.find_below(above)?;
        let first = match &other {
            Some(other) => self.parent(path)?.hard_link(&name, other, from),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let linked = match (first, self.again, &other) {
            (Err(error), Some(again), Some(other))
                if error.kind() == io::ErrorKind::AlreadyExists =>
            {
                let hidden = self.again_name();
                let linked = again.hard_link(&hidden, other, from);
                self.made.again.push((hidden, path.to_owned()));
                linked
            }
            (first, ..) => first,
        };
        if linked.is_ok() {
            self.note(path.to_owned());
        }
        linked.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let text = format!("a hard link to {}, which is no file before it", to.display());
                let reason = Reason::from(text).in_member(path.display());
                Error::rejected(ids::UNSAFE_MEMBER, self.archive, reason)
            }
            _ => self.not_made(path, error),
        })
    }

    /// Writes a file of the artifact itself.
    fn own_file(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let mut content = bytes;
        let size = (bytes.len() as u64, 0o644);
        self.file(name.into(), size, &mut content, self.time)
    }
}

impl Visitor for Extractor<'_> {
    fn prefixes(&mut self, text: &str, prefixes: &[String], time: u64) -> Result<(), Error> {
        self.time = at(time);
        if self.again.is_some() {
            return Ok(());
        }
        self.own_file(manifest_txt::FILE_NAME, text.as_bytes())?;
        if let Some(databases) = &self.entry.databases {
            self.own_file(names::MARK, &mark::naming(databases.clone()))?;
        }
        for prefix in prefixes {
            self.directory(Path::new(prefix))?;
        }
        Ok(())
    }

    fn member(&mut self, member: Member<'_>) -> Result<(), Error> {
        let within = member.installed.clone().unwrap_or_default();
        let Some(path) = self.place(member.path, member.installed) else {
            return Ok(());
        };
        self.progress.file(&path);
        match member.node {
            Node::File(size, mode, content) => {
                self.file(path, (size, mode), content, at(member.time))
            }
            Node::Directory => {
                self.directory(&path)?;
                self.made.times.insert(path, Some(at(member.time)));
                Ok(())
            }
            Node::Symlink(target) => self.symlink(path, &within, &target),
            Node::HardLink(to, installed) => match self.place(to, Some(installed)) {
                Some(to) => self.hard_link(&path, &to),
                None => Ok(()),
            },
        }
    }
}

/// A time in seconds since 1970, as far as the system can tell it.
fn at(seconds: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

impl Made {
    /// Adds what another artifact of the same tree made; what is known stays.
    pub(super) fn add(&mut self, other: Self) {
        for (path, time) in other.times {
            let known = self.times.entry(path).or_default();
            *known = known.or(time);
        }
        self.links.extend(other.links);
        self.again.extend(other.again);
        self.host.extend(other.host);
    }

    /// Sets the times of directories below `root`.
    pub(super) fn set_times(&self, root: &Directory, default: SystemTime) -> Result<(), Error> {
        // Nothing is made in them any more, so any order will do.
        for (path, time) in &self.times {
            let set = root.below(path)?.set_modified(time.unwrap_or(default));
            set.map_err(|e| Error::io(&root.path().join(path), "set the time of", e))?;
        }
        Ok(())
    }

    /// A symbolic link that leads out of its prefix below `root`, by way of others.
    pub(super) fn link_out(&self, root: &Directory) -> Result<Option<&Path>, Error> {
        let mut known: BTreeSet<&Path> = BTreeSet::new();
        let mut prefix: Option<(&Path, Directory)> = None;
        for (above, link) in &self.links {
            if !known.insert(link) {
                continue;
            }
            if prefix.as_ref().is_none_or(|(path, _)| path != above) {
                prefix = Some((above, root.below(above)?));
            }
            let within = link.strip_prefix(above).unwrap_or(link);
            if let Some((_, prefix)) = &prefix
                && prefix.leads_out(within)?
            {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }
}

/// The target of the symbolic link of that name in `directory`; `None` if there is none.
pub(super) fn link_in(directory: &Directory, name: &OsStr) -> Result<Option<PathBuf>, Error> {
    match directory.read_link(name) {
        Ok(target) => Ok(Some(target)),
        Err(error) => match error.kind() {
            // Nothing is there, or no link.
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => Ok(None),
            _ => Err(Error::io(&directory.path().join(name), "read", error)),
        },
    }
}

/// The file of that name in `directory`, opened.
pub(super) fn open_in(directory: &Directory, name: &OsStr) -> Result<File, Error> {
    let path = directory.path().join(name);
    let missing = || Error::io(&path, "open", io::ErrorKind::NotFound.into());
    directory.open_file(name)?.ok_or_else(missing)
}
