//! Opens files that anybody may have put there.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use crate::platform;

/// Opens the regular file at `path`; returns it with its metadata. Does not wait for a pipe.
pub(crate) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let file = platform::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok((file, metadata))
}

/// Reads the regular file at `path`, of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    let size = metadata.len();
    if size > most {
        let what = format!("it has {size} bytes (expected at most {most})");
        return Err(io::Error::other(what));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
