//! Lintian's judgement of packages.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::try_run;

/// What this version of Lintian does not know yet is no fault: versions of Debian's policy, and compatibility levels of
/// debhelper.
const UNKNOWN: [&str; 2] =
    ["newer-standards-version", "package-uses-experimental-debhelper-compat-version"];

/// Checks DEBs, or what `.changes` files list, without some more tags.
///
/// # Errors
/// Lintian cannot be run, or prints an error or a warning.
pub fn lintian(
    files: impl IntoIterator<Item = impl AsRef<Path>>,
    suppressed: &[&str],
) -> Result<()> {
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    command.args(["--suppress-tags", &[&UNKNOWN, suppressed].concat().join(",")]);
    for file in files {
        command.arg(file.as_ref());
    }
    try_run(&mut command).map(drop)
}
