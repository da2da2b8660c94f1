//! Text files of others, which can be anything.

use std::io::Read;
use std::path::Path;

use kpack_split::input;

/// The most bytes of a small text file.
const MAX_SMALL: u64 = 1 << 20;

/// The bytes of a regular file of at most `size` bytes.
fn bytes(path: &Path, size: u64) -> Option<Vec<u8>> {
    // Otherwise a list is read in many small pieces.
    let mut bytes = Vec::with_capacity(16 << 10);
    input::open(path).ok()?.take(size + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= size).then_some(bytes)
}

/// The content of a text file, if there is a regular one of at most `size` bytes.
pub(crate) fn text(path: &Path, size: u64) -> Option<String> {
    String::from_utf8(bytes(path, size)?).ok()
}

/// The content of a small text file, such as a configuration.
pub(crate) fn small_text(path: &Path) -> Option<String> {
    text(path, MAX_SMALL)
}

/// The content of a list of files, if there is a regular one of at most `size` bytes. The names of files can have any bytes,
/// and those that are not UTF-8 keep no other from being found.
pub(crate) fn lossy_text(path: &Path, size: u64) -> Option<String> {
    let text = String::from_utf8(bytes(path, size)?);
    Some(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}
