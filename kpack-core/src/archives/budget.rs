//! Limits the memory for code objects.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::parallel::lock;

/// Limit for code objects in flight and windows of decompressors, in bytes. What is larger goes alone.
const IN_FLIGHT: u64 = 96 << 20;
/// The code objects that are in flight beside a large window.
const BESIDE_WINDOW: u64 = 12 << 20;

/// Limit for memory that several runs may share.
#[derive(Default)]
pub struct Budget {
    used: Mutex<Used>,
    freed: Condvar,
}

/// Bytes in use.
#[derive(Default)]
struct Used {
    code_objects: u64,
    windows: u64,
}

/// A share of the budget, returned on drop.
pub struct Permit<'a> {
    budget: &'a Budget,
    share: Used,
}

impl Budget {
    /// Waits until a code object of `size` bytes fits, or no other is in flight.
    pub fn take(&self, size: u64) -> Permit<'_> {
        let share = Used { code_objects: size, windows: 0 };
        self.wait(share, &|used| {
            let room = IN_FLIGHT.saturating_sub(used.windows).max(BESIDE_WINDOW);
            used.code_objects > 0 && used.code_objects + size > room
        })
    }

    /// Waits until a window of `size` bytes fits, or no other is open and no code object in flight is in its
    /// way.
    pub(super) fn take_window(&self, size: u64) -> Permit<'_> {
        let share = Used { code_objects: 0, windows: size };
        self.wait(share, &|used| {
            let windows = used.windows + size;
            let room = IN_FLIGHT.saturating_sub(windows).max(BESIDE_WINDOW);
            size > 0 && (used.windows > 0 && windows > IN_FLIGHT || used.code_objects > room)
        })
    }

    fn wait(&self, share: Used, is_full: &dyn Fn(&Used) -> bool) -> Permit<'_> {
        let used = lock(&self.used);
        let mut used = self
            .freed
            .wait_while(used, |used| is_full(used))
            .unwrap_or_else(PoisonError::into_inner);
        used.code_objects += share.code_objects;
        used.windows += share.windows;
        let budget = self;
        Permit { budget, share }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut used = lock(&self.budget.used);
        used.code_objects -= self.share.code_objects;
        used.windows -= self.share.windows;
        self.budget.freed.notify_all();
    }
}
