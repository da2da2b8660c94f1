//! The messages of a linter about binaries, to compare them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What `eu-elflint --gnu-ld` says, without numbers: section indices and addresses may differ.
///
/// # Errors
/// The linter cannot be run.
pub fn elflint(path: &Path) -> Result<BTreeSet<String>> {
    let mut command = Command::new("eu-elflint");
    let output = command.arg("--gnu-ld").arg(path).output();
    let output = output.context("eu-elflint cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // It exits with 1 if it has any messages.
    ensure!(
        matches!(output.status.code(), Some(0 | 1)) && !text.is_empty(),
        "{command:?} failed ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let plain = |line: &str| -> String {
        let words = line.split(' ').map(|word| match word.strip_prefix("0x") {
            Some(_) => "0x".to_owned(),
            None => word.trim_start_matches('[').replace(|c: char| c.is_ascii_digit(), ""),
        });
        Vec::from_iter(words.filter(|word| !word.is_empty())).join(" ")
    };
    let lines = text.lines().filter(|line| *line != "No errors");
    Ok(lines.map(plain).collect())
}
