//! What an entry of a prefix is, and where it belongs.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use kpack_core::platform::SharedInode;
use kpack_core::publish::Identity;
use kpack_core::{Error, Finding};
use kpack_format::TargetId;
use kpack_format::names::is_manifest;
use kpack_format::unstable::tensile::Library;
use kpack_split::input::{ClosedBinary, LinkedBinary};

use crate::databases::for_all;
use crate::entry_path::EntryPath;
use crate::place::{ForAll, Merge};

/// A file, symbolic link or directory. Entries are compared by their paths.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// Its path in the tree and in the file system.
    pub path: EntryPath,
    /// Where it was found, if several trees or prefixes are read together.
    pub origin: Arc<Origin>,
    /// What the file system says it is.
    pub node: Node,
    /// Device and inode of a file with more than one name; on Windows, only an [inventory](crate::Only::Inventory) asks.
    pub shared_inode: Option<Box<SharedInode>>,
    /// The identity of the file that was read, if it is for one target.
    pub identity: Option<Box<Identity>>,
    /// Where it belongs, shared with others of this class. A directory that is not empty is [`Class::Host`], and belongs
    /// wherever something in it does.
    pub class: Arc<Class>,
    /// What was read of it, if it is a binary with device code, split or not.
    pub binary: Option<Arc<ClosedBinary>>,
    /// Its content, if it is a library file of Tensile, without `targets` where the class has one; or the targets of a
    /// bundle for all targets.
    pub library: Option<Arc<Library>>,
}

/// Where entries were found.
#[derive(Debug, Default)]
pub struct Origin {
    /// The name of their tree, for messages.
    pub tree: Arc<str>,
    /// The prefix that they are in, of those of the tree; empty for what is in none.
    pub prefix: Arc<str>,
}

impl Entry {
    pub(crate) fn new(path: EntryPath, node: Node) -> Self {
        static NOWHERE: LazyLock<(Arc<Origin>, Arc<Class>)> =
            LazyLock::new(|| (Arc::default(), Class::Host.into()));
        let (origin, class) = &*NOWHERE;
        Self {
            path,
            origin: Arc::clone(origin),
            node,
            shared_inode: None,
            identity: None,
            class: Arc::clone(class),
            binary: None,
            library: None,
        }
    }

    /// The directory `path` of `root`, with something in it.
    pub fn directory(root: &Path, path: &Path, origin: &Arc<Origin>) -> Self {
        let new = Self::new(EntryPath::new(root, path), Node::Directory { empty: false });
        Self { origin: Arc::clone(origin), ..new }
    }

    /// The same in the tree `root`.
    pub fn within(self, root: &Path) -> Self {
        Self { path: self.path.within(root), ..self }
    }

    /// Its path in the file system.
    pub fn full(&self) -> &Path {
        self.path.full()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory { .. })
    }

    /// The binary, opened again.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was replaced or modified.
    pub fn linked(&self) -> Result<LinkedBinary, Error> {
        match &self.binary {
            Some(closed) => closed.open(),
            None => LinkedBinary::open(self.full()),
        }
    }

    /// Size in bytes; 0 if it is not a file.
    pub fn size(&self) -> u64 {
        match self.node {
            Node::File { size } => size,
            _ => 0,
        }
    }

    /// Its path in its prefix; `None` for a directory above.
    pub fn installed(&self) -> Option<&Path> {
        self.path.strip_prefix(&*self.origin.prefix).ok()
    }

    /// How to merge the copies of a file that all targets share.
    pub fn for_all(&self) -> Option<ForAll> {
        let how = for_all(self.installed()?)?;
        match (how, self.node) {
            (_, Node::Directory { .. }) | (ForAll::Merge(_), Node::Symlink) => None,
            _ => Some(how),
        }
    }

    /// How to merge the copies of a file that each machine has a part of.
    pub fn shared(&self) -> Option<Merge> {
        match self.for_all()? {
            ForAll::Merge(merge) => Some(merge),
            ForAll::MustMatch(_) => None,
        }
    }

    /// The target that it is for: its own, or that of the artifact that it is in.
    pub fn target<'t>(&'t self, artifact: Option<&'t TargetId>) -> Option<&'t TargetId> {
        match &*self.class {
            Class::Target { target, .. } => Some(target),
            Class::Unknown { target, .. } => artifact.map(|own| target.as_ref().unwrap_or(own)),
            Class::Host | Class::Fat | Class::Split => artifact,
        }
    }

    /// Whether it is an archive of kernels.
    pub fn is_kpack(&self) -> bool {
        matches!(&*self.class, Class::Target { database, .. } if *database == KPACK)
    }

    /// Whether it is a manifest of kpacks.
    pub fn is_manifest(&self) -> bool {
        matches!(self.node, Node::File { .. }) && is_manifest(&self.path)
    }
}

impl Borrow<Path> for Entry {
    fn borrow(&self) -> &Path {
        &self.path
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.path.cmp(&other.path)
    }
}

/// The type of an entry in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory {
        /// Whether the walk lists nothing in it.
        empty: bool,
    },
    /// A symbolic link.
    Symlink,
    /// A regular file.
    File {
        /// In bytes.
        size: u64,
    },
}

/// Where an entry belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
        /// The database or the rule that it is of, or `kpack` for an archive.
        database: Cow<'static, str>,
    },
    /// It looks architecture-specific, and is in no known place.
    Unknown {
        /// The only target that it can be of: device code of one target by its content, or data by
        /// its name.
        target: Option<TargetId>,
        /// Whether it has device code. If not, only its name looks like that.
        device_code: bool,
        /// Why it looks so.
        reason: String,
    },
}

impl Class {
    /// The only target that it is for, or can be for.
    pub fn target(&self) -> Option<&TargetId> {
        match self {
            Self::Target { target, .. } => Some(target),
            Self::Unknown { target, .. } => target.as_ref(),
            Self::Host | Self::Fat | Self::Split => None,
        }
    }
}

/// What was found out about an entry.
pub struct Classified {
    /// What it is.
    pub entry: Entry,
    /// What is worth saying about it, by its path in the prefix.
    pub observations: Vec<Finding>,
}

/// What the database of kpack archives is called in [`Class::Target`].
pub const KPACK: &str = "kpack";
