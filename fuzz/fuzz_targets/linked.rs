//! See `kpack_fuzz::linked`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpack_fuzz::linked(bytes));
