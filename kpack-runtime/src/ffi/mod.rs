//! The C interface.
//!
//! `rocm_kpack/kpack.h` is generated from these functions. No panic leaves them, and no file makes one of
//! them read or write where it should not. Callers must ensure that handles and pointers are null or valid,
//! that strings end with NUL, and that nobody closes what another thread uses.

#![allow(unsafe_code)]

mod arguments;
mod buffer;
mod functions;
mod types;

// Tells `kpack doctor` that a library is this loader and not ROCm's. Linkers and `strip` keep it.
#[cfg(not(windows))]
core::arch::global_asm!(
    ".pushsection .note.kpack_loader,\"a\",%note",
    ".balign 4",
    ".long 6, 0, 2",
    ".asciz \"kpack\"",
    ".balign 4",
    ".popsection",
);

pub use functions::*;
pub use kpack::internal::ErrorCode as kpack_error_t;
pub use types::{KPACK_CURRENT_VERSION, kpack_cache_t, kpack_compression_scheme_t};
pub use types::{kpack_arch_callback_t, kpack_archive, kpack_archive_t, kpack_cache};
