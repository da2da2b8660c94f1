//! The C interface, and whatever else the compiler cannot check.
//!
//! The functions are those of `rocm_kpack/kpack.h`, which is made from them; `docs/runtime.md` has
//! their contract in one place. No panic leaves them, and no file makes one of them read or write
//! where it should not. What callers must see to: handles and pointers are null or valid, strings
//! end with NUL, and nothing is closed while another thread uses it.

#![allow(unsafe_code)]

mod buffer;
mod functions;
pub(crate) mod mapping;
pub(crate) mod process;
mod types;

pub use functions::*;
pub use types::{KPACK_CURRENT_VERSION, kpack_cache_t, kpack_compression_scheme_t, kpack_error_t};
pub use types::{kpack_arch_callback_t, kpack_archive, kpack_archive_t, kpack_cache};
