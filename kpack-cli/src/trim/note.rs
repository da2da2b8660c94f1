//! `.kpack-trimmed`: what went from the files in a directory, and which packages bring it back, so that others can say why
//! there is no code for a GPU; and while a run changes files, which ones, so that the next run can finish the work of a
//! killed one.
//!
//! The note records facts and no commands: which index a package comes from, and which program installs into an
//! environment, depends on the machine where somebody asks, and may be secret. [`super::history`] reads notes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kpack_core::files::with_slashes;
use kpack_core::platform::file_id;
use kpack_core::publish::{Directory, StagedFile};
use kpack_core::{Error, ids, interrupt};
use kpack_format::TargetId;
use kpack_format::digest::{blake3, hex};
use kpack_wheel::within;
use serde::{Deserialize, Serialize};

use super::held::Held;
use super::tree::Given;
use crate::doctor::{Origin, Origins};

/// The name of the note.
pub(super) const NAME: &str = ".kpack-trimmed";

/// The largest note, in bytes.
const MAX_NOTE: u64 = 256 << 20;

/// The most that the end of a run adds to a note for each file that it changed, in bytes: [`Left::File`].
const MOST_LEFT: u64 = 256;

/// The version of the format.
const FORMAT: u32 = 2;

/// As many bytes at the start of a file tell one build of it from another: a linked file has its build ID and its symbol
/// table there, a bundle and an archive their tables.
const START: u64 = 64 << 10;

/// What went. It has no times: trimming a tree twice gives the same bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    format: u32,
    /// What format 1 says of all files: the GPUs whose code stayed.
    #[serde(default, skip_serializing)]
    kept: Vec<String>,
    /// The packages that files belong to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    packages: Vec<Origin>,
    /// What went from each file, whose path is relative to the note.
    #[serde(default)]
    pub(super) files: BTreeMap<String, Went>,
    /// The names of each file that a run is changing. A complete run leaves none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unfinished: BTreeSet<Vec<String>>,
    /// What format 1 has instead of `files`: the files by target.
    #[serde(default, skip_serializing)]
    removed: BTreeMap<String, BTreeSet<String>>,
}

/// What went from a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Went {
    /// The targets whose code went.
    pub(super) removed: BTreeSet<String>,
    /// The GPUs whose code stayed, in the last run that changed it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) kept: Vec<String>,
    /// The index of its package; `None` if it belongs to none that kpack knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    package: Option<usize>,
    /// What was left of it; `None` if a run was killed before it could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<Left>,
}

/// The file system of a file, and its number there.
type FileId = (u64, u64);

/// What a run left of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Left {
    /// Nothing.
    Nothing,
    /// Something that is no file, such as a link.
    Other,
    /// A file like this.
    File {
        /// Its size in bytes.
        size: u64,
        /// The BLAKE3 digest of its first [`START`] bytes.
        start: String,
    },
}

impl Left {
    /// What is left of the file `name` in `directory`.
    fn of(directory: &Directory, name: &str) -> Result<Self, Error> {
        Ok(Self::and_id(directory, name)?.0)
    }

    /// The same, with what tells the file from another one in its place.
    fn and_id(directory: &Directory, name: &str) -> Result<(Self, Option<FileId>), Error> {
        let path = Path::new(name);
        let (Some(parent), Some(file)) = (parent_of(directory, path)?, path.file_name()) else {
            return Ok((Self::Nothing, None));
        };
        let Some((file, metadata)) = parent.open_with_metadata(file)? else {
            let is_there = parent.has(file)?;
            return Ok((if is_there { Self::Other } else { Self::Nothing }, None));
        };
        let failed = |error| Error::io(&directory.path().join(name), "read", error);
        let id = file_id(&file).map_err(failed)?;
        let mut start = Vec::new();
        file.take(START).read_to_end(&mut start).map_err(failed)?;
        let start = hex(&blake3(&start));
        Ok((Self::File { size: metadata.len(), start }, Some(id)))
    }
}

/// The directory of `path`, which is relative to `directory`; `None` if there is none.
fn parent_of(directory: &Directory, path: &Path) -> Result<Option<Directory>, Error> {
    directory.find_below(path.parent().unwrap_or(Path::new("")))
}

/// What tells the file from another one in its place, without reading it; `None` if there is none.
fn id_of(directory: &Directory, name: &str) -> Result<Option<FileId>, Error> {
    let path = Path::new(name);
    let (Some(parent), Some(file)) = (parent_of(directory, path)?, path.file_name()) else {
        return Ok(None);
    };
    let Some(file) = parent.open_file(file)? else { return Ok(None) };
    file_id(&file).map(Some).map_err(|e| Error::io(&directory.path().join(name), "read", e))
}

/// What was found of a file; `None` if this user may not look, or it went meanwhile, which says nothing about the note.
fn if_allowed<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(Error::Io { source, .. })
            if [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&source.kind()) =>
        {
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// What goes from a file.
#[derive(Debug, Clone)]
pub(super) struct Goes<'a> {
    /// All of its names.
    pub(super) names: &'a [PathBuf],
    pub(super) targets: BTreeSet<TargetId>,
    /// Whether the file itself stays.
    pub(super) stays: bool,
}

impl Note {
    /// The note in `directory`, and when it was written; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if it is no note that this version reads.
    pub(super) fn read(directory: &Directory) -> Result<Option<(Self, SystemTime)>, Error> {
        let path = directory.path().join(NAME);
        let failed = |error| Error::io(&path, "read", error);
        let Some((file, metadata)) = directory.open_with_metadata(NAME.as_ref())? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(MAX_NOTE + 1).read_to_end(&mut bytes).map_err(failed)?;
        let note = Self::parse(&bytes)
            .map_err(|text| Error::rejected(ids::OUTPUT_IN_THE_WAY, &path, text))?;
        Ok(Some((note, metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH))))
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        const MOVE: &str = "move it away";
        if bytes.len() as u64 > MAX_NOTE {
            return Err(format!("more than {MAX_NOTE} bytes, which kpack does not write; {MOVE}"));
        }
        let foreign = |error| format!("not a note of `kpack trim`: {error}; {MOVE}");
        let object: serde_json::Map<_, _> = serde_json::from_slice(bytes).map_err(foreign)?;
        let Format { format } = serde_json::from_value(object.into()).map_err(foreign)?;
        if format == 0 || format > FORMAT {
            return Err(format!(
                "a note of `kpack trim` in format {format} (expected {FORMAT} or less); use a newer kpack, or {MOVE}"
            ));
        }
        let mut note: Self = serde_json::from_slice(bytes).map_err(foreign)?;
        let kept = std::mem::take(&mut note.kept);
        for (target, files) in std::mem::take(&mut note.removed) {
            for file in files {
                note.files.entry(file).or_default().removed.insert(target.clone());
            }
        }
        // It may come with files of others, and is printed.
        let is_package = |own: &Origin| is_name(&own.name) && is_printed_as_it_is(&own.version);
        let foreign = note.packages.iter().filter(|own| !is_package(own)).map(|own| &own.name);
        let is_target = |text: &&String| text.parse::<TargetId>().is_ok();
        let files = note.files.values();
        let targets = files.flat_map(|went| went.removed.iter().chain(&went.kept)).chain(&kept);
        let mut foreign = foreign.chain(targets.filter(|text| !is_target(text)));
        if let Some(text) = foreign.next() {
            return Err(format!(
                "not a note of `kpack trim`: `{text}` is neither a target nor a package; {MOVE}"
            ));
        }
        note.format = FORMAT;
        Ok(note)
    }

    /// The package that a file belongs to.
    pub(super) fn package(&self, went: &Went) -> Option<&Origin> {
        self.packages.get(went.package?)
    }

    /// Whether the file `name` is as trim left it, so that the note explains what it lacks. Where a run was killed before it
    /// could tell what it left, there is no proof.
    pub(super) fn explains(
        &self,
        directory: &Directory,
        name: &str,
        went: &Went,
    ) -> Result<bool, Error> {
        Ok(went.left.is_some() && self.holds(directory, name, went)?)
    }

    /// Whether the file `name` is as trim left it. If nothing tells, it is.
    fn holds(&self, directory: &Directory, name: &str, went: &Went) -> Result<bool, Error> {
        Ok(match &went.left {
            None => true,
            Some(left) => *left == Left::of(directory, name)?,
        })
    }

    /// The files that runs changed or removed in `directory`, which the note is in.
    pub(super) fn paths<'n>(&'n self, directory: &'n Path) -> impl Iterator<Item = PathBuf> + 'n {
        self.files.keys().filter_map(|name| within(directory, directory, name.as_ref()))
    }

    /// Whether trim removed the file as a whole.
    pub(super) fn is_gone(went: &Went) -> bool {
        went.left == Some(Left::Nothing)
    }

    /// Removes what it says of files that were installed again since. Returns why some could not be read.
    ///
    /// # Errors
    /// [`Error::Io`] if the run was interrupted.
    fn forget(&mut self, directory: &Directory) -> Result<Vec<Error>, Error> {
        let mut outdated = BTreeSet::new();
        let mut errors = Vec::new();
        for (name, went) in &self.files {
            interrupt::check(directory.path(), "read")?;
            match if_allowed(self.holds(directory, name, went)) {
                Ok(Some(false)) => _ = outdated.insert(name.clone()),
                Ok(_) => {}
                // The entry stays: nobody knows whether the file is another one now.
                Err(error) => errors.push(error),
            }
        }
        self.files.retain(|name, _| !outdated.contains(name));
        self.tidy();
        Ok(errors)
    }

    /// Removes packages that no file belongs to, and sorts the others.
    fn tidy(&mut self) {
        let used = BTreeSet::from_iter(self.files.values().filter_map(|went| self.package(went)));
        let sorted = Vec::from_iter(used.into_iter().cloned());
        let old = std::mem::replace(&mut self.packages, sorted);
        for went in self.files.values_mut() {
            let package = went.package.and_then(|index| old.get(index));
            went.package = package.and_then(|package| self.packages.binary_search(package).ok());
        }
    }
}

/// Whether a text is the name of a package, as all package managers have them: also with an architecture.
fn is_name(text: &str) -> bool {
    let may_have = |c: char| c.is_ascii_alphanumeric() || ".+-_:".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && text.chars().all(may_have)
}

/// Whether a terminal shows a text as it is.
fn is_printed_as_it_is(text: &str) -> bool {
    kpack_core::escaped(text).to_string() == text
}

/// The note in one directory, which a run keeps open.
#[derive(Debug)]
pub(super) struct OpenNote {
    directory: Arc<Directory>,
    /// What the file says; `None` if there is no file.
    written: Option<Note>,
    note: Note,
    /// The files that this run may change, and what the note said of them before.
    begun: BTreeMap<String, (Option<FileId>, Option<Went>)>,
    /// Why files that it names could not be read.
    pub(super) unread: Vec<Error>,
}

impl OpenNote {
    /// Opens those in the directories of what is given, as [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn all(held: &Held, given: &[Given], changes: bool) -> Result<Vec<Self>, Error> {
        let directories = BTreeSet::from_iter(given.iter().map(Given::directory));
        let notes = directories.into_iter().map(|path| Self::open(held.directory(path)?, changes));
        notes.collect()
    }

    /// Whether this is the note of what is given.
    pub(super) fn is_of(&self, given: &Given) -> bool {
        self.directory.path() == given.directory()
    }

    /// Reads the note in `directory`. If the run `changes` files, removes what an interrupted one left of it, and what it says of
    /// files that were installed again.
    ///
    /// # Errors
    /// [`Error::Refused`] if something other than a note has its name; [`Error::Io`].
    fn open(directory: Arc<Directory>, changes: bool) -> Result<Self, Error> {
        let path = directory.path().join(NAME);
        let written = Note::read(&directory)?.map(|(note, _)| note);
        if written.is_none() && directory.has(NAME.as_ref())? {
            let text = "not a regular file, but kpack writes what it trims here; remove it";
            return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &path, text));
        }
        let mut note = written.clone().unwrap_or_default();
        note.format = FORMAT;
        let mut unread = Vec::new();
        if changes {
            directory.remove_leftovers(&|stem| stem == NAME)?;
            unread = note.forget(&directory)?;
        }
        Ok(Self { directory, written, note, begun: BTreeMap::new(), unread })
    }

    /// Adds what goes from files in the directory; `kept` are the GPUs whose code stays.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn add(
        &mut self,
        kept: &[String],
        goes: &[Goes<'_>],
        origins: &Origins,
    ) -> Result<(), Error> {
        let names_in = |goes: &Goes<'_>| {
            let inside = |path: &PathBuf| {
                // JSON has no other names, and one that is nearly the same may be that of another file.
                let inside = path.strip_prefix(self.directory.path()).ok()?;
                inside.to_str()?;
                Some((with_slashes(inside), origins.of(path).cloned()))
            };
            Vec::from_iter(goes.names.iter().filter_map(inside))
        };
        let goes = goes.iter().map(|goes| (goes, names_in(goes)));
        let goes = Vec::from_iter(goes.filter(|(_, names)| !names.is_empty()));
        if goes.is_empty() {
            return Ok(());
        }
        let mut note = self.note.clone();
        for (goes, names) in goes {
            for (name, origin) in &names {
                let package = origin.as_ref().map(|origin| {
                    let known = note.packages.iter().position(|known| known == origin);
                    known.unwrap_or_else(|| {
                        note.packages.push(origin.clone());
                        note.packages.len() - 1
                    })
                });
                let is_begun = self.begun.contains_key(name);
                if goes.stays && !is_begun {
                    let id = if_allowed(id_of(&self.directory, name))?.flatten();
                    self.begun.insert(name.clone(), (id, note.files.get(name).cloned()));
                }
                let went = note.files.entry(name.clone()).or_default();
                if went.left.is_none() && !is_begun {
                    // A killed run said so before it changed the file, which may be another one since.
                    went.removed.clear();
                }
                went.removed.extend(goes.targets.iter().map(ToString::to_string));
                went.kept = kept.to_owned();
                went.package = package;
                went.left = (!goes.stays).then_some(Left::Nothing);
            }
            if goes.stays {
                note.unfinished.insert(names.into_iter().map(|(name, _)| name).collect());
            }
        }
        note.tidy();
        // Once files have changed, there is no way back, so the note has to fit as the end of the run leaves it.
        let unfinished = note.unfinished.iter().flatten().count() as u64;
        self.write(note, unfinished * MOST_LEFT)
    }

    /// The names of each file in the directory that an earlier run may have changed before it was killed.
    pub(super) fn unfinished(&self) -> Vec<Vec<PathBuf>> {
        let files = self.note.unfinished.iter();
        let below = |names: &Vec<String>| {
            names.iter().map(|name| self.directory.path().join(name)).collect()
        };
        files.map(below).collect()
    }

    /// Notes that a run is complete, and what it left of the files that it changed.
    ///
    /// # Errors
    /// [`Error::Io`]. If a file cannot be read, the note is complete but for what was left of that one.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        let mut note = self.note.clone();
        let mut unread = None;
        for name in std::mem::take(&mut note.unfinished).into_iter().flatten() {
            interrupt::check(self.directory.path(), "read")?;
            let (left, id) = match if_allowed(Left::and_id(&self.directory, &name)) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    unread.get_or_insert(error);
                    continue;
                }
            };
            let begun = self.begun.get(&name).filter(|(before, _)| id.is_some() && *before == id);
            match (begun, note.files.get_mut(&name)) {
                (None, Some(went)) => went.left = Some(left),
                // It was rejected, and stays as it was.
                (Some((_, Some(before))), Some(went)) => {
                    went.removed.clone_from(&before.removed);
                    went.kept.clone_from(&before.kept);
                    went.left.clone_from(&before.left);
                }
                (Some((_, None)), Some(_)) => _ = note.files.remove(&name),
                (_, None) => {}
            }
        }
        note.tidy();
        if self.written.is_some() || !note.files.is_empty() {
            self.write(note, 0)?;
        }
        unread.map_or(Ok(()), Err)
    }

    /// Writes the note, unless the file says the same. It must be so small that it can grow by `more` bytes.
    fn write(&mut self, note: Note, more: u64) -> Result<(), Error> {
        if self.written.as_ref() == Some(&note) {
            self.note = note;
            return Ok(());
        }
        let path = self.directory.path().join(NAME);
        let failed = |error| Error::io(&path, "write", error);
        let text = serde_json::to_string_pretty(&note).map_err(|e| failed(e.into()))?;
        check_size(&path, text.len() as u64 + 1 + more)?;
        let directory = Arc::clone(&self.directory);
        let (staged, ()) = StagedFile::write_in(directory, NAME.as_ref(), |staged| {
            staged.file().write_all(format!("{text}\n").as_bytes()).map_err(failed)
        })?;
        staged.commit()?;
        self.written = Some(note.clone());
        self.note = note;
        Ok(())
    }
}

/// Fails if a note of this size could not be read again.
fn check_size(path: &Path, size: u64) -> Result<(), Error> {
    if size <= MAX_NOTE {
        return Ok(());
    }
    let text = format!(
        "the note about what goes would have up to {size} bytes (expected {MAX_NOTE} or less), so these files stay as they are; trim the directories in it one by one"
    );
    Err(Error::rejected(ids::SIZE_LIMIT, path, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_could_not_be_read_again_is_not_written() {
        let path = Path::new("/opt/.kpack-trimmed");
        assert!(check_size(path, MAX_NOTE).is_ok());
        let error = check_size(path, MAX_NOTE + 1).unwrap_err();
        assert_eq!(error.id(), ids::SIZE_LIMIT);
        assert!(error.to_string().contains("expected 268435456 or less"), "{error}");
    }

    #[test]
    fn what_is_left_of_a_file_fits_into_what_is_kept_free_for_it() {
        let left = Some(Left::File { size: u64::MAX, start: "f".repeat(64) });
        let note = |left| {
            let went = Went { left, ..Went::default() };
            let files = BTreeMap::from([("a".to_owned(), went)]);
            let note = Note { files, ..Note::default() };
            serde_json::to_string_pretty(&note).unwrap().len() as u64
        };
        assert!(note(left) - note(None) <= MOST_LEFT);
    }
}
