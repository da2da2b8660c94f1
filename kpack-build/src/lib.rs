//! Compiles HIP kernels in a build script, like the crate `cc`, and links them into your crate. The GPU code goes
//! into archives.
//!
//! ```no_run
//! kpack_build::Hip::new()
//!     .file("src/vector.hip")
//!     .offload_archs(["gfx1100", "gfx942"])
//!     .compile("vector");
//! ```
//!
//! You need a compiler for HIP (ROCm's, or a distribution's clang with lld), an archiver such as `ar` for static
//! libraries, and ROCm's headers and device libraries. [`Hip`] lists the environment variables that choose them. To
//! run the program, you need a HIP runtime that loads kernels from archives.
//!
//! `compile` prints these lines for Cargo, which [`Library::directives`] returns, and one for each variable that `cc`
//! reads:
//!
//! | line | why |
//! | --- | --- |
//! | `cargo::rerun-if-changed`, `cargo::rerun-if-env-changed` | sources, the headers that they include, and variables |
//! | `cargo::warning` | the compiler's warnings |
//! | `cargo::rustc-link-search`, `cargo::rustc-link-lib` | the library, `stdc++` and `amdhip64` |
//! | `cargo::metadata=kpack_dir`, `cargo::metadata=kpack_module` | for dependents of a package with `links`: where the archives are, and the name that they begin with |
//!
//! Programs that load their kernels themselves use [`Hip::compile_modules`] and the crate `kpack` instead, without a
//! library. Only the lines of the first two rows are printed then.
//!
//! The command `kpack stage` of the crate `kpack-cli` makes a release of the programs. [`object_file`] splits objects
//! and static libraries that another program compiled, and the crate `kpack-split` splits linked binaries.

#![forbid(unsafe_code)]

mod hip;
pub mod object_file;

/// For kpack's own crates, which look into objects and trim them. It is no part of the interface: it may change in any
/// release.
#[doc(hidden)]
pub mod internal {
    pub use crate::object_file::launch::launch_watched;
    pub use crate::object_file::resize::{FatObjects, ResizedObjects};
    pub use crate::object_file::unlinked::{DeviceObject, Unlinked, device_code};
}

pub use hip::{Hip, Library, Modules, Rocm};
pub use kpack_core::{DebugInfo, Error, Spirv, Storage, ids, report};
