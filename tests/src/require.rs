//! What a test needs of the machine, and that may be missing; and what it says to users past the harness.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::Result;
use kpack_tools::programs::find;
pub use kpack_tools::programs::{find_program, is_root};

use crate::process::output;

/// Whether these programs are installed. If one is not, reports the skipped test, or, with
/// `KPACK_REQUIRE_TOOLS` set to anything but `0`, fails it, unless `KPACK_OPTIONAL_TOOLS` names it. That is a list with commas,
/// for which the last part of a path suffices.
pub fn tools(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program, None).is_none());
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

/// Whether strace can trace programs here; otherwise as [`tools`].
pub fn tracing() -> bool {
    if !tool("strace") {
        return false;
    }
    let output = output(Command::new("strace").args(["-f", "-o", "/dev/null", "true"]));
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success() || missing(&format!("strace cannot trace here: {}", said.trim()))
}

/// What was fetched from a network; if it could not be, otherwise as [`tools`].
pub fn fetched<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(fetched) => Some(fetched),
        Err(error) => {
            missing(&format!("{error:#}"));
            None
        }
    }
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

fn report_missing(what: &str) -> bool {
    let why = format!("`{what}` is missing");
    let optional = env::var("KPACK_OPTIONAL_TOOLS").unwrap_or_default();
    if is_among(&optional, what) {
        skip(&why);
        return false;
    }
    missing(&why)
}

/// Whether a list names a program or a file.
fn is_among(list: &str, what: &str) -> bool {
    let last = what.rsplit('/').next();
    list.split(',').any(|name| name == what || Some(name) == last)
}

/// Reports something that the test needs and that is missing, as [`tools`] does.
pub fn missing(why: &str) -> bool {
    let required = env::var_os("KPACK_REQUIRE_TOOLS").is_some_and(|value| value != "0");
    assert!(!required, "{why}, and KPACK_REQUIRE_TOOLS is set");
    skip(why);
    false
}

/// Reports a skipped test, or a part of it. `cargo xtask test` lists them at the end.
pub fn skip(why: &str) {
    say("skipped", why);
}

/// Reports what a test found to be true, such as counts of what it compared.
pub fn checked(what: &str) {
    say("checked", what);
}

/// Prints a line where users see it: the harness captures what the macros print in passing tests.
fn say(how: &str, what: &str) {
    let test = thread::current();
    let test = test.name().unwrap_or("a test");
    let _ = writeln!(io::stderr(), "\n{how}: {test}: {}", what.lines().next().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::is_among;

    #[test]
    fn optional_tools_are_named_by_program_or_path() {
        let list = "wine,/usr/share/rocm/cmake/ROCMConfig.cmake,x86_64-pc-windows-gnu";
        for what in list.split(',').chain(["/rust/lib/rustlib/x86_64-pc-windows-gnu"]) {
            assert!(is_among(list, what), "{what}");
        }
        assert!(!is_among(list, "wineserver") && !is_among(list, "cmake"));
        assert!(!is_among("", "wine"));
    }
}
