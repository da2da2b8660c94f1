//! Moves the GPU code of linked ROCm/HIP binaries into archives at install time, and back.
//!
//! [`install`] splits the binaries of an install prefix, and [`join`] puts device code back. [`elf`] reads,
//! plans and rewrites one linked binary.
//!
//! `kpack-build` splits objects before they are linked; `kpack-artifact` splits and verifies trees;
//! `kpack-wheel` splits Python wheels; `kpack-cli` has the command `kpack`.

#![forbid(unsafe_code)]

mod device_code;
pub mod elf;
pub mod host;
pub mod input;
pub mod install;
pub mod join;
pub mod leftover;
pub mod pe;
mod plan;
mod ranges;
mod rewrite;
mod source_date;
pub mod split;

pub use kpack_core::{Error, Finding, Id, Severity, Spirv, Storage, ids, report};
use kpack_core::{parallel, publish};
pub use source_date::source_date;
