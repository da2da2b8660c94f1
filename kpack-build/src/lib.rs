//! Takes the GPU code out of ROCm/HIP binaries at build and install time.
//!
//! `install` splits the binaries of an install prefix, `inspect` tells what a file is, and
//! `verify` whether binaries, archives and manifests are whole; all three are what the command
//! `kpack` (feature `cli`) calls. [`object`] splits objects before they are linked. `artifact`
//! does for directory trees what packagers need: it splits them, and recombines what several
//! machines built; `sizes` reports where the bytes are. [`elf`] is one linked binary: read,
//! planned, rewritten.
//!
//! A build script needs none of the features:
//!
//! ```no_run
//! kpack_build::Hip::new()
//!     .file("src/vector.hip")
//!     .offload_archs(["gfx1100", "gfx942"])
//!     .compile("vector");
//! ```
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `install` | linked binaries and trees: `install`, `artifact`, `verify`, `inspect`, `sizes`; compression |
//! | `stage` | `stage`, for releases of Rust programs; with `install` |
//! | `cli` | the command `kpack`; with all others |

#![forbid(unsafe_code)]
// What linked files and trees alone need of the rooms that they share with objects.
#![cfg_attr(
    not(feature = "install"),
    allow(dead_code, unreachable_pub, unused_imports, unused_macros)
)]

#[cfg(feature = "install")]
pub mod artifact;
#[cfg(feature = "cli")]
pub mod cli;
pub mod elf;
mod error;
mod hip;
mod input;
#[cfg(feature = "install")]
pub mod inspect;
#[cfg(feature = "install")]
pub mod install;
mod kpack_dir;
#[cfg(feature = "install")]
mod leftover;
#[cfg(feature = "install")]
mod lossy;
pub mod object_file;
pub mod report;
#[cfg(feature = "install")]
pub mod sizes;
mod split;
#[cfg(feature = "stage")]
pub mod stage;
#[cfg(feature = "install")]
pub mod verify;

pub use error::Error;
pub use hip::{Hip, Library};
pub use object_file as object;
#[cfg(feature = "stage")]
pub use stage::stage;
