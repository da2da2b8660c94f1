//! See `kpack_fuzz::bundle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpack_fuzz::bundle(bytes));
