//! Programs that a build runs: their command lines and their failures, for messages.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

use kpack_core::Error;

/// Runs the compiler once and returns its output; `what` begins the error message.
///
/// # Errors
/// [`Error::Compiler`] with everything that it printed.
pub(super) fn run(command: &mut Command, what: &str) -> Result<Output, Error> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| Error::io(command.get_program().as_ref(), "run", e))?;
    if output.status.success() {
        return Ok(output);
    }
    let printed = [output.stdout, output.stderr].concat();
    Err(failed(what, output.status, &String::from_utf8_lossy(&printed), &command_line(command)))
}

/// The error of a program that failed.
pub(super) fn failed(what: &str, status: ExitStatus, printed: &str, command: &str) -> Error {
    let advice =
        advice(printed).map(|advice| format!("To fix it, {advice}.\n")).unwrap_or_default();
    let printed = printed.trim_end();
    Error::Compiler(format!("{what} ({status}):\n{printed}\n{advice}The command was: {command}"))
}

/// A program and its arguments.
pub(super) fn command_line(command: &Command) -> String {
    let mut text = Path::new(command.get_program()).display().to_string();
    for argument in command.get_args() {
        let _ = write!(text, " {}", Path::new(argument).display());
    }
    text
}

/// The lines of a compiler's warnings, without those that count them.
pub(super) fn warnings(output: &Output) -> Vec<String> {
    let printed = String::from_utf8_lossy(&output.stderr);
    let counts = |line: &str| line.contains(" generated when compiling for ");
    let lines = printed.lines().filter(|line| !line.trim().is_empty() && !counts(line));
    lines.map(str::to_owned).collect()
}

/// What to do about an error of clang that does not say so.
pub(super) fn advice(printed: &str) -> Option<&'static str> {
    let known = [
        ("\"lld\" doesn't exist", "install the lld of the compiler's version"),
        // lld maps its output, so a write to a full disk is this signal.
        ("Bus error", "check whether the disk of OUT_DIR is full"),
        // ROCm's headers include those of the C++ library, for device code too.
        (
            "'bits/c++config.h' file not found",
            "install the C++ library of the machine that you compile for (Debian, for AArch64: \
             `apt-get install g++-aarch64-linux-gnu`)",
        ),
    ];
    known.into_iter().find(|(error, _)| printed.contains(error)).map(|(_, advice)| advice)
}

/// The line that says why a compiler failed: its first error, otherwise the first line that it printed.
pub(super) fn error_line(printed: &str) -> Option<&str> {
    let error = printed.lines().find(|line| line.contains("error:"));
    let line = error.or_else(|| printed.lines().find(|line| !line.trim().is_empty()));
    line.map(str::trim)
}
