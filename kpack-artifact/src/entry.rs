//! What an entry of a prefix is, and where it belongs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use kpack_core::platform::SharedInode;
use kpack_core::{Finding, Spirv, ids};
use kpack_format::TargetId;
use kpack_format::tensile::Library;
use kpack_split::input::ClosedBinary;

/// The content of a prefix.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Classification {
    /// Everything below the prefix, sorted by path, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// What is worth saying about some of them, by their paths in the prefix: a file that contradicts
    /// itself or is damaged is a fault, one that counts as a host file because it cannot be read is a
    /// warning, all else is a note.
    pub observations: Vec<Finding>,
    /// What was read of the binaries with device code, split or not, by path.
    pub binaries: BTreeMap<PathBuf, Arc<ClosedBinary>>,
}

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
        /// Whether nothing is in it.
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

impl Classification {
    /// Takes binaries that stay because of their SPIR-V for fat ones, if that is dropped or archived.
    pub fn treat_spirv(&mut self, spirv: Spirv) {
        let fat = no_more_kept(&mut self.observations, spirv);
        let entries = self.entries.iter_mut();
        let entries = entries.filter(|entry| fat.contains(&entry.path));
        entries.for_each(|entry| entry.class = Class::Fat);
    }
}

/// Removes the binaries that do not stay from observations.
pub(super) fn no_more_kept(found: &mut Vec<Finding>, spirv: Spirv) -> BTreeSet<PathBuf> {
    let stays = |o: &Finding| o.id != ids::SPIRV_KEPT || spirv == Spirv::Keep;
    let (stay, fat): (Vec<_>, Vec<_>) = std::mem::take(found).into_iter().partition(stays);
    *found = stay;
    fat.into_iter().filter_map(|found| found.path).collect()
}

/// What the database of kpack archives is called in [`Class::Target`].
pub const KPACK: &str = "kpack";
