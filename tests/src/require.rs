//! What a test needs of the machine, and that may be missing.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether these programs are installed. If one is not, reports the skipped test, or, with
/// `KPACK_REQUIRE_TOOLS` set to anything but `0`, fails it.
pub fn tools(programs: &[&str]) -> bool {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let installed = |program: &str| {
        std::env::split_paths(&directories).any(|directory| directory.join(program).is_file())
    };
    let missing = programs.iter().find(|program| !installed(program));
    missing.is_none_or(|program| report_missing(program))
}

/// [`tools`] for one program.
pub fn tool(program: &str) -> bool {
    tools(&[program])
}

/// Whether this file of some package is installed; otherwise as [`tools`].
pub fn file(path: &str) -> bool {
    Path::new(path).is_file() || report_missing(path)
}

/// As [`file()`], for a directory.
pub fn directory(path: &str) -> bool {
    Path::new(path).is_dir() || report_missing(path)
}

/// Whether this process runs as root. If not, reports the skipped test, and never fails it:
/// installing a tool would not help.
pub fn root() -> bool {
    let root = is_root();
    if !root {
        skip("only root can do this");
    }
    root
}

/// Whether this process runs as root.
///
/// # Panics
/// There is no `/proc`.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn report_missing(what: &str) -> bool {
    let required = std::env::var_os("KPACK_REQUIRE_TOOLS").is_some_and(|value| value != "0");
    assert!(!required, "`{what}` is missing, and KPACK_REQUIRE_TOOLS is set");
    skip(&format!("`{what}` is missing"));
    false
}

/// Reports a skipped test where users see it: the harness captures what the macros print in passing
/// tests.
pub fn skip(why: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    let _ = writeln!(io::stderr(), "\nskipped: {test}: {why}");
}
