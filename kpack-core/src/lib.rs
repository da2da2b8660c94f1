//! The common parts of kpack's tools: files and errors about them, ELF records, the compression of device code, and
//! the only writer of output files.
//!
//! Only kpack's own crates should use this interface, which may change in every version. Programs use `kpack-build`
//! or `kpack-split`.

// The display adapters of Windows need some.
#![cfg_attr(not(windows), forbid(unsafe_code))]

pub mod archives;
pub mod elf;
mod error;
pub mod files;
pub mod finding;
pub mod gpus;
pub mod interrupt;
pub mod job_server;
#[cfg(feature = "serde")]
pub mod lossy;
pub mod parallel;
pub mod platform;
pub mod publish;
pub mod report;
pub mod staging;
pub mod words;

pub use archives::{DebugInfo, Spirv, Storage};
pub use error::{Error, escaped, shown};
pub use finding::{Finding, Id, Severity, ids};
pub use kpack_format::{Details, Reason};
