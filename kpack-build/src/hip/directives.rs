//! The lines for Cargo that do not depend on what is built.

use std::path::Path;

use super::environment::Environment;

/// The lines that have Cargo run the build script again when a file or a variable changes.
pub(super) fn watch(
    files: impl IntoIterator<Item = impl AsRef<Path>>,
    environment: &Environment,
) -> Vec<String> {
    let files = files.into_iter();
    let files = files.map(|path| format!("rerun-if-changed={}", path.as_ref().display()));
    let variables =
        environment.asked().into_iter().map(|name| format!("rerun-if-env-changed={name}"));
    files.chain(variables).map(directive).collect()
}

/// The line that has Cargo print a warning.
pub(super) fn warning(text: &str) -> String {
    directive(format!("warning={text}"))
}

/// A line for Cargo.
pub(super) fn directive(text: impl AsRef<str>) -> String {
    format!("cargo::{}", text.as_ref())
}

/// Prints lines for Cargo.
pub(super) fn print(lines: &[String]) {
    for line in lines {
        println!("{line}");
    }
}
