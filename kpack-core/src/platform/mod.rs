//! What differs between Linux and Windows, for all of kpack's tools: directories that stay open, locks, and what the
//! system knows about files. Both sides have the same functions and traits; little else asks which one it is.

#[cfg_attr(not(windows), path = "linux/mod.rs")]
#[cfg_attr(windows, path = "windows/mod.rs")]
mod system;

pub use system::{
    FileExt, FileTypeExt, MetadataExt, OsStrExt, OsStringExt, canonicalize, changed_at, id_of,
    is_file_name, is_pseudo_file_system, name_key, raise_open_files, readable, set_mode,
    set_mode_at, shared_inode, shared_inode_at, symlink,
};
pub(crate) use system::{
    Handle, begin_flush, display_adapters, free_space, is_disk_failure, is_name_too_long,
    keep_attributes, link_count, next_data, next_hole, open, open_pipe, try_lock, try_lock_host,
};

use std::time::SystemTime;

/// What is in a directory under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    windows,
    expect(dead_code, reason = "Windows has neither FIFOs nor sockets in directories")
)]
pub(crate) enum Kind {
    /// A regular file.
    File,
    Directory,
    /// A symbolic link, or on Windows what else leads to another place.
    Symlink,
    Fifo,
    Socket,
    /// A device, or what is none of these.
    Device,
}

/// Which file it is, and with which content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileIdentity {
    /// The file system, and the number of the file in it.
    pub(crate) id: (u64, u64),
    /// In bytes.
    pub(crate) size: u64,
    /// In units of the system.
    pub(crate) modified: (i64, i64),
}

impl FileIdentity {
    /// Those of an open file.
    pub(crate) fn of(file: &std::fs::File) -> std::io::Result<Self> {
        system::identity(file)
    }
}

/// A file with more than one name. Its number alone does not tell: some file systems give several files one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedInode(FileIdentity);

/// The file system of an open file, and its number there.
///
/// # Errors
/// Those of the system.
pub fn file_id(file: &std::fs::File) -> std::io::Result<(u64, u64)> {
    FileIdentity::of(file).map(|identity| identity.id)
}

/// An entry of a directory, which is not followed if it is a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) modified: SystemTime,
    pub(crate) identity: FileIdentity,
}
