//! Memory for code objects that C owns.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use zstd::zstd_safe::WriteBuf;

use kpack::internal::{Memory, Room};

/// Memory from malloc(3), freed unless it is given away.
pub(super) struct Buffer {
    start: NonNull<u8>,
    capacity: usize,
    /// The number of bytes written so far.
    length: usize,
}

impl Buffer {
    /// Start and size, to be freed with free(3).
    pub(super) fn into_raw(self) -> (*mut c_void, usize) {
        let parts = (self.start.as_ptr().cast(), self.length);
        std::mem::forget(self);
        parts
    }

    fn new(start: *mut c_void, capacity: usize, length: usize) -> Option<Self> {
        Some(Self { start: NonNull::new(start.cast())?, capacity, length })
    }
}

impl Memory for Buffer {
    fn with_capacity(size: usize) -> Option<Self> {
        // SAFETY: malloc has no precondition. A size of zero may give null, which counts as an error.
        Self::new(unsafe { libc::malloc(size.max(1)) }, size, 0)
    }

    fn zeroed(size: usize) -> Option<Self> {
        // SAFETY: calloc has no precondition.
        Self::new(unsafe { libc::calloc(size.max(1), 1) }, size, size)
    }
}

impl Room for Buffer {
    fn written(&mut self) -> &mut [u8] {
        // SAFETY: these bytes were written, and the slice borrows `self`.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

// SAFETY: `start` is valid for writes of `capacity` bytes, of which `length` were written.
unsafe impl WriteBuf for Buffer {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: these bytes were written.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    unsafe fn filled_until(&mut self, length: usize) {
        self.length = length;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it came from malloc or calloc, and was not given away.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}
