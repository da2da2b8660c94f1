//! Whether a failed system call says anything about the file.

use std::io;

/// A device does not answer; the system or the process has too many open files. The same on every architecture of
/// Linux.
#[cfg(not(windows))]
const NOT_THE_FILE: [i32; 3] = [5, 23, 24];

/// ERROR_TOO_MANY_OPEN_FILES, ERROR_CRC, ERROR_IO_DEVICE, ERROR_NO_SYSTEM_RESOURCES, ERROR_COMMITMENT_LIMIT.
#[cfg(windows)]
const NOT_THE_FILE: [i32; 5] = [4, 23, 1117, 1450, 1455];

/// Whether the file is not to blame for this error: the process or the system has too many open files or too
/// little memory, or a device does not answer.
pub fn is_exhaustion(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|code| NOT_THE_FILE.contains(&code))
}
