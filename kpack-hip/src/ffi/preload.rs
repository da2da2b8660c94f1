//! The functions of `libkpack_hip.so`. With `LD_PRELOAD`, those with the runtime's names are in front of the
//! runtime's. Binaries that are linked with `libkpack_hip.so` and `--wrap` call those that begin with `__wrap_`.

use std::ffi::{CStr, c_void};
use std::mem::transmute;

use super::{Module, Register, Runtime, Unregister, objects, register, unregister};

const REGISTER: &CStr = c"__hipRegisterFatBinary";
const UNREGISTER: &CStr = c"__hipUnregisterFatBinary";

/// As the HIP runtime's function; see [`register`].
///
/// # Safety
/// As the HIP runtime's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __hipRegisterFatBinary(wrapper: *const c_void) -> Module {
    let Some(real) = objects::next(REGISTER, wrapper as usize) else {
        return std::ptr::null_mut();
    };
    let runtime = Runtime {
        // SAFETY: these functions of HIP runtimes have these types.
        register: unsafe { transmute::<usize, Register>(real) },
        // The one of the same runtime.
        unregister: match objects::next(UNREGISTER, wrapper as usize) {
            // SAFETY: as above.
            Some(real) => unsafe { transmute::<usize, Unregister>(real) },
            None => return std::ptr::null_mut(),
        },
    };
    // SAFETY: by contract.
    unsafe { register(wrapper, runtime) }
}

/// As the HIP runtime's function; see [`unregister`].
///
/// # Safety
/// As the HIP runtime's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __hipUnregisterFatBinary(module: Module) {
    let real = || {
        let real = objects::next(UNREGISTER, 0)?;
        // SAFETY: the function of HIP runtimes has this type.
        Some(unsafe { transmute::<usize, Unregister>(real) })
    };
    // SAFETY: by contract.
    unsafe { unregister(module, real) }
}

/// In place of `__hipRegisterFatBinary`, for linkers with `--wrap`.
///
/// # Safety
/// As the HIP runtime's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap___hipRegisterFatBinary(wrapper: *const c_void) -> Module {
    // SAFETY: by contract.
    unsafe { __hipRegisterFatBinary(wrapper) }
}

/// In place of `__hipUnregisterFatBinary`, for linkers with `--wrap`.
///
/// # Safety
/// As the HIP runtime's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap___hipUnregisterFatBinary(module: Module) {
    // SAFETY: by contract.
    unsafe { __hipUnregisterFatBinary(module) }
}
