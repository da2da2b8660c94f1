//! Moves the GPU code of HIP objects into archives before they are linked: in build scripts, and in compiler
//! launchers.
//!
//! [`Hip`] compiles and splits the kernels of a crate in its build script; [`object_file`] splits
//! objects and static libraries. The crate `kpack-split` does the same for linked binaries and
//! whole trees, and provides the command `kpack`.
//!
//! ```no_run
//! kpack_build::Hip::new()
//!     .file("src/vector.hip")
//!     .offload_archs(["gfx1100", "gfx942"])
//!     .compile("vector");
//! ```

#![forbid(unsafe_code)]

mod hip;
pub mod object_file;

/// What a build leaves for `kpack stage`, which makes a release of it.
pub mod staging {
    pub use crate::hip::{INCLUDE_DIRECTORIES, workspaces};
}

pub use hip::{Hip, Library};
pub use kpack_core::{DebugInfo, Error, Finding, Id, Severity, Spirv, Storage, ids, report};
