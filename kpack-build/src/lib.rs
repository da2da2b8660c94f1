//! Takes the GPU code out of ROCm/HIP binaries at build and install time.

#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod elf;
mod error;
pub mod inspect;
pub mod install;
mod kpack_dir;
mod split;
pub mod verify;

pub use error::Error;
