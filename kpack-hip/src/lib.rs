//! A shim between split binaries and HIP runtimes that do not read markers.
//!
//! Start-up code of a binary hands each wrapper to `__hipRegisterFatBinary`. The shim is called in place
//! of that function. It gives the runtime a fat wrapper with the code objects that the loader finds for
//! this machine's GPUs, and passes everything else on. There are two forms of it: the shared library
//! `libkpack_hip.so` for `LD_PRELOAD`, and a static library (`link`). Binaries are linked with either of them and
//! `--wrap=__hipRegisterFatBinary`.

#![deny(unsafe_op_in_unsafe_fn)]

mod bundle;
pub mod ffi;

pub use bundle::{Bundle, Error};
