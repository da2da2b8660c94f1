//! See `kpack_fuzz::marker`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpack_fuzz::marker(bytes));
