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

/// `1 kernel`, `2 kernels`.
pub fn counted(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}
