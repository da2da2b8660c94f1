//! Parts of files that tests look for or change.

/// Where a part starts for the first time.
///
/// # Panics
/// It is not there.
#[track_caller]
pub fn position(bytes: &[u8], part: impl AsRef<[u8]>) -> usize {
    let part = part.as_ref();
    find(bytes, part).unwrap_or_else(|| panic!("there is no `{}`", String::from_utf8_lossy(part)))
}

/// Whether a part is there.
pub fn contains(bytes: &[u8], part: impl AsRef<[u8]>) -> bool {
    find(bytes, part.as_ref()).is_some()
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// The bytes with another part in the place of one that is there once.
///
/// # Panics
/// It is not there once.
#[track_caller]
pub fn patched(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let place = position(bytes, old);
    let rest = &bytes[place + old.len()..];
    assert!(!contains(&bytes[place + 1..], old), "{old:?} is there several times");
    [&bytes[..place], new, rest].concat()
}
