//! Writes the note about what goes from the files in a directory, which [`kpack_doctor::internal::note`] describes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::files::with_slashes;
use kpack_core::publish::{Directory, StagedFile};
use kpack_core::{Error, ids, interrupt};
use kpack_doctor::internal::Packages;
use kpack_doctor::internal::note::{FileId, Left, MAX_NOTE, NAME, Note, Went, id_of, if_allowed};
use kpack_format::TargetId;

use super::held::Held;
use super::tree::Given;

/// The most that the end of a run adds to a note for each file that it changed, in bytes: [`Left::File`].
const MOST_LEFT: u64 = 256;

/// What goes from a file.
#[derive(Debug, Clone)]
pub(super) struct Goes<'a> {
    /// All of its names.
    pub(super) names: &'a [PathBuf],
    pub(super) targets: BTreeSet<TargetId>,
    /// Whether the file itself stays.
    pub(super) stays: bool,
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
        packages: &Packages,
    ) -> Result<(), Error> {
        let names_in = |goes: &Goes<'_>| {
            let inside = |path: &PathBuf| {
                // JSON has no other names, and one that is nearly the same may be that of another file.
                let inside = path.strip_prefix(self.directory.path()).ok()?;
                inside.to_str()?;
                Some((with_slashes(inside), packages.origin(path).cloned()))
            };
            Vec::from_iter(goes.names.iter().filter_map(inside))
        };
        let goes = Vec::from_iter(
            goes.iter().map(|goes| (goes, names_in(goes))).filter(|(_, names)| !names.is_empty()),
        );
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
            let mut note = Note::default();
            note.files.insert("a".to_owned(), went);
            serde_json::to_string_pretty(&note).unwrap().len() as u64
        };
        assert!(note(left) - note(None) <= MOST_LEFT);
    }
}
