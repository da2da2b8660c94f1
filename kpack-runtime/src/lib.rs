//! The loader that the HIP runtime calls: `librocm_kpack.so`, the C interface of the crate `kpack`.
//!
//! Rust programs depend on `kpack` instead. With this crate in them, they would export the functions of ROCm's loader
//! and take its place.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod ffi;
