//! For `kpack-split`: the code that linked binaries, trees and objects share.
//!
//! May change with that crate in any version. Programs should use [`Hip`](crate::Hip),
//! [`object_file`](crate::object_file), or `kpack-split`.

pub use crate::error::{escaped, shown};

/// Records of ELF files, and errors about them.
pub mod elf {
    pub use crate::elf::{
        ElfError, FAT_SECTION, MAGIC_FAT, MAGIC_SPLIT, POINTER, ReadAt, VERSION, WRAPPER_SECTION,
        WRAPPER_SIZE, Wrapper, pods, pods_mut, refuse,
    };
}

/// Header directories and workspaces of a build.
pub mod hip {
    pub use crate::hip::{INCLUDE_DIRECTORIES, workspaces};
}

/// Input files.
pub mod input {
    pub use crate::input::{
        FileKind, bundle_error, check_code_object, check_code_object_head, digest, elf_error,
        identify, list, manifest_parts, open, open_archive, open_bundle, read_manifest,
        wrapper_error,
    };
}

/// Signals that end a run.
pub mod interrupt {
    pub use crate::interrupt::signal;
}

/// Threads.
pub mod parallel {
    pub use crate::parallel::*;
}

/// Compresses device code into archives.
pub mod split {
    pub use crate::split::{Budget, Compression, Content, PackedCode, code_ids, compress, padding};

    /// The device code of an object, or of each member of a static library that has some.
    pub fn of_objects(path: &std::path::Path) -> Result<Vec<PackedCode>, crate::Error> {
        crate::object_file::device_code(path)
    }
}

/// Output files.
pub mod store {
    pub use crate::store::*;
}
