//! Moves the GPU code of linked ROCm/HIP binaries into archives at install time, and back.
//!
//! [`install`] splits the binaries of an install prefix, [`join`] puts device code back, and [`trim`] removes the
//! code for all but chosen GPUs. [`elf`] reads, plans and rewrites one linked binary. [`verify`] checks binaries,
//! archives and manifests.
//!
//! Other crates build on this one: `kpack-artifact` splits and verifies trees, `kpack-store` packs them,
//! `kpack-wheel` splits Python wheels, and `kpack-cli` provides the command `kpack`. `kpack-build` splits objects
//! before they are linked.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod device_code;
pub mod elf;
mod facts;
pub mod host;
pub mod input;
pub mod install;
pub mod join;
pub mod leftover;
pub mod pe;
mod plan;
mod rewrite;
mod source_date;
pub mod split;
pub mod trim;
pub mod verify;

pub use kpack_core::{Error, Finding, Id, Severity, Spirv, Storage, ids, report};
use kpack_core::{parallel, publish};
pub use source_date::source_date;
