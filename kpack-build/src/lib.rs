//! Takes the GPU code out of ROCm/HIP binaries at build and install time.
//!
//! [`install`] splits the binaries of an install prefix, [`inspect`] tells what a file is, and
//! [`verify`] whether binaries, archives and manifests are whole; all three are what the command
//! `kpack` (feature `cli`) calls. [`object`] splits objects before they are linked. [`artifact`]
//! does for directory trees what packagers need: it splits them, and recombines what several
//! machines built; [`sizes`] reports where the bytes are. [`elf`] is one linked binary: read,
//! planned, rewritten.
//!
//! ```no_run
//! use kpack_build::install::{Options, install};
//!
//! # fn main() -> Result<(), kpack_build::Error> {
//! let options = Options::new("stage", "vec", ["lib/libvec.so", "bin/vec"]);
//! let report = install(&options, &())?;
//! for archive in &report.archives {
//!     println!("{}: {} bytes", archive.path.display(), archive.size);
//! }
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

pub mod artifact;
#[cfg(feature = "cli")]
pub mod cli;
pub mod elf;
mod error;
mod hip;
pub mod inspect;
pub mod install;
mod kpack_dir;
mod leftover;
mod lossy;
pub mod object_file;
pub mod sizes;
mod split;
#[cfg(feature = "stage")]
pub mod stage;
pub mod verify;

pub use error::Error;
pub use hip::{Hip, Library};
pub use object_file as object;
#[cfg(feature = "stage")]
pub use stage::stage;
