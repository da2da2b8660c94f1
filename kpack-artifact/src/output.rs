//! Describes an artifact directory to write.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mark;
use super::rules::{EntryContent, InstalledEntry};
use super::tree::ArtifactTree;
use kpack_core::Error;
use kpack_core::platform::SharedInode;
use kpack_tree::{DatabaseSelection, Entry, EntryPath, Node};

pub(super) type Edits = Vec<(u64, Vec<u8>)>;

/// An artifact directory to write.
#[derive(Debug, Default)]
pub(super) struct OutputTree {
    /// The name of the directory.
    pub(super) name: String,
    /// The artifact directory whose times it gets.
    pub(super) model: PathBuf,
    /// The bytes of its mark.
    pub(super) mark: Vec<u8>,
    /// Its prefixes. Empty prefixes are not listed.
    pub(super) prefixes: Vec<String>,
    /// By path in the artifact.
    pub(super) entries: BTreeMap<EntryPath, EntrySource>,
    /// Number of files and symbolic links.
    pub(super) files: u64,
    /// Size of the files in bytes; a file with several names counts once.
    pub(super) size: u64,
    /// Number of bytes copied. A host binary may be larger than its source.
    pub(super) copied: u64,
    pub(super) archives: u64,
    /// The shards that its files are from.
    pub(super) shards: BTreeSet<String>,
    /// The directory of the entry that was added last, which is there as well.
    parent: PathBuf,
    /// The files with several names already counted.
    counted: HashSet<Inode>,
}

/// Device and inode, of host binaries with their module.
type Inode = (Option<usize>, SharedInode);

/// The source of an artifact's entry. Nearly all are copies, so the others are boxed to keep each small.
#[derive(Debug)]
pub(super) enum EntrySource {
    /// A directory with this one's mode and time.
    Directory(Arc<Path>),
    /// A copy of a file or symbolic link.
    Copy(Arc<Path>),
    Edited(Box<Edited>),
    Bytes(Box<NewFile>),
    /// The host binary of this fat one, to write once its device code is known.
    Host(Arc<Path>),
}

/// A copy of a file with changed bytes.
#[derive(Debug)]
pub(super) struct Edited {
    pub(super) from: Arc<Path>,
    pub(super) edits: Edits,
}

/// New bytes, with another file's mode and time.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) bytes: Vec<u8>,
    pub(super) like: Arc<Path>,
}

impl OutputTree {
    /// An artifact without entries, whose files of these `databases` are split.
    ///
    /// # Errors
    /// [`Error::Usage`] for more rules than a mark can list.
    pub(super) fn new(
        name: String,
        model: &Path,
        databases: &DatabaseSelection,
    ) -> Result<Self, Error> {
        let mark = mark::to_bytes(databases)?;
        Ok(Self { name, model: model.to_owned(), mark, ..Self::default() })
    }

    pub(super) fn add_prefixes(&mut self, prefixes: &[String]) {
        for prefix in prefixes {
            if !self.prefixes.contains(prefix) {
                self.prefixes.push(prefix.clone());
            }
        }
    }

    /// Adds the directories of an artifact's prefixes, even empty ones.
    pub(super) fn add_prefix_directories(&mut self, tree: &ArtifactTree) {
        for prefix in &tree.prefixes {
            let path = EntryPath::new(&tree.root, Path::new(prefix));
            let source = EntrySource::Directory(Arc::clone(path.full()));
            self.insert(&path, path.full(), source);
        }
    }

    /// The source of the file or symbolic link at `path`, if any.
    pub(super) fn file_at(&self, path: &EntryPath) -> Option<&Path> {
        match self.entries.get(path)? {
            EntrySource::Directory(_) => None,
            EntrySource::Copy(from) | EntrySource::Host(from) => Some(from),
            EntrySource::Edited(edited) => Some(&edited.from),
            EntrySource::Bytes(new) => Some(&new.like),
        }
    }

    /// Adds a copy of an entry and its parent directories. Directories that are not empty are only
    /// added this way.
    pub(super) fn add(&mut self, item: &Entry) {
        self.add_edited(item, Edits::new());
    }

    /// Adds a copy of an entry with changed bytes.
    pub(super) fn add_edited(&mut self, item: &Entry, edits: Edits) {
        let from = Arc::clone(item.path.full());
        match item.node {
            Node::Directory { empty: false } => {}
            Node::Directory { empty: true } => {
                self.insert(&item.path, item.full(), EntrySource::Directory(from));
            }
            Node::Symlink | Node::File { .. } => {
                self.count(item, None, item.size());
                let source = if edits.is_empty() {
                    EntrySource::Copy(from)
                } else {
                    EntrySource::Edited(Edited { from, edits }.into())
                };
                self.insert(&item.path, item.full(), source);
            }
        }
    }

    /// Adds the host binary of `item`, of this module, which will have `size` bytes.
    pub(super) fn add_host(&mut self, item: &Entry, module: usize, size: u64) {
        self.count(item, Some(module), size);
        self.insert(&item.path, item.full(), EntrySource::Host(Arc::clone(item.path.full())));
    }

    /// Adds a new file with the mode and time of `like`.
    pub(super) fn add_bytes(&mut self, path: &EntryPath, bytes: Vec<u8>, like: &Path) {
        self.files += 1;
        self.size += bytes.len() as u64;
        self.copied += bytes.len() as u64;
        let source = EntrySource::Bytes(NewFile { bytes, like: like.into() }.into());
        self.insert(path, like, source);
    }

    /// The entries to install.
    pub(super) fn to_install<'a>(
        &'a self,
        component: &'a str,
        may_share: bool,
    ) -> impl Iterator<Item = InstalledEntry<'a>> + Clone {
        self.entries.iter().filter_map(move |(path, source)| {
            let mut prefixes = self.prefixes.iter();
            Some(InstalledEntry {
                at: prefixes.find_map(|prefix| path.strip_prefix(prefix).ok())?,
                component,
                artifact: Path::new(&self.name),
                may_share,
                path,
                content: match source {
                    EntrySource::Directory(_) => EntryContent::Directory,
                    EntrySource::Copy(from) | EntrySource::Host(from) => {
                        EntryContent::File(from, &[])
                    }
                    EntrySource::Edited(edited) => EntryContent::File(&edited.from, &edited.edits),
                    EntrySource::Bytes(new) => EntryContent::Bytes(&new.bytes),
                },
            })
        })
    }

    /// Adds an entry and its parent directories, which are modelled on those of `from`.
    fn insert(&mut self, path: &EntryPath, from: &Path, source: EntrySource) {
        let above = path.ancestors().zip(from.ancestors()).skip(1);
        for (path, from) in above.filter(|(path, _)| !path.as_os_str().is_empty()) {
            // Most entries are in the directory of the last one; this saves a lookup.
            if self.parent.as_os_str() == path.as_os_str() {
                break;
            }
            // Then those above it are there, too.
            if self.entries.contains_key(path) {
                break;
            }
            self.entries.insert(path.into(), EntrySource::Directory(from.into()));
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_os_str() != parent.as_os_str() {
            self.parent = parent.to_owned();
        }
        self.entries.insert(path.clone(), source);
    }

    fn count(&mut self, item: &Entry, module: Option<usize>, size: u64) {
        self.files += 1;
        self.archives += u64::from(item.is_kpack());
        if !self.shards.contains(&*item.origin.tree) {
            self.shards.insert(item.origin.tree.to_string());
        }
        let inode = item.shared_inode.as_deref();
        if inode.is_none_or(|inode| self.counted.insert((module, *inode))) {
            self.size = self.size.saturating_add(size);
            self.copied = self.copied.saturating_add(size.min(item.size()));
        }
    }

    /// Whether it contains anything besides directories.
    pub(super) fn has_files(&self) -> bool {
        self.files > 0
    }
}
