//! Paths of the build machine in files that are to leave it.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// How many bytes are read at a time.
const CHUNK: usize = 1 << 20;

/// The first of `places` whose path is in a file, followed by a slash or nothing that a name goes on
/// with.
pub(super) fn find<'a>(path: &Path, places: &'a [PathBuf]) -> Result<Option<&'a Path>, Error> {
    let longest = places.iter().map(|place| place.as_os_str().len()).max();
    let Some(longest) = longest else {
        return Ok(None);
    };
    let failed = |e| Error::io(path, "read", e);
    let mut file = File::open(path).map_err(failed)?;
    let mut window = Vec::new();
    loop {
        // What may be the beginning of a path is looked at again with what follows.
        let keep = window.len().min(longest);
        window.drain(..window.len() - keep);
        let read = Read::by_ref(&mut file)
            .take(CHUNK as u64)
            .read_to_end(&mut window);
        let end = read.map_err(failed)? == 0;
        for place in places {
            if contains(&window, place.as_os_str().as_bytes(), end) {
                return Ok(Some(place));
            }
        }
        if end {
            return Ok(None);
        }
    }
}

fn contains(bytes: &[u8], path: &[u8], end: bool) -> bool {
    let mut rest = bytes;
    while let Some(at) = find_slash(rest, path) {
        match rest.get(at + path.len()) {
            Some(next) if next.is_ascii_alphanumeric() || b"-_.+".contains(next) => {}
            None if !end => return false,
            _ => return true,
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Where `path`, which begins with a slash, is in `bytes`.
fn find_slash(bytes: &[u8], path: &[u8]) -> Option<usize> {
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    starts
        .map(|(at, _)| at)
        .find(|at| bytes[*at..].starts_with(path))
}
