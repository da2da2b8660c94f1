//! What an entry of a prefix is, and where it belongs.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use kpack_core::Finding;
use kpack_core::platform::SharedInode;
use kpack_format::TargetId;
use kpack_format::tensile::Library;
use kpack_split::input::ClosedBinary;

/// A file, symbolic link or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its path in the prefix.
    pub path: PathBuf,
    /// What the file system says it is.
    pub node: Node,
    /// Device and inode of a file with more than one name.
    pub shared_inode: Option<SharedInode>,
    /// Where it belongs. A directory that is not empty is [`Class::Host`], and belongs wherever
    /// something in it does.
    pub class: Class,
    /// Its content, if it is a library file of Tensile, without `targets` where the class has one; or the targets of a
    /// bundle for all targets.
    pub library: Option<Arc<Library>>,
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

/// What was found out about an entry.
pub struct Classified {
    /// What it is.
    pub entry: Entry,
    /// What is worth saying about it, by its path in the prefix.
    pub observations: Vec<Finding>,
    /// What was read of a binary with device code, split or not.
    pub binary: Option<Arc<ClosedBinary>>,
}

/// What the database of kpack archives is called in [`Class::Target`].
pub const KPACK: &str = "kpack";
