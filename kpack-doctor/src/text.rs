//! Text files of others, which can be anything.

use std::io::Read;
use std::path::Path;

use kpack_split::input;

/// The most bytes of a small text file.
const MAX_SMALL: u64 = 1 << 20;

/// The content of a text file, if there is a regular one of at most `size` bytes. A name in it can have any bytes.
pub(crate) fn text(path: &Path, size: u64) -> Option<String> {
    // Otherwise a list is read in many small pieces.
    let mut bytes = Vec::with_capacity(16 << 10);
    input::open(path).ok()?.take(size + 1).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes);
    let text = text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    (text.len() as u64 <= size).then_some(text)
}

/// The content of a small text file, such as a configuration.
pub(crate) fn small_text(path: &Path) -> Option<String> {
    text(path, MAX_SMALL)
}
