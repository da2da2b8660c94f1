//! Runs the fuzz target that `KPACK_FUZZ_TARGET` names.
#![no_main]

mod mutate;

use std::sync::LazyLock;

use kpack_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("KPACK_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.0 == name);
    *target.expect("KPACK_FUZZ_TARGET names a target")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.1)(bytes));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let has_fields = matches!(TARGET.0, "code_object" | "linked" | "object");
    if has_fields && mutate::field(&mut data[..size], seed).is_some() && size <= max_size {
        return size;
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
});
