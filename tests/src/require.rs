//! Tools that a test needs but that may be missing.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Whether `program` is installed. If not, reports the skipped test, or, with `KPACK_REQUIRE_TOOLS`
/// set to anything but `0`, fails it.
pub fn tool(program: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let found = command.status().is_ok();
    let required = std::env::var_os("KPACK_REQUIRE_TOOLS").is_some_and(|value| value != "0");
    assert!(
        found || !required,
        "`{program}` is missing, and KPACK_REQUIRE_TOOLS is set"
    );
    if !found {
        skip(&format!("`{program}` is not installed"));
    }
    found
}

/// Reports a skipped test where users see it: the harness captures what the macros print in passing
/// tests.
pub fn skip(why: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    let _ = writeln!(io::stderr(), "\nskipped: {test}: {why}");
}
