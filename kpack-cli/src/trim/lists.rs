//! The lists of installed files with their digests: Python's `RECORD`, and conda's `conda-meta`.
//!
//! A list may be above what is trimmed, so kpack looks for lists around each file that changed or went. It opens them, and
//! the files that they name, from the root downwards without following links, so that nobody can lead it elsewhere by
//! swapping a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::finding::Finding;
use kpack_core::publish::Directory;
use kpack_core::{Error, Severity, ids, parallel};
use kpack_doctor::internal::Root;
use kpack_doctor::internal::note::Note;
use kpack_format::digest::hex;
use kpack_split::input::until_unchanged;
use kpack_wheel::{Digest, Listed, digest_of, package_directories, update_record, within};
use serde_json::Value;

use super::held::{Spot, nearest};

/// The largest list, in bytes.
const MAX_LIST: u64 = 256 << 20;

/// What became of a file that lists may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// This run or an earlier one removed it.
    Gone,
    /// This run or an earlier one changed it, so its digest decides whether a list is true.
    Changed,
    /// It has code for the chosen GPUs only, and no note says since when. A list that has a larger size is from before.
    Complete,
}

/// What is to be said of the lists.
#[derive(Debug, Default)]
pub(super) struct Corrected {
    pub(super) findings: Vec<Finding>,
    /// Why lists could not be found, read or written. The others are true.
    pub(super) errors: Vec<Error>,
}

/// A list of installed files.
struct FileList {
    directory: PathBuf,
    name: OsString,
    /// What names in it are relative to.
    base: PathBuf,
    /// The environment, outside which it may name nothing.
    prefix: PathBuf,
    is_conda: bool,
}

/// Says what a list should say of a file, by its name and the size that the list has, and whether it is a link.
type Lister<'a> = dyn FnMut(&str, Option<u64>, bool) -> Result<Listed, Error> + 'a;

/// Corrects the lists that name any of these files. Their paths have no symbolic links.
pub(super) fn correct(places: Places<'_>, files: &BTreeMap<PathBuf, Fate>) -> Corrected {
    let mut lists = Lists {
        places,
        files,
        names: files.keys().filter_map(|path| path.file_name()).collect(),
        parents: BTreeMap::new(),
        digests: BTreeMap::new(),
        corrected: Corrected::default(),
    };
    let mut due = Vec::new();
    let mut listed = BTreeSet::new();
    for list in lists.find() {
        let named = lists.named(&list);
        if let Some(named) = lists.or_say(named).filter(|named| !named.is_empty()) {
            due.push(list);
            listed.extend(named);
        }
    }
    lists.hash(listed);
    for list in due {
        let updated = until_unchanged(|| lists.update(&list));
        let findings = lists.or_say(updated).unwrap_or_default();
        lists.corrected.findings.extend(findings);
    }
    lists.corrected
}

/// Where lists and the files that they name are opened. No link is followed.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) root: &'a Root,
    /// The directories of what is given. What is above them is found from the root.
    pub(super) given: &'a [Arc<Directory>],
}

impl Places<'_> {
    /// Opens a directory; `None` if there is none.
    fn open(self, path: &Path) -> Result<Option<Directory>, Error> {
        if let Some((directory, inside)) = nearest(self.given, path) {
            return directory.find_below(inside);
        }
        let Some(inside) = self.root.inside(path) else {
            return Ok(None);
        };
        match self.root.image() {
            Some(image) => image.find_below(inside),
            None => {
                let top = path.ancestors().last().unwrap_or(path);
                Directory::open(top)?.find_below(path.strip_prefix(top).unwrap_or(path))
            }
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Changed`] if it is no longer there; [`Error::Io`].
    fn open_file(self, path: &Path) -> Result<File, Error> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::changed(path));
        };
        let directory = self.open(parent)?.ok_or_else(|| Error::changed(path))?;
        directory.open_file(name)?.ok_or_else(|| Error::changed(path))
    }

    /// The files that earlier runs changed or removed, by the note in a directory.
    pub(super) fn noted(self, directory: &Path) -> Result<Vec<PathBuf>, Error> {
        let note = match self
            .open(directory)
            .and_then(|opened| opened.as_ref().map(Note::read).transpose())
        {
            Ok(note) => note.flatten(),
            Err(error) if is_closed(&error) => None,
            // It is somebody else's.
            Err(Error::Refused { .. }) => None,
            Err(error) => return Err(error),
        };
        let paths = note.iter().flat_map(|(note, _)| note.paths(directory));
        Ok(paths.collect())
    }

    /// The names in a directory; `None` if there is none.
    fn names(self, path: &Path) -> Result<Option<Vec<OsString>>, Error> {
        self.open(path)?.as_ref().map(Directory::names).transpose()
    }
}

/// Whether a directory cannot be read by this user. Directories such as `/home` often cannot, and nobody installs there.
fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied)
}

struct Lists<'a> {
    places: Places<'a>,
    files: &'a BTreeMap<PathBuf, Fate>,
    /// The names of these files.
    names: BTreeSet<&'a OsStr>,
    /// Directories that lists name, without links.
    parents: BTreeMap<PathBuf, Option<PathBuf>>,
    digests: BTreeMap<PathBuf, Digest>,
    corrected: Corrected,
}

impl Lists<'_> {
    /// Notes an error. The other lists are corrected nevertheless.
    fn or_say<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(Error::Refused { id, path, reason, .. }) => {
                let text = format!("not corrected: {reason}");
                self.corrected.findings.push(Finding::new(Severity::Warning, id, path, text));
            }
            Err(error) => self.corrected.errors.push(error),
        }
        None
    }

    /// The lists around the files.
    fn find(&mut self) -> Vec<FileList> {
        let mut above = BTreeMap::new();
        for (path, fate) in self.files {
            for directory in path.ancestors().skip(1) {
                if self.places.root.inside(directory).is_none() {
                    break;
                }
                // It may have gone with the last file in it.
                let is_there = above.entry(directory).or_insert(false);
                if *is_there {
                    break;
                }
                *is_there = *fate != Fate::Gone;
            }
        }
        let mut found = BTreeMap::new();
        // The list of an environment comes first as that, and then as one in a directory of packages.
        for (directory, is_there) in above {
            let lists = self.find_in(directory, is_there);
            for list in self.or_say(lists).unwrap_or_default() {
                found.entry(list.directory.join(&list.name)).or_insert(list);
            }
        }
        found.into_values().collect()
    }

    /// The lists of the environment that `prefix` is, if it is one.
    fn find_in(&mut self, prefix: &Path, is_there: bool) -> Result<Vec<FileList>, Error> {
        let mut is_listed = true;
        let names = match self.places.names(prefix) {
            Ok(Some(names)) => names,
            Ok(None) if is_there => return Err(Error::changed(prefix)),
            Ok(None) => return Ok(Vec::new()),
            // It may still be conda's.
            Err(error) if is_closed(&error) => {
                is_listed = false;
                vec!["conda-meta".into()]
            }
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        let mut names_in = |path: &Path| {
            let names = self.places.names(path);
            self.or_say(names).flatten().unwrap_or_default()
        };
        if names.iter().any(|name| name == "conda-meta") {
            let directory = prefix.join("conda-meta");
            let names = names_in(&directory)
                .into_iter()
                .filter(|name| Path::new(name).extension() == Some("json".as_ref()));
            found.extend(names.map(|name| FileList {
                directory: directory.clone(),
                name,
                base: prefix.to_owned(),
                prefix: prefix.to_owned(),
                is_conda: true,
            }));
        }
        let mut packages = package_directories(prefix, &mut names_in);
        if is_listed {
            packages.push(prefix.to_owned());
        }
        for packages in packages {
            let names = names_in(&packages)
                .into_iter()
                .map(PathBuf::from)
                .filter(|name| name.extension() == Some("dist-info".as_ref()));
            found.extend(names.map(|name| FileList {
                directory: packages.join(name),
                name: "RECORD".into(),
                base: packages.clone(),
                prefix: prefix.to_owned(),
                is_conda: false,
            }));
        }
        Ok(found)
    }

    /// The file that `name` means in a list. The inner `None` is another file.
    fn file(&mut self, list: &FileList, name: &str) -> Option<Option<(PathBuf, Fate)>> {
        let path = within(&list.prefix, &list.base, Path::new(name))?;
        if let Some(fate) = self.files.get(&path) {
            return Some(Some((path, *fate)));
        }
        let (parent, name) = path.parent().zip(path.file_name())?;
        if !self.names.contains(name) {
            return Some(None);
        }
        // A directory in its path may be a link.
        let root = self.places.root;
        let find = || root.resolve(root.inside(parent)?).ok();
        let real = self
            .parents
            .entry(parent.to_owned())
            .or_insert_with(find)
            .as_ref()
            .filter(|real| real.starts_with(&list.prefix));
        Some(real.map(|real| real.join(name)).and_then(|path| {
            let fate = *self.files.get(&path)?;
            Some((path, fate))
        }))
    }

    /// The file that a link leads to.
    fn linked(&self, list: &FileList, name: &str) -> Option<(PathBuf, Fate)> {
        let link = within(&list.prefix, &list.base, Path::new(name))?;
        let path = self.places.root.resolve(self.places.root.inside(&link)?).ok()?;
        let fate = *self.files.get(&path).filter(|fate| **fate != Fate::Gone)?;
        Some((path, fate))
    }

    /// What a list should say of a file, and of which; `None` for a file that kpack has nothing to say of.
    fn fate(
        &mut self,
        list: &FileList,
        name: &str,
        size: Option<u64>,
        is_link: bool,
    ) -> Result<Option<(PathBuf, Fate)>, Error> {
        let linked = is_link.then(|| self.linked(list, name)).flatten();
        let Some((path, fate)) = linked.or_else(|| self.file(list, name).flatten()) else {
            return Ok(None);
        };
        if fate == Fate::Complete {
            let file = self.places.open_file(&path)?;
            let found = file.metadata().map_err(|e| Error::io(&path, "read", e))?.len();
            if size.is_none_or(|size| size <= found) {
                return Ok(None);
            }
        }
        Ok(Some((path, fate)))
    }

    /// The files that a list names.
    fn named(&mut self, list: &FileList) -> Result<BTreeSet<(PathBuf, bool)>, Error> {
        let mut named = BTreeSet::new();
        let Some((_, _, bytes)) = self.read(list)? else {
            return Ok(named);
        };
        list.with_changes(&bytes, &mut |name, size, is_link| {
            let fate = self.fate(list, name, size, is_link);
            let fate = self.or_say(fate).flatten();
            named.extend(fate.map(|(path, fate)| (path, fate != Fate::Gone)));
            Ok(Listed::Same)
        })?;
        Ok(named)
    }

    /// Reads files for their digests.
    fn hash(&mut self, listed: BTreeSet<(PathBuf, bool)>) {
        let there = Vec::from_iter(listed.into_iter().filter(|(_, is_there)| *is_there));
        let places = self.places;
        let digests = parallel::map(there, |(path, _)| {
            let digest = places.open_file(&path).and_then(|file| digest_of(&path, &file));
            digest.map(|digest| (path, digest))
        });
        for digest in digests {
            let digest = self.or_say(digest);
            self.digests.extend(digest);
        }
    }

    /// The content of a list, its file and its directory; `None` if it is not a regular file.
    fn read(&self, list: &FileList) -> Result<Option<(Directory, File, Vec<u8>)>, Error> {
        let path = list.path();
        let Some(directory) = self.places.open(&list.directory)? else {
            return Ok(None);
        };
        let Some(file) = directory.open_file(&list.name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = (&file).take(MAX_LIST + 1).read_to_end(&mut bytes);
        read.map_err(|e| Error::io(&path, "read", e))?;
        if bytes.len() as u64 > MAX_LIST {
            let text = format!("a list of files has more than {MAX_LIST} bytes");
            return Err(Error::rejected(ids::DAMAGED_WHEEL, &path, text));
        }
        Ok(Some((directory, file, bytes)))
    }

    /// Corrects a list. Returns what to say.
    fn update(&mut self, list: &FileList) -> Result<Vec<Finding>, Error> {
        let Some((directory, old, bytes)) = self.read(list)? else {
            return Ok(Vec::new());
        };
        let mut outside = BTreeSet::new();
        let new = list.with_changes(&bytes, &mut |name, size, is_link| {
            if within(&list.prefix, &list.base, Path::new(name)).is_none() {
                outside.insert(name.to_owned());
                return Ok(Listed::Same);
            }
            Ok(match self.fate(list, name, size, is_link)? {
                None => Listed::Same,
                Some((_, Fate::Gone)) => Listed::Gone,
                // What could not be read was named.
                Some((path, _)) => {
                    self.digests.get(&path).map_or(Listed::Same, |digest| Listed::Now(*digest))
                }
            })
        })?;
        let Some(new) = new else {
            return Ok(Vec::new());
        };
        let path = list.path();
        let spot = Spot { path: &path, directory: Arc::new(directory), name: &list.name };
        spot.rewrite(&old, &new)?;
        let mut findings = Vec::new();
        if let Some(first) = outside.first() {
            let text = format!(
                "lists `{first}`, which is outside of the environment; that stays as it is"
            );
            findings.push(Finding::new(Severity::Warning, ids::DAMAGED_WHEEL, path, text));
        }
        Ok(findings)
    }
}

impl FileList {
    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Its new content, if anything in it changes.
    fn with_changes(
        &self,
        bytes: &[u8],
        listed: &mut Lister<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        if self.is_conda {
            return update_conda(&self.path(), bytes, listed);
        }
        update_record(bytes, &mut |name, size| listed(name, size, false))
    }
}

fn update_conda(
    path: &Path,
    bytes: &[u8],
    listed: &mut Lister<'_>,
) -> Result<Option<Vec<u8>>, Error> {
    let mut value = serde_json::from_slice::<Value>(bytes)
        .map_err(|error| Error::rejected(ids::DAMAGED_WHEEL, path, format!("not JSON: {error}")))?;
    let mut gone = BTreeSet::new();
    let mut is_changed = false;
    let entries = value.pointer_mut("/paths_data/paths").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        let Some(name) = entry["_path"].as_str().map(str::to_owned) else {
            continue;
        };
        let is_link = entry["path_type"] == "softlink";
        match listed(&name, entry["size_in_bytes"].as_u64(), is_link)? {
            Listed::Same => {}
            Listed::Gone => _ = gone.insert(name),
            Listed::Now(digest) => {
                let new = [
                    ("sha256_in_prefix", Value::from(hex(&digest.sha256))),
                    ("size_in_bytes", digest.size.into()),
                ];
                for (key, new) in new {
                    // conda has no digests of links; mamba has.
                    if entry[key] != new && !(is_link && entry[key].is_null()) {
                        entry[key] = new;
                        is_changed = true;
                    }
                }
            }
        }
    }
    if !gone.is_empty() {
        let is_gone = |name: &Value| name.as_str().is_some_and(|name| gone.contains(name));
        if let Some(paths) = value.pointer_mut("/paths_data/paths").and_then(Value::as_array_mut) {
            paths.retain(|entry| !is_gone(&entry["_path"]));
        }
        if let Some(names) = value.get_mut("files").and_then(Value::as_array_mut) {
            names.retain(|name| !is_gone(name));
        }
        is_changed = true;
    }
    let text = serde_json::to_vec_pretty(&value).map_err(|e| Error::io(path, "write", e.into()))?;
    Ok(is_changed.then_some(text))
}
