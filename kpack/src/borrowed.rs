//! A caller's buffer for a code object.

#![allow(unsafe_code)]

use zstd::zstd_safe::WriteBuf;

use crate::archive::Room;

/// A caller's buffer.
pub(crate) struct Borrowed<'a>(pub(crate) &'a mut [u8]);

impl Room for Borrowed<'_> {
    fn written(&mut self) -> &mut [u8] {
        self.0
    }
}

// SAFETY: all its bytes may be written, and are initialised.
unsafe impl WriteBuf for Borrowed<'_> {
    fn as_slice(&self) -> &[u8] {
        self.0
    }

    fn capacity(&self) -> usize {
        self.0.len()
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    unsafe fn filled_until(&mut self, _length: usize) {}
}
