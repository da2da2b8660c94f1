//! See `kpack_fuzz::archive`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpack_fuzz::archive(bytes));
