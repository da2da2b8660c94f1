//! Handles signals that end a run: it cleans up first.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Error;

static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Signal handlers store the number of a signal that asks the process to end here. The current
/// write then fails, and its output is removed.
pub fn signal() -> Arc<AtomicUsize> {
    SIGNAL.get_or_init(Arc::default).clone()
}

/// Fails if a signal asked the process to end; `path` is the file to read or write next.
///
/// # Errors
/// [`Error::Io`].
pub fn check(path: &Path, action: &'static str) -> Result<(), Error> {
    asked().map_err(|error| Error::io(path, action, error))
}

/// Not an error of the kind `Interrupted`, because callers retry after that.
pub(crate) fn asked() -> io::Result<()> {
    let signal = SIGNAL.get().map_or(0, |signal| signal.load(Ordering::Relaxed));
    match signal {
        0 => Ok(()),
        signal => Err(io::Error::other(format!("stopped by signal {signal}"))),
    }
}

/// A writer that fails after a signal asked the process to end.
#[derive(Debug)]
pub struct Watched<W>(pub W);

impl<W: io::Write> io::Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        asked()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
