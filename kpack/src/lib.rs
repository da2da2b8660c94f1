//! Loads modules of GPU code (ROCm/HIP) in Rust programs: the code for the GPU at hand, from the program itself or from
//! the archives that it was split into.
//!
//! `build.rs` compiles each source for several GPUs:
//!
//! ```ignore
//! fn main() {
//!     kpack_build::Hip::new()
//!         .files(["kernels/affine.hip", "kernels/reduce.hip"])
//!         .offload_archs(["gfx90a", "gfx1100"])
//!         .compile_modules("kernels");
//! }
//! ```
//!
//! The program loads them with any HIP runtime and any binding of it:
//!
//! ```ignore
//! use std::ffi::CStr;
//!
//! kpack::include_modules!("kernels"); // a module `kernels` with AFFINE, REDUCE and ALL
//!
//! /// A wrong name does not compile.
//! const AFFINE_F32: &CStr = kernels::AFFINE.kernel(c"affine_f32");
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // gcnArchName of hipGetDeviceProperties.
//!     let code = kernels::AFFINE.load("gfx90a:sramecc+:xnack-")?;
//!     // hipModuleLoadData(&mut module, code.as_ptr())
//!     // hipModuleGetFunction(&mut function, module, AFFINE_F32.as_ptr())
//!     // Keep `code` until hipModuleUnload.
//!     Ok(())
//! }
//! ```
//!
//! Add both crates in one version: `cargo add kpack`, `cargo add --build kpack-build`.
//!
//! `cargo run`, `cargo test` and `cargo install` need no further step, because the program contains the code. For a
//! release, `kpack stage` or `kpack split` moves it into one archive for each target, and [`Module::load`] finds it there.

#![deny(unsafe_op_in_unsafe_fn)]

mod archive;
mod borrowed;
mod cache;
mod decoder;
mod dynamic_symbols;
mod environment;
mod error;
mod error_code;
mod lookup;
mod mapping;
mod marker;
mod module;
mod platform;
mod regular_file;
mod report;
mod request;
mod scratch;
mod search;
mod shim_mode;
mod stderr;

/// For kpack's own crates and for generated modules. It is no part of the interface: it may change in any release.
///
/// kpack's tools, its loader and its shim share the lookup. A HIP runtime that loads a split binary asks for the code
/// object for its GPU:
///
/// ```no_run
/// use kpack::internal::{Cache, Request, discover_binary_path, marker_at};
///
/// # fn main() -> Result<(), kpack::internal::Error> {
/// # let (pointer, co_index) = (0usize, 0u32);
/// let cache = Cache::from_environment();
/// // The wrapper's pointer leads to the marker, and to the binary that it is in.
/// let marker = marker_at(pointer)?;
/// let (binary, _) = discover_binary_path(pointer)?;
/// let isas = ["gfx942:sramecc+:xnack-".parse()?, "gfx9-4-generic".parse()?];
/// let code_object: Vec<u8> = cache.load_code_object(&Request {
///     marker: &marker,
///     binary: &binary,
///     co_index,
///     isas: &isas,
/// })?;
/// # Ok(()) }
/// ```
///
/// [`lookup`](internal::lookup) lists the archives in which the code may be, without opening them.
///
/// ROCm's runtime uses the C interface, which is the crate `kpack-runtime`. This crate exports no function of C, because a
/// program that does would take the place of ROCm's loader.
///
/// Archives are read by position, so opening one reads only its table of contents, and a file that shrinks meanwhile gives
/// an error. The loader holds no lock while it reads and decompresses code objects.
#[doc(hidden)]
pub mod internal {
    use std::ffi::CStr;

    use crate::Module;

    pub use crate::archive::{Archive, Memory, Room};
    pub use crate::cache::Cache;
    pub use crate::error::Error;
    pub use crate::error_code::kpack_error_t as ErrorCode;
    pub use crate::lookup::Environment;
    pub use crate::marker::marker_at;
    pub use crate::module::{Bundle, Note, Wrapper};
    pub use crate::platform::{discover_binary_path, path_of, text_of};
    pub use crate::report::{Attempt, Outcome, Report};
    pub use crate::request::Request;
    pub use crate::search::CodeObject;
    pub use crate::shim_mode::ShimMode;
    pub use kpack_format::TargetId;
    pub use kpack_format::marker::Marker;

    pub mod dynamic_symbols {
        pub use crate::dynamic_symbols::*;
    }

    pub mod lookup {
        pub use crate::lookup::*;
    }

    /// A module over a wrapper. The last text is the panic for a wrong name of a kernel.
    pub const fn compiled_module(
        name: &'static str,
        wrapper: &'static Wrapper,
        targets: &'static [&'static str],
        kernels: &'static [&'static CStr],
        no_such_kernel: &'static str,
    ) -> Module {
        Module::compiled(name, wrapper, targets, kernels, no_such_kernel)
    }

    /// A module that the build skipped, for this reason.
    pub const fn skipped_module(name: &'static str, reason: &'static str) -> Module {
        Module::skipped(name, reason)
    }
}

use internal::{
    Archive, Attempt, Cache, Environment, ErrorCode, Marker, Outcome, Report, Request,
    discover_binary_path, marker_at,
};

pub use kpack_format::TargetId;
pub use module::{Code, Error, Module};
