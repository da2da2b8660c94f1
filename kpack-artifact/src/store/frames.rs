//! Compresses a stream of bytes as frames of zstd, several at once, in the order of the stream.
//!
//! A frame begins with a file as often as that costs nothing: whoever has the index of a file's frame can read it
//! alone. Frames depend on the bytes alone, so every machine writes the same ones.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Condvar, Mutex, PoisonError};

use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

use kpack_core::parallel;

/// A frame ends with the first file after this many bytes.
pub(super) const ENOUGH: usize = 4 << 20;

/// The most bytes of a frame: memory must not grow with the files.
pub(super) const MOST: usize = 8 << 20;

/// Each thread holds two frames. More than this many would need too much memory.
const MAX_JOBS: NonZeroUsize = NonZeroUsize::new(6).unwrap();

/// A part of the stream.
#[derive(Default)]
pub(super) struct Part {
    /// At most [`MOST`] bytes.
    pub(super) bytes: Vec<u8>,
    /// Whether a file of the store ends with it.
    pub(super) is_last: bool,
}

/// Compresses what `produce` makes, a part at a time, until it makes none, and gives the frames to `consume` in
/// order.
///
/// # Errors
/// The first one; `failed` makes one of the compressor's.
pub(super) fn compress<E: Send>(
    level: i32,
    jobs: NonZeroUsize,
    mut produce: impl FnMut(&mut Part) -> Result<bool, E> + Send,
    consume: impl FnMut(&[u8], bool) -> Result<(), E> + Send,
    failed: impl Fn(io::Error) -> E + Sync,
) -> Result<(), E> {
    let jobs = jobs.min(MAX_JOBS);
    let queue = Queue {
        order: Mutex::new(Order { next: 0, ready: BTreeMap::new(), consume, result: Ok(()) }),
        written: Condvar::new(),
        buffers: Mutex::new(Vec::new()),
    };
    let parts = (0..).map_while(|number| {
        if !queue.wait(number, 2 * jobs.get()) {
            return None;
        }
        let mut part = Part { bytes: queue.buffer(), is_last: false };
        match produce(&mut part) {
            Ok(true) => Some((number, part)),
            Ok(false) => None,
            Err(error) => {
                queue.fail(error);
                None
            }
        }
    });
    parallel::with_jobs(jobs, || {
        parallel::for_each(parts, |(number, part): (usize, Part)| {
            let mut frame = queue.buffer();
            let bound = compress_bound(part.bytes.len());
            let compressed = frame
                .try_reserve(bound)
                .map_err(io::Error::from)
                .and_then(|()| compressor(level)?.compress_to_buffer(&part.bytes, &mut frame));
            match compressed {
                Ok(_) => queue.add(number, frame, part.is_last),
                Err(error) => queue.fail(failed(error)),
            }
            queue.give_back(part.bytes);
        });
    });
    let order = queue.order.into_inner();
    order.unwrap_or_else(PoisonError::into_inner).result
}

fn compressor(level: i32) -> io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(level)?;
    // Readers without the index notice damage.
    compressor.include_checksum(true)?;
    Ok(compressor)
}

struct Queue<C, E> {
    order: Mutex<Order<C, E>>,
    /// Signals that frames were written, or that there was an error.
    written: Condvar,
    /// Memory to use again.
    buffers: Mutex<Vec<Vec<u8>>>,
}

struct Order<C, E> {
    /// The number of the next frame to be written.
    next: usize,
    ready: BTreeMap<usize, (Vec<u8>, bool)>,
    consume: C,
    result: Result<(), E>,
}

impl<E, C: FnMut(&[u8], bool) -> Result<(), E>> Queue<C, E> {
    /// Waits until part `number` is among the next `most`: one slow frame must not let others fill the memory. The
    /// thread that compresses the next frame never waits. Returns whether to go on.
    fn wait(&self, number: usize, most: usize) -> bool {
        let order = parallel::lock(&self.order);
        let is_far = |order: &mut Order<C, E>| order.result.is_ok() && number >= order.next + most;
        let order = self.written.wait_while(order, is_far);
        let order = order.unwrap_or_else(PoisonError::into_inner);
        order.result.is_ok()
    }

    fn add(&self, number: usize, frame: Vec<u8>, is_last: bool) {
        let mut order = parallel::lock(&self.order);
        let order = &mut *order;
        order.ready.insert(number, (frame, is_last));
        while let Some((frame, is_last)) = order.ready.remove(&order.next) {
            if order.result.is_ok() {
                order.result = (order.consume)(&frame, is_last);
            }
            order.next += 1;
            self.give_back(frame);
        }
        self.written.notify_all();
    }

    fn fail(&self, error: E) {
        let mut order = parallel::lock(&self.order);
        if order.result.is_ok() {
            order.result = Err(error);
        }
        self.written.notify_all();
    }

    fn buffer(&self) -> Vec<u8> {
        parallel::lock(&self.buffers).pop().unwrap_or_default()
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        parallel::lock(&self.buffers).push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compress_parts(jobs: usize, parts: usize) -> Result<Vec<u8>, String> {
        let (mut made, mut out) = (0_u8, Vec::new());
        let compressed = compress(
            3,
            NonZeroUsize::new(jobs).unwrap(),
            |part| {
                part.bytes.resize(1000, made);
                made += 1;
                Ok(usize::from(made) <= parts)
            },
            |frame, _| {
                out.extend_from_slice(frame);
                Ok(())
            },
            |error| error.to_string(),
        );
        compressed.map(|()| out)
    }

    #[test]
    fn frames_come_in_order_and_do_not_depend_on_the_number_of_threads() {
        let one = compress_parts(1, 100).unwrap();
        assert_eq!(one, compress_parts(5, 100).unwrap());
        let expected: Vec<u8> = (0..100).flat_map(|byte| [byte; 1000]).collect();
        assert_eq!(zstd::decode_all(&one[..]).unwrap(), expected);
    }

    #[test]
    fn an_error_ends_everything() {
        let mut written = 0;
        let failed = compress(
            3,
            NonZeroUsize::new(3).unwrap(),
            |part| {
                part.bytes.push(0);
                Ok(true)
            },
            |_, _| {
                written += 1;
                if written < 10 { Ok(()) } else { Err("full") }
            },
            |_| "compressor",
        );
        assert_eq!(failed, Err("full"));
    }
}
