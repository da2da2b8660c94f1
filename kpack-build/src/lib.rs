//! Takes the GPU code out of HIP objects before they are linked: in build scripts, and in compiler
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

mod elf;
mod error;
mod hip;
mod input;
mod interrupt;
pub mod object_file;
mod parallel;
pub mod report;
#[doc(hidden)]
pub mod shared;
mod split;
mod store;

pub use error::Error;
pub use hip::{Hip, Library};
pub use split::Storage;
