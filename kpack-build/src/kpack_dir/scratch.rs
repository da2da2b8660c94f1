//! Scratch files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// Linux, "open(2)": a file without a name. The flag is two, of which one has another number on some
/// machines.
const O_TMPFILE: i32 = 0o20_000_000
    | match cfg!(any(target_arch = "x86_64", target_arch = "riscv64")) {
        true => 0o200_000,
        false => 0o40_000,
    };

/// A file in `directory` that has no name and is gone when it is closed: for what is not written to
/// an archive yet. On the file system of the archives, since that has room for them.
pub fn scratch_file(directory: &Path) -> Result<File, Error> {
    let mut nameless = File::options();
    nameless.read(true).write(true).custom_flags(O_TMPFILE);
    if let Ok(file) = nameless.open(directory) {
        return Ok(file);
    }
    // Not every file system has them. A run that is killed between the next two steps leaves one.
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
