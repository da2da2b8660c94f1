//! Takes the GPU code out of linked ROCm/HIP binaries and trees at install time.
//!
//! [`install`] splits the binaries of an install prefix, [`inspect`] tells what a file is, and
//! [`verify`] whether binaries, archives and manifests are whole; all three are what the command
//! `kpack` ([`cli`]) calls. [`artifact`] does for directory trees what packagers need: it splits
//! them, and recombines what several machines built; [`sizes`] reports where the bytes are.
//! [`mod@stage`] makes a release of Rust programs from what Cargo says about a build. [`elf`] is one
//! linked binary: read, planned, rewritten.
//!
//! Objects are split before they are linked by `kpack-build`, which this crate builds on.

#![forbid(unsafe_code)]

pub mod artifact;
pub mod cli;
pub mod elf;
mod input;
pub mod inspect;
pub mod install;
mod leftover;
mod lossy;
mod report_json;
pub mod sizes;
mod split;
pub mod stage;
pub mod verify;

use kpack_build::shared::{parallel, store};
pub use kpack_build::{Error, Storage, object_file, report};
pub use stage::stage;
