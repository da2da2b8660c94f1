//! See `kpack_fuzz::toc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpack_fuzz::toc(bytes));
