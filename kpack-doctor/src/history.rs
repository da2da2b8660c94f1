//! What earlier runs of `kpack trim` removed, as their notes say. A note only explains what a file lacks: where the file
//! was installed again since, the file counts and not the note.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kpack_core::files::{RealPaths, with_slashes};
use kpack_core::publish::Directory;
use kpack_core::words::list;
use kpack_core::{Error, shown};
use kpack_format::names::{archive_ends, is_archive, is_manifest};
use kpack_format::unstable::target_names;
use kpack_format::{Delivery, TargetId};

use crate::note::{NAME, Note, Went};
use crate::packages::Origin;

/// The notes that were read.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// By directory.
    notes: BTreeMap<PathBuf, Option<Arc<ReadNote>>>,
    paths: RealPaths,
}

/// A note.
#[derive(Debug)]
struct ReadNote {
    directory: Directory,
    note: Note,
    written: SystemTime,
}

/// What somebody looks for code in.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// A binary, and the archives that it has or looked for.
    File(&'a Path, &'a [PathBuf]),
    /// Everything in a directory, such as that of a kernel database.
    Directory(&'a Path),
}

/// What went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemovedCode {
    /// The targets.
    pub(crate) targets: BTreeSet<String>,
    /// The GPUs whose code stayed; `None` if they differ from file to file, or nothing tells.
    kept: Option<Vec<String>>,
    /// The note.
    note: PathBuf,
    /// A file of each package, or of none, from which something went.
    pub(crate) origins: BTreeMap<Option<Origin>, PathBuf>,
}

impl RemovedCode {
    /// What went from where, for the end of a message.
    pub(crate) fn text(&self) -> String {
        let kept = self.kept.iter().map(|kept| format!(" (it kept {})", list(kept)));
        format!(
            "`kpack trim` removed the code for {}{}, says {}",
            list(&self.targets),
            String::from_iter(kept),
            shown(&self.note)
        )
    }
}

impl History {
    /// What went from `subject`, of the targets that are `wanted` with this delivery. `is_installed` says whether a package
    /// whose file is gone is still installed in this version.
    ///
    /// # Errors
    /// If no other note explains it: [`Error::Io`] if a note cannot be read; [`Error::Refused`] if a file with its name is no
    /// note that this version reads.
    pub(crate) fn removed(
        &mut self,
        subject: Subject<'_>,
        is_wanted: &dyn Fn(&TargetId, Delivery) -> bool,
        is_installed: &mut dyn FnMut(&Origin, &Path) -> bool,
    ) -> Result<Option<RemovedCode>, Error> {
        let (mut notes, mut failed) = (Vec::new(), None);
        // The nearest first.
        for directory in subject.directories(&mut self.paths)?.iter().rev() {
            match self.read(directory) {
                Ok(found) => notes.extend(found),
                // It must not hide what the others say.
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        // The newest one that agrees with what is there counts.
        notes.sort_by_key(|read| std::cmp::Reverse(read.written));
        for read in notes {
            let mut targets = BTreeSet::new();
            let mut origins = BTreeMap::new();
            let mut kept = BTreeSet::new();
            let mut evidence = BTreeMap::new();
            // The directories of archives that went.
            let mut places = BTreeSet::new();
            let is_listing = |name: &str| is_manifest(Path::new(name));
            let mut among = subject.among(&read, &mut self.paths);
            among.sort_by_key(|(name, _)| is_listing(name));
            for (name, went) in among {
                let delivery = match went {
                    _ if Note::is_gone(went) || is_listing(name) => Delivery::Archive,
                    _ => Delivery::AnyBundle,
                };
                let mut of_file = went
                    .removed
                    .iter()
                    .filter(|target| {
                        let target = target.parse::<TargetId>();
                        target.is_ok_and(|target| is_wanted(&target, delivery))
                    })
                    .peekable();
                if of_file.peek().is_none() || !read.note.explains(&read.directory, name, went)? {
                    continue;
                }
                let path = read.directory.path().join(name);
                let origin = read.note.package(went);
                // If another version of its package is installed, that may never have had the file.
                let mut is_other = |origin| !is_installed(origin, &path);
                let place = Path::new(name).parent().unwrap_or(Path::new(""));
                if Note::is_gone(went) {
                    let is_other = match origin {
                        Some(origin) => is_other(origin),
                        None => !*evidence.entry(place).or_insert_with(|| read.has_other(place)),
                    };
                    if is_other {
                        continue;
                    }
                }
                // A manifest matters beside an archive that it listed, unless it is the one of another GPU's package.
                let of_other = |target: &TargetId| !is_wanted(target, Delivery::Archive);
                if is_listing(name)
                    && !subject.is(&path, &mut self.paths)
                    && (!places.contains(place) || target_of(name).is_some_and(|t| of_other(&t)))
                {
                    continue;
                }
                if is_archive(Path::new(name)) {
                    places.insert(place);
                }
                targets.extend(of_file.cloned());
                kept.insert(went.kept.clone());
                origins.entry(origin.cloned()).or_insert(path);
            }
            if !targets.is_empty() {
                let note = read.directory.path().join(NAME);
                let kept = kept.pop_first().filter(|first| kept.is_empty() && !first.is_empty());
                return Ok(Some(RemovedCode { targets, kept, note, origins }));
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn read(&mut self, directory: &Path) -> Result<Option<Arc<ReadNote>>, Error> {
        if let Some(known) = self.notes.get(directory) {
            return Ok(known.clone());
        }
        let read = match Directory::open(directory) {
            Ok(directory) => Note::read(&directory)?
                .map(|(note, written)| Arc::new(ReadNote { directory, note, written })),
            // One need not be allowed to list what is above a file.
            Err(Error::Io { source, .. })
                if [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied]
                    .contains(&source.kind()) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        self.notes.insert(directory.to_owned(), read.clone());
        Ok(read)
    }
}

impl ReadNote {
    /// Whether a file of no package, in this directory or above it, is as trim left it: where all of them are others, somebody
    /// unpacked another version, which may never have had what is gone.
    fn has_other(&self, place: &Path) -> bool {
        let mut others = self.note.files.iter().filter(|(name, went)| {
            let other = Path::new(name).parent().unwrap_or(Path::new(""));
            !Note::is_gone(went) && place.starts_with(other) && self.note.package(went).is_none()
        });
        others.any(|(name, went)| {
            self.note.explains(&self.directory, name, went).is_ok_and(|explains| explains)
        })
    }
}

/// The target that the name of a manifest ends with.
fn target_of(name: &str) -> Option<TargetId> {
    let (_, label) = Path::new(name).file_stem()?.to_str()?.rsplit_once('.')?;
    target_names::exact(label)
}

impl Subject<'_> {
    /// Whether it is the file at `path`.
    fn is(self, path: &Path, paths: &mut RealPaths) -> bool {
        matches!(self, Self::File(own, _) if real(paths, own).is_ok_and(|own| own == path))
    }

    /// The directories that notes about it can be in.
    fn directories(self, paths: &mut RealPaths) -> Result<BTreeSet<PathBuf>, Error> {
        let (path, archives): (&Path, &[PathBuf]) = match self {
            Self::File(path, archives) => (path, archives),
            Self::Directory(path) => (path, &[]),
        };
        let mut found = BTreeSet::new();
        for path in archives.iter().map(PathBuf::as_path).chain([path]) {
            found.extend(real(paths, path)?.ancestors().map(Path::to_owned));
        }
        Ok(found)
    }

    /// What a note says that concerns it.
    fn among<'r>(self, read: &'r ReadNote, paths: &mut RealPaths) -> Vec<(&'r str, &'r Went)> {
        let mut inside = |path: &Path| {
            let path = real(paths, path).ok()?;
            path.strip_prefix(read.directory.path()).ok().map(with_slashes)
        };
        let files = read.note.files.iter().map(|(name, went)| (name.as_str(), went));
        match self {
            Self::File(path, archives) => {
                let own = inside(path);
                let archives = Vec::from_iter(archives.iter().filter_map(|path| inside(path)));
                let is_own = |name: &str, went: &Went| {
                    let mut targets = went.removed.iter();
                    is_archive(Path::new(name))
                        && targets.any(|target| {
                            archives.iter().any(|other| is_sibling(name, target, other))
                        })
                };
                let own_archives = files.clone().filter(|(name, went)| is_own(name, went));
                let places = BTreeSet::from_iter(
                    own_archives.filter_map(|(name, _)| Path::new(name).parent()),
                );
                let is_listing = |path: &Path| {
                    is_manifest(path) && path.parent().is_some_and(|place| places.contains(place))
                };
                let concerns = |name: &str, went: &Went| {
                    own.as_deref() == Some(name)
                        || is_own(name, went)
                        || is_listing(Path::new(name))
                };
                files.filter(|(name, went)| concerns(name, went)).collect()
            }
            Self::Directory(path) => {
                let Some(own) = inside(path) else { return Vec::new() };
                let below = |name: &str| {
                    own.is_empty()
                        || name.strip_prefix(&own).is_some_and(|rest| rest.starts_with('/'))
                };
                files.filter(|(name, _)| below(name)).collect()
            }
        }
    }
}

/// The path without symbolic links of what need not be there any more.
fn real(paths: &mut RealPaths, path: &Path) -> Result<PathBuf, Error> {
    let absolute = || std::path::absolute(path).map_err(|e| Error::io(path, "find", e));
    paths.of(path).map_or_else(absolute, Ok)
}

/// Whether two archives are of one group: their names differ in the target alone. The archive `name` is for `target`. Each may be
/// in a directory of its target.
fn is_sibling(name: &str, target: &str, other: &str) -> bool {
    let split = |path: &str| {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        (directory.to_owned(), name.to_owned())
    };
    let ((directory, name), (other_directory, other)) = (split(name), split(other));
    let mut ends = archive_ends(target);
    let Some(stem) = ends.find_map(|end| name.strip_suffix(&*end).map(str::to_owned)) else {
        return name == other;
    };
    let above = |directory: &str| split(directory).0;
    let is_near = directory == other_directory || above(&directory) == above(&other_directory);
    is_near && other.strip_prefix(&stem).is_some_and(|rest| rest.starts_with('_'))
}
