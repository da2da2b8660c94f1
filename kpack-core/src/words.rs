//! Lists and numbers in messages.

use std::fmt::Display;

/// Lists items: `a, b, c`.
pub fn list(items: impl IntoIterator<Item: Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

/// Lists the first `most` items: `a, b and 3 more`.
pub fn list_some(
    items: impl IntoIterator<Item: Display, IntoIter: ExactSizeIterator>,
    most: usize,
) -> String {
    let items = items.into_iter();
    let more = items.len().saturating_sub(most);
    let first = list(items.take(most));
    match more {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The text with its line breaks escaped, so that its ID ends it and no name can pass for another message.
pub(crate) fn one_line(text: String) -> String {
    if text.contains(['\n', '\r']) { text.replace('\n', "\\n").replace('\r', "\\r") } else { text }
}

/// `1 kernel`, `2 kernels`.
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// A size for people: `512 B`, `1.25 GiB`.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let digits = size.checked_ilog2().unwrap_or(0) / 10;
    match digits.checked_sub(1) {
        None => format!("{size} B"),
        Some(unit) => {
            let size = size as f64 / (1_u64 << (10 * digits)) as f64;
            format!("{size:.2} {}", UNITS[unit as usize])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_342_177_280, "1.25 GiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
