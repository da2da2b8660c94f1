//! What is in a prefix, as data: for the host, a fat binary, of one target, or unknown.
//!
//! A file's path says where it belongs, by the known kernel databases, and its content says so too,
//! where it is a code object, a bundle, an archive or a library file. Nothing is written here.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use walkdir::{DirEntry, WalkDir};

use super::classifier::Classifier;
use super::databases::{self, Selection};
use super::pairs::Pairs;
use crate::Error;
use crate::leftover::is_leftover;
use crate::parallel;

/// What is in a prefix.
#[derive(Debug, Clone, Default)]
pub struct Classification {
    /// Everything below the prefix, sorted by path, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// Files whose names say one target and whose content another. The text shows both.
    pub disagreements: Vec<Finding>,
    /// Code objects without their library file, and library files without their code objects.
    pub unpaired: Vec<Finding>,
    /// Library files of Tensile and kernel caches that are not whole.
    pub damaged: Vec<Finding>,
    /// Files outside of databases that begin like device code and cannot be read as such. They are
    /// for the host.
    pub unreadable: Vec<Finding>,
    /// Kernel caches, which are for all targets. The text names those that they have device code for.
    pub for_all: Vec<Finding>,
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
/// [`Error::Io`]; [`Error::Refused`] for a damaged file of a database or archive in `.kpack`, and
/// for what is neither a file, a directory nor a symbolic link.
pub fn classify(prefix: &Path, databases: &Selection) -> Result<Classification, Error> {
    let mut found = Vec::new();
    for entry in WalkDir::new(prefix).min_depth(1).sort_by_file_name() {
        found.push(entry.map_err(|error| walk_error(prefix, error))?);
    }
    classify_found(prefix, databases, &found)
}

/// As [`classify`], without FIFOs, sockets and devices, which have no bytes.
///
/// # Errors
/// As [`classify`], but for these.
pub(crate) fn classify_without_special_files(
    prefix: &Path,
    databases: &Selection,
) -> Result<Classification, Error> {
    let mut found = Vec::new();
    for entry in WalkDir::new(prefix).min_depth(1).sort_by_file_name() {
        let entry = entry.map_err(|error| walk_error(prefix, error))?;
        let kind = entry.file_type();
        if kind.is_file() || kind.is_dir() || kind.is_symlink() {
            found.push(entry);
        }
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

/// How many entries are one piece of work for a thread.
const AT_ONCE: usize = 32;

pub(super) fn classify_found(
    prefix: &Path,
    databases: &Selection,
    found: &[DirEntry],
) -> Result<Classification, Error> {
    let mut classification = Classification::default();
    let mut pairs = Pairs::default();
    let parts = found.chunks(AT_ONCE);
    for (part, part_pairs) in
        parallel::try_map(parts, |part| classify_part(prefix, databases, part))?
    {
        classification.entries.extend(part.entries);
        classification.disagreements.extend(part.disagreements);
        classification.damaged.extend(part.damaged);
        classification.unreadable.extend(part.unreadable);
        classification.for_all.extend(part.for_all);
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

pub(crate) fn walk_error(prefix: &Path, error: walkdir::Error) -> Error {
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
