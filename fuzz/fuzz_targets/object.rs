//! See `kpack_fuzz::object`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpack_fuzz::object(bytes));
