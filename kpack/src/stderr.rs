//! What the loader says on standard error.

use std::io::Write as _;
use std::path::{Component, MAIN_SEPARATOR, Path, Prefix};

/// A path, safe to print on a terminal, as people write it.
pub(crate) fn escaped(path: &Path) -> String {
    let text = path.to_string_lossy();
    let first = path.components().next();
    let text = match first {
        // Windows returns the real path of a file as `\\?\C:\…`.
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::VerbatimDisk(_)) => {
            &text[r"\\?\".len()..]
        }
        _ => &text,
    };
    let characters = text.chars().map(|c| match c {
        MAIN_SEPARATOR => c.to_string(),
        c => c.escape_debug().to_string(),
    });
    characters.collect()
}

/// Prints on standard error, if there is one.
pub(crate) fn say(text: &str) {
    let text = format!("kpack: {text}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}
