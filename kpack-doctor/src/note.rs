//! `.kpack-trimmed`: what went from the files in a directory, and which packages bring it back, so that others can say why
//! there is no code for a GPU; and while a run of `kpack trim` changes files, which ones, so that the next run can finish the
//! work of a killed one. `kpack trim` writes it; here it is read.
//!
//! The note records facts and no commands: which index a package comes from, and which program installs into an
//! environment, depends on the machine where somebody asks, and may be secret.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kpack_core::platform::file_id;
use kpack_core::publish::Directory;
use kpack_core::{Error, ids, interrupt};
use kpack_format::TargetId;
use kpack_format::digest::{blake3, hex};
use kpack_wheel::within;
use serde::{Deserialize, Serialize};

use crate::packages::Origin;

/// The name of the note.
pub const NAME: &str = ".kpack-trimmed";

/// The largest note, in bytes.
pub const MAX_NOTE: u64 = 256 << 20;

/// The version of the format.
const FORMAT: u32 = 2;

/// As many bytes at the start of a file tell one build of it from another: a linked file has its build ID and its symbol
/// table there, a bundle and an archive their tables.
const START: u64 = 64 << 10;

/// What went. It has no times: trimming a tree twice gives the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    format: u32,
    /// What format 1 says of all files: the GPUs whose code stayed.
    #[serde(default, skip_serializing)]
    kept: Vec<String>,
    /// The packages that files belong to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<Origin>,
    /// What went from each file, whose path is relative to the note.
    #[serde(default)]
    pub files: BTreeMap<String, Went>,
    /// The names of each file that a run is changing. A complete run leaves none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unfinished: BTreeSet<Vec<String>>,
    /// What format 1 has instead of `files`: the files by target.
    #[serde(default, skip_serializing)]
    removed: BTreeMap<String, BTreeSet<String>>,
}

/// What went from a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Went {
    /// The targets whose code went.
    pub removed: BTreeSet<String>,
    /// The GPUs whose code stayed, in the last run that changed it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// The index of its package; `None` if it belongs to none that kpack knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<usize>,
    /// What was left of it; `None` if a run was killed before it could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
}

/// The file system of a file, and its number there.
pub type FileId = (u64, u64);

/// What a run left of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Something that is no file, such as a link.
    Other,
    /// A file like this.
    File {
        /// Its size in bytes.
        size: u64,
        /// The BLAKE3 digest of its first 64 KiB.
        start: String,
    },
}

impl Left {
    /// What is left of the file `name` in `directory`.
    fn of(directory: &Directory, name: &str) -> Result<Self, Error> {
        Ok(Self::and_id(directory, name)?.0)
    }

    /// What is left of the file `name` in `directory`, and what tells it from another one in its place.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn and_id(directory: &Directory, name: &str) -> Result<(Self, Option<FileId>), Error> {
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
        let mut bytes = Vec::new();
        file.take(START).read_to_end(&mut bytes).map_err(failed)?;
        let start = hex(&blake3(&bytes));
        Ok((Self::File { size: metadata.len(), start }, Some(id)))
    }
}

/// The directory of `path`, which is relative to `directory`; `None` if there is none.
fn parent_of(directory: &Directory, path: &Path) -> Result<Option<Directory>, Error> {
    directory.find_below(path.parent().unwrap_or(Path::new("")))
}

/// What tells the file `name` in `directory` from another one in its place, without reading it; `None` if there is none.
///
/// # Errors
/// [`Error::Io`].
pub fn id_of(directory: &Directory, name: &str) -> Result<Option<FileId>, Error> {
    let path = Path::new(name);
    let (Some(parent), Some(file)) = (parent_of(directory, path)?, path.file_name()) else {
        return Ok(None);
    };
    let Some(file) = parent.open_file(file)? else { return Ok(None) };
    file_id(&file).map(Some).map_err(|e| Error::io(&directory.path().join(name), "read", e))
}

/// What was found of a file; `None` if this user may not look, or it went meanwhile, which says nothing about the note.
///
/// # Errors
/// All others.
pub fn if_allowed<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(Error::Io { source, .. })
            if [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&source.kind()) =>
        {
            Ok(None)
        }
        found => found.map(Some),
    }
}

impl Default for Note {
    fn default() -> Self {
        Self {
            format: FORMAT,
            kept: Vec::new(),
            packages: Vec::new(),
            files: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            removed: BTreeMap::new(),
        }
    }
}

impl Note {
    /// The note in `directory`, and when it was written; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if it is no note that this version reads.
    pub fn read(directory: &Directory) -> Result<Option<(Self, SystemTime)>, Error> {
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
        let packages = note.packages.iter().filter(|own| !is_package(own)).map(|own| &own.name);
        let is_target = |text: &&String| text.parse::<TargetId>().is_ok();
        let files = note.files.values();
        let targets = files.flat_map(|went| went.removed.iter().chain(&went.kept)).chain(&kept);
        let mut foreign = packages.chain(targets.filter(|text| !is_target(text)));
        if let Some(text) = foreign.next() {
            return Err(format!(
                "not a note of `kpack trim`: `{text}` is neither a target nor a package; {MOVE}"
            ));
        }
        note.format = FORMAT;
        Ok(note)
    }

    /// The package that a file belongs to.
    pub fn package(&self, went: &Went) -> Option<&Origin> {
        self.packages.get(went.package?)
    }

    /// Whether the file `name` is as trim left it, so that the note explains what it lacks. Where a run was killed before it
    /// could tell what it left, there is no proof.
    pub fn explains(&self, directory: &Directory, name: &str, went: &Went) -> Result<bool, Error> {
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
    pub fn paths<'n>(&'n self, directory: &'n Path) -> impl Iterator<Item = PathBuf> + 'n {
        self.files.keys().filter_map(|name| within(directory, directory, name.as_ref()))
    }

    /// Whether trim removed the file as a whole.
    pub fn is_gone(went: &Went) -> bool {
        went.left == Some(Left::Nothing)
    }

    /// Removes what it says of files that were installed again since. Returns why some could not be read.
    ///
    /// # Errors
    /// [`Error::Io`] if the run was interrupted.
    pub fn forget(&mut self, directory: &Directory) -> Result<Vec<Error>, Error> {
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
    pub fn tidy(&mut self) {
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
