//! What callers pass to the C interface, checked, and where they want results.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;

use kpack::internal::Error;
use kpack_format::target_id::TRIPLE;

use super::buffer::Buffer;
use super::kpack_error_t;

pub(super) const INVALID: kpack_error_t = kpack_error_t::KPACK_ERROR_INVALID_ARGUMENT;

pub(super) fn code(error: Error) -> kpack_error_t {
    error.code()
}

/// Catches panics. A panic is a bug of this library: the panic handler prints it on standard error, and the
/// caller gets the closest error.
pub(super) fn guard(work: impl FnOnce() -> Result<(), kpack_error_t>) -> kpack_error_t {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => kpack_error_t::KPACK_SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => kpack_error_t::KPACK_ERROR_IO_ERROR,
    }
}

/// The string at `pointer`, without NUL.
///
/// # Safety
/// It is null or a string that lives for `'a`.
pub(super) unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a [u8], kpack_error_t> {
    if pointer.is_null() {
        Err(INVALID)
    } else {
        // SAFETY: by contract.
        Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
    }
}

/// The ISAs of a list, without null, empty and prefix-only entries. Fails if none is left.
///
/// # Safety
/// `list` is null or has `count` elements, each of which is null or a string that lives for `'a`.
pub(super) unsafe fn isas<'a>(
    list: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a [u8]>, kpack_error_t> {
    if list.is_null() {
        return Err(INVALID);
    }
    // SAFETY: by contract.
    let list = unsafe { slice::from_raw_parts(list, count) };
    // SAFETY: by contract.
    let isas: Vec<&[u8]> = list
        .iter()
        .filter_map(|isa| unsafe { text(*isa) }.ok())
        .filter(|isa| !isa.is_empty() && *isa != TRIPLE.as_bytes())
        .collect();
    if isas.is_empty() { Err(INVALID) } else { Ok(isas) }
}

/// Memory for a result of the caller, which may be uninitialised.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// It is null or may be written.
    pub(super) unsafe fn new(pointer: *mut T) -> Result<Self, kpack_error_t> {
        NonNull::new(pointer).map(Self).ok_or(INVALID)
    }

    pub(super) fn set(self, value: T) {
        // SAFETY: `new` had this contract.
        unsafe { self.0.write(value) };
    }
}

/// Memory for the results of the caller: a code object and its size.
pub(super) struct Output {
    data: Out<*mut c_void>,
    size: Out<usize>,
}

impl Output {
    /// # Safety
    /// Each is null or may be written.
    pub(super) unsafe fn new(
        data: *mut *mut c_void,
        size: *mut usize,
    ) -> Result<Self, kpack_error_t> {
        // SAFETY: by contract.
        let (data, size) = unsafe { (Out::new(data)?, Out::new(size)?) };
        Ok(Self { data, size })
    }

    pub(super) fn set(self, buffer: Buffer) {
        let (data, size) = buffer.into_raw();
        self.data.set(data);
        self.size.set(size);
    }
}
