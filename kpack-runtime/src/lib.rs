//! The loader: finds the device code of split binaries, and decompresses it.
//!
//! A HIP runtime that loads a split binary asks for the code object for its GPU:
//!
//! ```no_run
//! use rocm_kpack::{Cache, Request, marker_at};
//!
//! # fn main() -> Result<(), rocm_kpack::Error> {
//! # let (pointer, co_index) = (0usize, 0u32);
//! let cache = Cache::from_environment();
//! // The wrapper's pointer leads to the marker, and to the binary that it is in.
//! let marker = marker_at(pointer)?;
//! let (binary, _) = rocm_kpack::discover_binary_path(pointer)?;
//! let isas = ["gfx942:sramecc+:xnack-".parse()?, "gfx9-4-generic".parse()?];
//! let code_object: Vec<u8> = cache.load_code_object(&Request {
//!     marker: &marker,
//!     binary: &binary,
//!     co_index,
//!     isas: &isas,
//! })?;
//! # Ok(()) }
//! ```
//!
//! [`lookup`] lists the archives in which the code may be, without opening them. kpack's tools use it too.
//!
//! ROCm's runtime uses the C interface, `rocm_kpack/kpack.h`; see [`ffi`].
//!
//! Archives are read by position, so opening one reads only its table of contents, and a file that shrinks meanwhile
//! gives an error. The loader holds no lock while it reads and decompresses code objects.

#![deny(unsafe_op_in_unsafe_fn)]

mod archive;
mod cache;
mod decoder;
pub mod dynamic_symbols;
mod environment;
mod error;
mod error_code;
pub mod ffi;
pub mod lookup;
mod marker;
mod platform;
mod regular_file;
mod report;
mod request;
mod scratch;
mod search;
mod shim_mode;
mod stderr;

pub use archive::Archive;
pub use cache::Cache;
pub use error::Error;
pub use error_code::kpack_error_t as ErrorCode;
pub use kpack_format::TargetId;
pub use kpack_format::marker::Marker;
pub use lookup::Environment;
pub use marker::marker_at;
pub use platform::discover_binary_path;
pub use report::{Attempt, Outcome, Report};
pub use request::Request;
pub use search::CodeObject;
pub use shim_mode::ShimMode;
