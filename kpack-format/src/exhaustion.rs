//! Whether a failed system call says anything about the file.

use std::io;

// The same on every architecture of Linux.
const EIO: i32 = 5;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Whether the file is not to blame for this error: the process or the system has too many open files or too
/// little memory, or a device does not answer.
pub fn is_exhaustion(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(error.raw_os_error(), Some(EIO | ENFILE | EMFILE))
}
