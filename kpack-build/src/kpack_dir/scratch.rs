//! Scratch files.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// A file in `directory` that has no name and is gone when it is closed: for what is not written to
/// an archive yet. On the file system of the archives, since that has room for them.
pub(crate) fn scratch_file(directory: &Path) -> Result<File, Error> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".scratch-{}-{number}.tmp", std::process::id()));
        let created = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        match created {
            Ok(file) => {
                fs::remove_file(&path).map_err(|e| Error::io(&path, "remove", e))?;
                return Ok(file);
            }
            // A process with this number left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(directory, "create a scratch file in", error)),
        }
    }
}
