//! What is in a prefix, as data: for the host, a fat binary, of one target, or unknown.
//!
//! A file's path says where it belongs, by the known kernel databases, and its content says so too,
//! where it is a code object, a bundle, an archive or a library file. Nothing is written here.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use walkdir::{DirEntry, WalkDir};

use super::content::Content;
use super::data_file::{is_package, not_data};
use super::databases::{self, Place, Selection};
use super::elf_header::Headers;
use super::in_parallel::in_parallel;
use super::pairs::{self, Pairs};
use super::target_name;
use crate::Error;
use crate::elf::{DeviceCode, Image, NoDeviceCode};
use crate::error::shown;
use crate::inspect::{self, FileKind};
use crate::leftover::is_leftover;

/// What is in a prefix.
#[derive(Debug, Clone, Default)]
pub struct Classification {
    /// Everything below the prefix, sorted by path, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// Files whose names say one target and whose content another. The text shows both.
    pub disagreements: Vec<Finding>,
    /// Code objects without their library file, and library files without their code objects.
    pub unpaired: Vec<Finding>,
    /// Library files of Tensile that are not whole.
    pub damaged: Vec<Finding>,
    /// What else is worth knowing.
    pub notices: Vec<Finding>,
}

/// A file, symbolic link or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path in the prefix.
    pub path: PathBuf,
    /// What the file system says it is.
    pub node: Node,
    /// Where it belongs. A directory that is not empty is [`Class::Host`], and belongs wherever
    /// something in it does.
    pub class: Class,
}

/// What the file system says an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory {
        /// Whether nothing is in it.
        empty: bool,
    },
    /// A symbolic link.
    Symlink,
    /// A regular file.
    File {
        /// In bytes.
        size: u64,
        /// Device and inode, where it has more than one name.
        shared_inode: Option<(u64, u64)>,
    },
}

impl Node {
    pub(super) fn of_file(metadata: &Metadata) -> Self {
        Self::File {
            size: metadata.len(),
            shared_inode: (metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino())),
        }
    }
}

/// Where an entry belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// For every target.
    Host,
    /// A host binary with device code in it, which is to be split.
    Fat,
    /// A host binary whose device code is in kpacks already.
    Split,
    /// Of one target.
    Target {
        /// Which.
        target: TargetId,
        /// The database that it is of, or `kpack` for an archive.
        database: &'static str,
    },
    /// It looks architecture-specific, and is in no known place.
    Unknown {
        /// The only target that it can be of: device code of one target by its content, or data by
        /// its name.
        target: Option<TargetId>,
        /// Whether it has device code; it looks so by its name only otherwise.
        device_code: bool,
        /// Why it looks so.
        reason: String,
    },
}

/// Something to be said about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its path in the prefix.
    pub path: PathBuf,
    /// What is to be said.
    pub text: String,
}

/// What the database of kpack archives is called in [`Class::Target`].
pub const KPACK: &str = "kpack";

/// Reads what is below `prefix`. Files of databases that are not selected are for the host.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] for a damaged binary, code object, bundle or archive, and for
/// what is neither a file, a directory nor a symbolic link.
pub fn classify(prefix: &Path, databases: &Selection) -> Result<Classification, Error> {
    let mut found = Vec::new();
    for entry in WalkDir::new(prefix).min_depth(1).sort_by_file_name() {
        found.push(entry.map_err(|error| walk_error(prefix, error))?);
    }
    classify_found(prefix, databases, &found)
}

/// Reads the files below `prefix` that are in the place of some database, and nothing else. What
/// cannot be listed is not there, nor is what interrupted runs left behind.
///
/// # Errors
/// As [`classify`].
pub(crate) fn classify_databases(prefix: &Path) -> Result<Classification, Error> {
    let walk = WalkDir::new(prefix).min_depth(1).sort_by_file_name();
    let is_of_one = |entry: &DirEntry| {
        let path = entry.path().strip_prefix(prefix).unwrap_or(entry.path());
        let is_directory = entry.file_type().is_dir();
        !is_directory && databases::recognise(&path.to_string_lossy()).is_some()
    };
    let walk = walk.into_iter();
    let walk = walk.filter_entry(|entry| !is_leftover(entry.file_name()));
    let found: Vec<DirEntry> = walk.flatten().filter(is_of_one).collect();
    classify_found(prefix, &Selection::Auto, &found)
}

fn classify_found(
    prefix: &Path,
    databases: &Selection,
    found: &[DirEntry],
) -> Result<Classification, Error> {
    let mut classification = Classification::default();
    let mut pairs = Pairs::default();
    for part in in_parallel(found, |part| classify_part(prefix, databases, part)) {
        let (part, part_pairs) = part?;
        classification.entries.extend(part.entries);
        classification.disagreements.extend(part.disagreements);
        classification.damaged.extend(part.damaged);
        classification.notices.extend(part.notices);
        pairs.extend(part_pairs);
    }
    mark_empty(&mut classification.entries);
    classification.unpaired = pairs.unpaired(&classification.entries);
    Ok(classification)
}

/// What one entry of a walk below `root` is, whatever databases are selected. Directories are taken
/// to be empty.
pub(super) fn classify_entry(root: &Path, found: &DirEntry) -> Result<Classification, Error> {
    let found = std::slice::from_ref(found);
    classify_part(root, &Selection::Auto, found).map(|(classification, _)| classification)
}

/// A directory is named before what is in it, and known to be empty by what follows.
pub(super) fn mark_empty(entries: &mut [Entry]) {
    for index in 0..entries.len() {
        let (before, from) = entries.split_at_mut(index + 1);
        let (Some(entry), next) = (before.last_mut(), from.first()) else {
            continue;
        };
        if let Node::Directory { empty } = &mut entry.node {
            *empty = next.is_none_or(|next| !next.path.starts_with(&entry.path));
            if !*empty {
                entry.class = Class::Host;
            }
        }
    }
}

/// Some of the entries of a walk, in its order.
fn classify_part(
    prefix: &Path,
    databases: &Selection,
    found: &[DirEntry],
) -> Result<(Classification, Pairs), Error> {
    let mut classification = Classification::default();
    let mut pairs = Pairs::default();
    for found in found {
        let path = found.path().strip_prefix(prefix).unwrap_or(found.path());
        let classifier = Classifier {
            full: found.path(),
            path,
            name: path.to_string_lossy(),
            databases,
        };
        let (node, class) = classifier.entry(found, &mut classification, &mut pairs)?;
        let path = path.to_owned();
        classification.entries.push(Entry { path, node, class });
    }
    Ok((classification, pairs))
}

pub(super) fn walk_error(prefix: &Path, error: walkdir::Error) -> Error {
    let path = error.path().unwrap_or(prefix).to_owned();
    let text = error.to_string();
    // A loop of links is no failure of the system; there are none where links are not followed.
    let cause = error.into_io_error();
    Error::io(
        &path,
        "read",
        cause.unwrap_or_else(|| io::Error::other(text)),
    )
}

/// One entry of the walk.
struct Classifier<'a> {
    full: &'a Path,
    /// In the prefix.
    path: &'a Path,
    /// The same as text.
    name: std::borrow::Cow<'a, str>,
    databases: &'a Selection,
}

impl Classifier<'_> {
    fn entry(
        &self,
        found: &DirEntry,
        result: &mut Classification,
        pairs: &mut Pairs,
    ) -> Result<(Node, Class), Error> {
        let kind = found.file_type();
        if kind.is_dir() {
            let inside = format!("{}/.", self.name);
            let class = match databases::recognise(&inside) {
                Some((database, Place::Target(target))) if self.databases.has(database) => {
                    Class::Target {
                        target,
                        database: database.name,
                    }
                }
                _ => Class::Host,
            };
            return Ok((Node::Directory { empty: true }, class));
        }
        if kind.is_symlink() {
            return Ok((Node::Symlink, self.symlink(result)?));
        }
        if !kind.is_file() {
            return Err(Error::refused(
                self.full,
                "expected a file, a directory or a symbolic link; it is something else",
            ));
        }
        let file = inspect::open(self.full)?;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|e| Error::io(self.full, "read", e))?;
        let node = Node::of_file(&metadata);
        Ok((node, self.file(&file, metadata.len(), result, pairs)?))
    }

    fn symlink(&self, result: &mut Classification) -> Result<Class, Error> {
        let inside = format!("{}/.", self.name);
        let place = databases::recognise(&self.name).or_else(|| databases::recognise(&inside));
        let Some((database, place)) = place else {
            let to = || -> Option<Result<_, Error>> {
                self.full.metadata().ok().filter(Metadata::is_file)?;
                let file = inspect::open(self.full).ok()?;
                let kind = inspect::identify(self.full, &file).ok()?;
                Some(not_data(self.full, &file, kind))
            };
            return self.by_name(|| to().unwrap_or(Ok(Some("a symbolic link to no file"))));
        };
        if !self.databases.has(database) {
            return Ok(Class::Host);
        }
        let target = match place {
            Place::Target(target) => Some(target),
            Place::Shared => None,
            Place::Unnamed => {
                let to = fs::read_link(self.full).map_err(|e| Error::io(self.full, "read", e))?;
                let name = to.file_name().unwrap_or_default().to_string_lossy();
                one(target_name::in_file_name(&name))
            }
            Place::Contradiction(one, other) => {
                result.disagreements.push(self.two_names(&one, &other));
                None
            }
        };
        Ok(target.map_or(Class::Host, |target| Class::Target {
            target,
            database: database.name,
        }))
    }

    fn file(
        &self,
        file: &File,
        size: u64,
        result: &mut Classification,
        pairs: &mut Pairs,
    ) -> Result<Class, Error> {
        let kind = inspect::identify(self.full, file)?;
        let place = databases::recognise(&self.name);
        let (database, place) = match (place, kind) {
            (Some((database, _)), _) if !self.databases.has(database) => {
                return match kind {
                    Some(FileKind::Linked) => self.linked(file, size, result),
                    _ => Ok(Class::Host),
                };
            }
            (Some((database, place)), _) => (database.name, place),
            (None, Some(FileKind::Archive)) => {
                let content = Content::read(self.full, file, size, kind, false)?;
                return Ok(self.archive(&content, result));
            }
            (None, Some(FileKind::Linked)) => {
                return match self.linked(file, size, result)? {
                    Class::Host => self.by_name(|| not_data(self.full, file, kind)),
                    class => Ok(class),
                };
            }
            (None, _) => {
                if is_package(self.path) {
                    result.notices.push(self.finding(
                        "is not looked into; what device code it has stays in it".to_owned(),
                    ));
                }
                return self.outside(file, size, kind);
            }
        };
        // An engine of a target may be a library of its own, which stays whole.
        let kind = match kind {
            Some(FileKind::Linked) if self.headers(file, size)? != Headers::Readable => None,
            kind => kind,
        };
        let library = self
            .path
            .extension()
            .is_some_and(|extension| extension == "dat");
        let content = Content::read(self.full, file, size, kind, library)?;
        pairs.add(self.path, &content);
        if let Content::NoLibrary { reason, damaged } = &content {
            if *damaged && pairs::TENSILE.contains(&database) {
                result
                    .damaged
                    .push(self.finding(format!("it is damaged: {reason}")));
            }
            result.notices.push(self.finding(format!(
                "{reason}; where it belongs is known by its name alone"
            )));
        }
        let target = match place {
            Place::Target(said) => {
                if let Some(own) = content.contradiction(&said) {
                    result
                        .disagreements
                        .push(self.finding(format!("its path says {said}, but {own}")));
                }
                said
            }
            Place::Contradiction(one, other) => {
                result.disagreements.push(self.two_names(&one, &other));
                one
            }
            // However many targets one build made it for, it is one file for all of them.
            Place::Shared => return Ok(Class::Host),
            Place::Unnamed => match content.only_target() {
                Some(target) => target.clone(),
                None => return Ok(self.unnamed(&content)),
            },
        };
        Ok(Class::Target { target, database })
    }

    /// An ELF file for a host. One for another kind of machine cannot have device code.
    fn linked(&self, file: &File, size: u64, result: &mut Classification) -> Result<Class, Error> {
        match self.headers(file, size)? {
            Headers::Readable => {}
            Headers::Foreign => return Ok(Class::Host),
            Headers::WithoutSections => {
                result.notices.push(self.finding(
                    "it has no section headers, so device code in it would not be found".to_owned(),
                ));
                return Ok(Class::Host);
            }
        }
        let code = Image::read(file).and_then(|image| image.device_code());
        match code.map_err(|error| inspect::elf_error(self.full, error))? {
            DeviceCode::Fat(_) => Ok(Class::Fat),
            DeviceCode::Split(_) => Ok(Class::Split),
            DeviceCode::None(NoDeviceCode::NoWrappers) => {
                let known = inspect::no_device_code(NoDeviceCode::NoWrappers);
                let text = format!("left alone: {}", known.explanation);
                result.notices.push(self.finding(text));
                Ok(Class::Host)
            }
            DeviceCode::None(_) => Ok(Class::Host),
        }
    }

    fn archive(&self, content: &Content, result: &mut Classification) -> Class {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let named = stem
            .rsplit_once('_')
            .and_then(|(_, target)| target.parse().ok());
        let own = content.only_target().cloned();
        let Some(target) = own.clone().or(named.clone()) else {
            return Class::Unknown {
                target: None,
                device_code: true,
                reason: "it is a kpack archive for several targets".to_owned(),
            };
        };
        if let Some(named) = named.filter(|named| Some(named) != own.as_ref())
            && let Some(own) = content.contradiction(&named)
        {
            let text = format!("its name says {named}, but {own}");
            result.disagreements.push(self.finding(text));
        }
        Class::Target {
            target,
            database: KPACK,
        }
    }

    fn headers(&self, file: &File, size: u64) -> Result<Headers, Error> {
        Headers::read(file, size).map_err(|e| Error::io(self.full, "read", e))
    }

    /// A file that is of no one target by its path.
    fn unnamed(&self, content: &Content) -> Class {
        let reason = match content {
            Content::CodeObject(_) => "it is an AMDGPU code object",
            Content::Bundle(targets) if !targets.is_empty() => "it is an offload bundle",
            _ => return Class::Host,
        };
        Class::Unknown {
            target: content.only_target().cloned(),
            device_code: true,
            reason: reason.to_owned(),
        }
    }

    /// A file in no known place.
    fn outside(&self, file: &File, size: u64, kind: Option<FileKind>) -> Result<Class, Error> {
        // A manifest, or the part of one for a group of targets, is for all.
        if kind == Some(FileKind::Manifest) {
            return Ok(Class::Host);
        }
        let unlinked = matches!(kind, Some(FileKind::Object | FileKind::StaticLibrary));
        // What cannot be read as what it begins like is no matter here.
        if unlinked
            && let Ok(inspection) = inspect::inspect(self.full)
            && let inspect::Content::Unlinked(unlinked) = inspection.content
            && !unlinked.device_objects.is_empty()
        {
            return Ok(Class::Unknown {
                target: None,
                device_code: true,
                reason: "it has device code that is split before the link".to_owned(),
            });
        }
        let content = Content::read(self.full, file, size, kind, false)?;
        let class = self.unnamed(&content);
        if class != Class::Host {
            return Ok(class);
        }
        self.by_name(|| not_data(self.full, file, kind))
    }

    /// What the names in the path suggest, the last first. They make data a target's, and nothing
    /// else: `not_data` says what it is where it is no data.
    fn by_name(
        &self,
        not_data: impl FnOnce() -> Result<Option<&'static str>, Error>,
    ) -> Result<Class, Error> {
        let mut parts = self.name.rsplit('/');
        let Some(part) = parts.find(|part| target_name::looks_specific(part)) else {
            return Ok(Class::Host);
        };
        let name = shown(Path::new(part));
        let reason = format!("`{name}` looks like the name of a GPU target");
        let named = one(target_name::in_file_name(part));
        Ok(match not_data()? {
            Some(what) if named.is_some() => Class::Unknown {
                target: None,
                device_code: false,
                reason: format!("{reason}, but it is {what}"),
            },
            Some(_) | None => Class::Unknown {
                target: named,
                device_code: false,
                reason,
            },
        })
    }

    fn two_names(&self, one: &TargetId, other: &TargetId) -> Finding {
        self.finding(format!("its path says {one}, and {other} as well"))
    }

    fn finding(&self, text: String) -> Finding {
        Finding {
            path: self.path.to_owned(),
            text,
        }
    }
}

/// The only one.
fn one(targets: Vec<TargetId>) -> Option<TargetId> {
    let mut targets = targets.into_iter();
    targets.next().filter(|_| targets.next().is_none())
}
