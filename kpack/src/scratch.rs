//! What a thread keeps for decompressing.

use std::cell::RefCell;

use crate::decoder::Decoder;

/// A decompression context and a frame. A thread keeps one from one code object to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) decoder: Decoder,
    frame: Vec<u8>,
}

/// The most memory that a thread keeps for frames, in bytes.
const KEPT: usize = 4 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    pub(crate) fn with<T>(mut work: impl FnMut(&mut Self) -> T) -> T {
        let done = SCRATCH.try_with(|scratch| {
            let mut scratch = scratch.try_borrow_mut().ok()?;
            let result = work(&mut scratch);
            if scratch.frame.capacity() > KEPT {
                scratch.frame = Vec::new();
            }
            Some(result)
        });
        match done {
            Ok(Some(result)) => result,
            // The thread is ending, and its context is gone.
            _ => work(&mut Self::default()),
        }
    }

    /// Room for a frame of `size` bytes.
    pub(crate) fn frame(&mut self, size: u64) -> Option<&mut [u8]> {
        let size = usize::try_from(size).ok()?;
        if let Some(more) = size.checked_sub(self.frame.len()) {
            self.frame.try_reserve_exact(more).ok()?;
            self.frame.resize(size, 0);
        }
        self.frame.get_mut(..size)
    }

    /// The decoder, and the frame of `size` bytes that was read.
    pub(crate) fn parts(&mut self, size: u64) -> (&mut Decoder, &[u8]) {
        (&mut self.decoder, &self.frame[..size as usize])
    }
}
