//! The shim for binaries that are linked with `--wrap=__hipRegisterFatBinary` and
//! `--wrap=__hipUnregisterFatBinary`. The linker calls these functions `__wrap_…`, and the HIP runtime's
//! own ones `__real_…`. `cargo xtask dist` gives them these names: `kpack-hip` also has functions of these names.

#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::c_void;

use kpack_hip::ffi::{Module, Runtime, register, unregister};

unsafe extern "C" {
    fn __real___hipRegisterFatBinary(wrapper: *const c_void) -> Module;
    fn __real___hipUnregisterFatBinary(module: Module);
}

// The linker finds them, and does not export them: each library has its own.
core::arch::global_asm!(
    ".hidden kpack_hip_register",
    ".hidden kpack_hip_unregister",
    // An ELF note tells `kpack doctor` that a binary has the shim. Linkers and `strip` keep it.
    ".pushsection .note.kpack_hip,\"a\",%note",
    ".balign 4",
    ".long 6, 0, 1",
    ".asciz \"kpack\"",
    ".balign 4",
    ".popsection",
);

/// In place of `__hipRegisterFatBinary`.
///
/// # Safety
/// As the HIP runtime's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_hip_register(wrapper: *const c_void) -> Module {
    let runtime = Runtime {
        register: __real___hipRegisterFatBinary,
        unregister: __real___hipUnregisterFatBinary,
    };
    // SAFETY: by contract.
    unsafe { register(wrapper, runtime) }
}

/// In place of `__hipUnregisterFatBinary`.
///
/// # Safety
/// As the HIP runtime's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_hip_unregister(module: Module) {
    // SAFETY: by contract.
    unsafe { unregister(module, || Some(__real___hipUnregisterFatBinary)) }
}
