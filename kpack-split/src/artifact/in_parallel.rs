//! Work on parts of a list at once, by as many threads as there are processors, however many callers
//! there are.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Fewer items than this are not worth a thread.
const FEWEST_EACH: usize = 32;

/// Threads that work for some caller. Trees are read by several callers at once, and each would
/// start as many as there are processors.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// A claim on threads, given back when it is dropped.
struct Claim(usize);

impl Claim {
    /// As many threads of `processors` as nobody has, but one at least.
    fn new(processors: usize) -> Self {
        let free = |at_work: usize| processors.saturating_sub(at_work).max(1);
        let add = |at_work| Some(at_work + free(at_work));
        let before = AT_WORK.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        Self(before.map_or(1, free))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What `work` makes of consecutive parts of `items`, in their order.
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    let claim = Claim::new(thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let size = items.len().div_ceil(claim.0).max(FEWEST_EACH);
    if items.len() <= size {
        return items.chunks(size).map(work).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let parts = items.chunks(size);
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn parts_keep_their_order_and_threads_are_bounded() {
        const CALLERS: usize = 16;
        let items: Vec<usize> = (0..1000).collect();
        let (working, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let sum = |part: &[usize]| {
            let now = working.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            working.fetch_sub(1, Ordering::SeqCst);
            part.to_vec()
        };
        thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| assert_eq!(in_parallel(&items, sum).concat(), items));
            }
        });
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let most = most.load(Ordering::SeqCst);
        assert!(most <= CALLERS + processors, "{most}");
        assert!(in_parallel(&[] as &[usize], sum).is_empty());
    }
}
