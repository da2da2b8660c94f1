//! Writes archives, manifests and host binaries: each first under a hidden name, then read back,
//! made durable, and renamed.

mod batch;
mod directory;
mod hidden_name;
mod identity;
mod kpack_dir;
mod merge;
mod names;
mod new_names;
mod output;
mod scratch;
mod sparse;
mod stage;
mod staged_file;
mod transaction;
mod tree;
mod tree_lock;

pub use batch::Batch;
pub use directory::{CreatedDirectories, Directory};
#[cfg(windows)]
pub(crate) use hidden_name::numbered;
pub use hidden_name::{hidden, is_leftover, is_own, stem_of};
pub use identity::Identity;
pub use kpack_dir::{
    KpackDir, Present, entry, entry_of, stage_archive, stage_manifest, write_manifest,
};
pub use merge::Update;
pub use names::{check_names, is_name_part, name_part};
pub use new_names::NewNames;
pub use output::{
    check_named_output, check_output, check_output_directory, check_room, resolve, write_output,
};
pub use scratch::scratch_file;
pub use sparse::{begin_flush, copy_range, copy_to_disk, write_at};
pub use stage::Stage;
pub use staged_file::StagedFile;
pub use transaction::{Transaction, replace};
pub use tree::DirectoryListing;
pub use tree_lock::TreeLock;
