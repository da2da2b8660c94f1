//! What kpack's tools share: files and errors about them, ELF records, device code on its way into
//! archives, and the only writer of output files.
//!
//! An interface for kpack's own crates. Its version is raised incompatibly whenever the interface changes,
//! so that Cargo never combines crates that do not fit. Programs use `kpack-build` or `kpack-split`.

#![forbid(unsafe_code)]

pub mod archives;
pub mod elf;
mod error;
pub mod files;
pub mod finding;
pub mod interrupt;
#[cfg(feature = "serde")]
pub mod lossy;
pub mod parallel;
pub mod platform;
pub mod publish;
pub mod report;
pub mod words;

pub use archives::{DebugInfo, Spirv, Storage};
pub use error::{Error, escaped, shown};
pub use finding::{Finding, Id, Severity, ids};
