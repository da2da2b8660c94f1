//! Runs work on several threads. A run has one limit for all its threads, however deeply its work
//! is nested, and uses fewer if the system refuses more. Existing crates start all threads at once
//! or panic, and every build script would compile them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, Scope};

/// How many more threads may be started. Negative while threads that waited go on before others
/// have ended: waiting for those as well could block a thread that holds a lock.
type Free = Arc<AtomicIsize>;

/// The limit for work outside of any run.
static ALL_PROCESSORS: LazyLock<Free> = LazyLock::new(|| free(processors()));

thread_local! {
    static OWN: RefCell<Option<Free>> = const { RefCell::new(None) };
}

/// The default number of threads.
pub fn processors() -> NonZeroUsize {
    // Asking takes eighteen system calls.
    static KNOWN: LazyLock<NonZeroUsize> =
        LazyLock::new(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
    *KNOWN
}

fn free(jobs: NonZeroUsize) -> Free {
    Arc::new(AtomicIsize::new(jobs.get() as isize - 1))
}

/// Runs `work` and everything it calls on at most `jobs` threads, including this one. Inside such
/// work, the outer limit applies.
pub fn with_jobs<R>(jobs: NonZeroUsize, work: impl FnOnce() -> R) -> R {
    if OWN.with_borrow(Option::is_some) { work() } else { within(free(jobs), work) }
}

fn within<R>(free: Free, work: impl FnOnce() -> R) -> R {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            OWN.set(None);
        }
    }
    OWN.set(Some(free));
    let _restore = Restore;
    work()
}

/// Permission for one thread, returned on drop.
struct Share(Free);

impl Share {
    fn take(free: &Free) -> Option<Self> {
        let less = |free: isize| (free > 0).then(|| free - 1);
        let taken = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.ok().map(|_| Self(free.clone()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `work` on each of `items`, which threads draw one at a time. This thread takes part, so all
/// work gets done even if no other thread can be started.
pub fn for_each<T: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let free = OWN.with_borrow(Clone::clone);
    let queue = Queue {
        items: Mutex::new(items),
        work,
        free: free.unwrap_or_else(|| ALL_PROCESSORS.clone()),
    };
    thread::scope(|scope| {
        queue.work_off(scope);
        // While this thread waits for its helpers, another may run.
        queue.free.fetch_add(1, Ordering::Relaxed);
    });
    queue.free.fetch_sub(1, Ordering::Relaxed);
}

struct Queue<I, W> {
    items: Mutex<I>,
    work: W,
    free: Free,
}

impl<T: Send, I: Iterator<Item = T> + Send, W: Fn(T) + Sync> Queue<I, W> {
    fn work_off<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        loop {
            let (item, is_worth_a_thread) = {
                let mut items = lock(&self.items);
                (items.next(), items.size_hint().1 != Some(0))
            };
            let Some(item) = item else { return };
            // Try each time: threads that were busy elsewhere may have ended.
            let share = is_worth_a_thread.then(|| Share::take(&self.free));
            if let Some(share) = share.flatten() {
                let help = move || within(share.0.clone(), || self.work_off(scope));
                // If the system has no thread to spare, this one goes on alone.
                let _ = Builder::new().spawn_scoped(scope, help);
            }
            (self.work)(item);
        }
    }
}

/// Maps `items` with `work`, in order.
pub fn map<T: Send, R: Send>(
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let mut results = Vec::new();
    in_order(items.into_iter(), work, |result| results.push(result));
    results
}

/// Gives what `work` makes of each of `items` to `take`, in order, and as soon as all before it are taken.
fn in_order<T: Send, R: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
    take: impl FnMut(R) + Send,
) {
    let done = Mutex::new(Done { taken: 0, waiting: VecDeque::new(), take });
    for_each(items.enumerate(), |(index, item)| {
        let result = work(item);
        lock(&done).add(index, result);
    });
}

/// Results that are taken in order.
struct Done<R, F> {
    /// How many were taken.
    taken: usize,
    /// Those after them, as far as they are known.
    waiting: VecDeque<Option<R>>,
    take: F,
}

impl<R, F: FnMut(R)> Done<R, F> {
    fn add(&mut self, index: usize, result: R) {
        let at = index - self.taken;
        let size = self.waiting.len().max(at + 1);
        self.waiting.resize_with(size, || None);
        self.waiting[at] = Some(result);
        while let Some(Some(_)) = self.waiting.front() {
            self.taken += 1;
            self.waiting.pop_front().flatten().into_iter().for_each(&mut self.take);
        }
    }
}

/// Like [`map`], but starts nothing more after a failure.
///
/// # Errors
/// The first failure, in the order of `items`.
pub fn try_map<T: Send, R: Send, E: Send>(
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    work: impl Fn(T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let mut results = Vec::new();
    try_in_order(items.into_iter(), work, |result| results.push(result))?;
    Ok(results)
}

/// Gives what `work` makes of each of `items` to `take`, in order, and as soon as all before it are taken. Starts
/// nothing more after a failure.
///
/// # Errors
/// The first failure, in the order of `items`. Everything before it was taken.
pub fn try_in_order<T: Send, R: Send, E: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<R, E> + Sync,
    mut take: impl FnMut(R) + Send,
) -> Result<(), E> {
    let is_failed = AtomicBool::new(false);
    let items = items.take_while(|_| !is_failed.load(Ordering::Relaxed));
    let work = |item| {
        let result = work(item);
        is_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result
    };
    let mut first = Ok(());
    in_order(items, work, |result| match result {
        Ok(result) if first.is_ok() => take(result),
        Err(failure) if first.is_ok() => first = Err(failure),
        _ => {}
    });
    first
}

/// Locks even after a panic in another thread: the data that these locks guard is consistent at any
/// time.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// Counts the threads that are working.
    #[derive(Default)]
    struct Meter {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Meter {
        fn work(&self) {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            self.now.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn results_keep_their_order_and_no_more_threads_work_than_allowed() {
        for jobs in [1, 2, 5] {
            let meter = Meter::default();
            let results = with_jobs(NonZeroUsize::new(jobs).unwrap(), || {
                map(0..100, |item| {
                    meter.work();
                    item
                })
            });
            assert_eq!(results, (0..100).collect::<Vec<_>>());
            assert!(meter.most.into_inner() <= jobs);
        }
    }

    #[test]
    fn nested_work_shares_the_threads_of_the_outer_work() {
        let meter = Meter::default();
        let results = with_jobs(NonZeroUsize::MIN, || {
            map(0..5, |outer| {
                map(0..5, |inner| {
                    meter.work();
                    5 * outer + inner
                })
            })
        });
        assert_eq!(results.concat(), (0..25).collect::<Vec<_>>());
        assert_eq!(meter.most.into_inner(), 1);
    }

    #[test]
    fn a_thread_that_has_ended_elsewhere_helps() {
        with_jobs(NonZeroUsize::new(2).unwrap(), || {
            for_each([false, true].into_iter(), |long| {
                // Short work ends at once. Long work continues until two threads share it, even if
                // a busy machine starts the second one late.
                let meter = Meter::default();
                let items = (0..10_000).take_while(|_| meter.most.load(Ordering::SeqCst) < 2);
                for_each(items.filter(|_| long), |_| meter.work());
                assert_eq!(meter.most.into_inner(), if long { 2 } else { 0 });
            });
        });
    }

    #[test]
    fn what_is_before_a_failure_is_taken_in_order() {
        for jobs in [1, 2, 5] {
            let mut taken = Vec::new();
            let result = with_jobs(NonZeroUsize::new(jobs).unwrap(), || {
                let work = |item: u64| {
                    thread::sleep(Duration::from_millis(item % 3));
                    if item % 10 == 9 { Err(item) } else { Ok(item) }
                };
                try_in_order(0..100, work, |item| taken.push(item))
            });
            assert_eq!((result, taken), (Err(9), Vec::from_iter(0..9)));
        }
    }

    #[test]
    fn after_a_failure_nothing_more_begins() {
        let begun = AtomicUsize::new(0);
        let result = with_jobs(NonZeroUsize::MIN, || {
            try_map(0..10, |item| {
                begun.fetch_add(1, Ordering::SeqCst);
                if item == 3 { Err(item) } else { Ok(item) }
            })
        });
        assert_eq!((result, begun.into_inner()), (Err(3), 4));
    }
}
