//! Classifies the files in a prefix: for the host, a fat binary, for one target, or unknown.
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

/// The content of a prefix.
#[derive(Debug, Clone, Default)]
pub struct Classification {
    /// Everything below the prefix, sorted by path, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// Observations about some of them.
    pub observations: Vec<Observation>,
}

impl Classification {
    /// The observations on one topic.
    pub fn about(&self, topic: Topic) -> impl Iterator<Item = &Observation> {
        let observations = self.observations.iter();
        observations.filter(move |observation| observation.topic == topic)
    }
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

/// The type of an entry in the file system.
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
    /// For one target.
    Target {
        /// The target.
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

/// An observation about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Its topic.
    pub topic: Topic,
    /// The file.
    pub path: PathBuf,
    /// The text.
    pub text: String,
}

/// The topic of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// The name says one target and the content another. The text shows both.
    Contradiction,
    /// A code object without its library file, or a library file without its code objects.
    Unpaired,
    /// A library file of Tensile or a kernel cache is damaged.
    Damaged,
    /// A file outside of databases begins like device code and cannot be read as such. It counts as a
    /// host file.
    Unreadable,
    /// A kernel cache, which is for all targets. The text names those that it has device code for.
    ForAll,
    /// Any other topic.
    Other,
}

/// What the database of kpack archives is called in [`Class::Target`].
pub const KPACK: &str = "kpack";

/// Reads what is below `prefix`. Files of databases that are not selected are for the host.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] for a damaged file of a database or archive in `.kpack`, and
/// for what is neither a file, a directory nor a symbolic link.
pub fn classify(prefix: &Path, databases: &Selection) -> Result<Classification, Error> {
    classify_found(prefix, databases, &walk(prefix)?)
}

/// As [`classify`], without FIFOs, sockets and devices, which have no bytes.
///
/// # Errors
/// As [`classify`], but for these.
pub(crate) fn classify_without_special_files(
    prefix: &Path,
    databases: &Selection,
) -> Result<Classification, Error> {
    let mut found = walk(prefix)?;
    found.retain(|entry| {
        let kind = entry.file_type();
        kind.is_file() || kind.is_dir() || kind.is_symlink()
    });
    classify_found(prefix, databases, &found)
}

/// Everything below `directory`, sorted by path.
pub(super) fn walk(directory: &Path) -> Result<Vec<DirEntry>, Error> {
    let walk = WalkDir::new(directory).min_depth(1).sort_by_file_name();
    let walk = walk.into_iter();
    walk.map(|entry| entry.map_err(|error| walk_error(directory, error)))
        .collect()
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

/// Number of entries that one thread classifies at a time.
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
        classification.observations.extend(part.observations);
        pairs.extend(part_pairs);
    }
    mark_empty(&mut classification.entries);
    let unpaired = pairs.unpaired(&classification.entries);
    classification.observations.extend(unpaired);
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
        let mut classifier = Classifier {
            full: found.path(),
            path,
            name: path.to_string_lossy(),
            databases,
            result: &mut classification,
            pairs: &mut pairs,
        };
        let (node, class) = classifier.entry(found)?;
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
