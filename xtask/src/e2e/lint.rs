//! Runs eu-elflint on binaries, to compare its messages.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::cmd;

use crate::process;

/// The linter's messages without numbers, since addresses and indices differ between binaries.
pub(super) type Messages = BTreeSet<String>;

/// Lints `file`.
///
/// # Errors
/// The linter cannot be run.
pub(super) fn lint(file: &Path) -> Result<Messages> {
    let command = cmd!(process::shell(), "eu-elflint --gnu-ld {file}");
    let shown = command.to_string();
    // It exits with 1 if it has any messages.
    let output = command
        .quiet()
        .ignore_status()
        .output()
        .with_context(|| format!("`{shown}` cannot be run"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        matches!(output.status.code(), Some(0 | 1)) && !text.is_empty(),
        "`{shown}` failed ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text
        .lines()
        .filter(|line| *line != "No errors")
        .map(without_numbers)
        .collect())
}

/// # Errors
/// Messages in `found` that are not in `known`.
pub(super) fn nothing_new(file: &Path, found: &Messages, known: &Messages) -> Result<()> {
    let new: Vec<&str> = found.difference(known).map(String::as_str).collect();
    ensure!(
        new.is_empty(),
        "eu-elflint --gnu-ld has messages about {} that it does not have about the unsplit file:\n{}",
        file.display(),
        new.join("\n")
    );
    Ok(())
}

/// Removes digits and complete hexadecimal numbers.
fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(character) = rest.chars().next() {
        if let Some(number) = rest.strip_prefix("0x") {
            rest = number.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        } else {
            if !character.is_ascii_digit() {
                text.push(character);
            }
            rest = &rest[character.len_utf8()..];
        }
    }
    // Section indices are right-aligned: `[ 9]`, but `[10]`.
    text.replace("[ ]", "[]")
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn messages_about_different_places_are_the_same_message() {
        let here = "section [12] '.dynsym': symbol 3: value 0x1af0 out of range";
        let there = "section [ 7] '.dynsym': symbol 11: value 0xbeef out of range";
        assert_eq!(without_numbers(here), without_numbers(there));
        assert_ne!(
            without_numbers(here),
            without_numbers("section [12] '.dynstr': not zero-terminated")
        );
    }
}
