//! Texts in data.

/// The fewest consecutive printable bytes that count as text.
pub(crate) const LEAST_TEXT: usize = 6;

/// The runs of printable bytes.
pub(super) fn texts_of(bytes: &[u8]) -> Vec<String> {
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let runs = bytes.split(|byte| !printable(byte));
    let long = runs.filter(|run| run.len() >= LEAST_TEXT);
    long.map(|run| String::from_utf8_lossy(run).into_owned()).collect()
}
