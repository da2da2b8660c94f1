//! Takes the GPU code out of linked ROCm/HIP binaries and trees at install time.
//!
//! [`install`] splits the binaries of an install prefix, [`inspect`] describes a file, and
//! [`verify`] checks binaries, archives and manifests. [`artifact`] serves packagers: it splits
//! directory trees and merges the results of several build machines. [`sizes`] reports where the
//! bytes are. [`join`] puts device code back. [`stage`] makes a release of Rust programs from Cargo's
//! messages about a build. [`elf`] reads, plans and rewrites one linked binary. The command `kpack` is in
//! [`cli`].
//!
//! `kpack-build`, which this crate builds on, splits objects before they are linked.

#![forbid(unsafe_code)]

pub mod artifact;
pub mod cli;
pub mod doctor;
pub mod elf;
mod input;
pub mod inspect;
pub mod install;
pub mod join;
mod leftover;
mod lossy;
mod report_json;
pub mod sizes;
mod split;
pub mod stage;
pub mod verify;
pub mod wheel;
mod words;

pub use kpack_build::{Error, Storage, object_file, report};
use kpack_core::{parallel, publish};
