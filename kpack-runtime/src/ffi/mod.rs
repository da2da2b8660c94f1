//! The C interface.
//!
//! `rocm_kpack/kpack.h` is generated from these functions. No panic leaves them, and no file makes one of
//! them read or write where it should not. Callers must ensure that handles and pointers are null or valid,
//! that strings end with NUL, and that nobody closes what another thread uses.

#![allow(unsafe_code)]

mod arguments;
pub(crate) mod buffer;
mod functions;
pub(crate) mod mapping;
mod types;

pub use crate::error_code::kpack_error_t;
pub use functions::*;
pub use types::{KPACK_CURRENT_VERSION, kpack_cache_t, kpack_compression_scheme_t};
pub use types::{kpack_arch_callback_t, kpack_archive, kpack_archive_t, kpack_cache};
