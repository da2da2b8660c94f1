//! A shim between split binaries and HIP runtimes that do not read markers.
//!
//! The start-up code of a binary passes each wrapper to `__hipRegisterFatBinary`. The shim replaces that function. It
//! gives the runtime a fat wrapper with the code objects that the loader finds for this machine's GPUs, and forwards
//! everything else. There is a shared library, `libkpack_hip.so`, and a static library (`link`). You can preload the
//! shared one with `LD_PRELOAD`, or link a binary with either and `--wrap=__hipRegisterFatBinary`.

#![deny(unsafe_op_in_unsafe_fn)]

mod bundle;
pub mod ffi;

pub use bundle::{Bundle, Error};
