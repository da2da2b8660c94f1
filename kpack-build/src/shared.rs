//! For `kpack-split`: what linked binaries and trees have in common with objects.
//!
//! Changes with that crate, in any version. Programs use [`Hip`](crate::Hip),
//! [`object_file`](crate::object_file), or what `kpack-split` offers.

pub use crate::error::{escaped, shown};

/// Records of ELF files, and errors about them.
pub mod elf {
    pub use crate::elf::{
        ElfError, FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, ReadAt, VERSION, WRAPPER_SECTION,
        WRAPPER_SIZE, Wrapper, pods, pods_mut, refuse,
    };
}

/// What Cargo says about the workspaces that a build script belongs to.
pub mod hip {
    pub use crate::hip::{INCLUDE_DIRECTORIES, workspaces};
}

/// Files as they come in.
pub mod input {
    pub use crate::input::{
        FileKind, archive_error, check_code_object, digest, elf_error, hex, identify,
        manifest_parts, open, open_archive, open_bundle, read_manifest,
    };
}

/// A module's kpack directory.
pub mod kpack_dir {
    pub use crate::kpack_dir::{
        KpackDir, Present, Staged, Update, Updated, archive_name, check_names, entry, entry_of,
        group_name, is_manifest, is_name_part, manifest_name, recover_directory, remove,
        remove_directory, replace_directory, same_bytes, scratch_file, sync_directory,
    };
}

/// Device code, into archives.
pub mod split {
    pub use crate::split::{Budget, Compression, DeviceCode, archive_error, compress, padding};
}
