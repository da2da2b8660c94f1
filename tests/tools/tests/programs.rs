//! Programs are found and run; see also `xtask/src/build.rs`, which builds this test with the command.

use std::path::Path;
use std::process::Command;

use kpack_tools::process::try_run;
use kpack_tools::programs::{find, find_program};

#[test]
fn the_first_program_that_is_installed_is_found() {
    let shell = find("sh", None).unwrap();
    assert!(shell.is_absolute(), "{}", shell.display());
    assert_eq!(find_program("no-such-program|sh"), Some(shell));
    assert_eq!(find_program("no-such-program"), None);
    assert_eq!(find_program("/dev/null/none|/bin/sh"), Some("/bin/sh".into()));
    assert_eq!(find("sh", Some("/no/such/directory")), find("sh", None));
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(find("Cargo.toml", own.to_str()), Some(own.join("Cargo.toml")));
}

#[test]
fn the_error_of_a_program_repeats_what_it_printed() {
    let script = |text: &str| try_run(Command::new("sh").args(["-c", text]));
    assert_eq!(script("echo out; echo err >&2").unwrap(), "out\n");
    let error = script("echo out; echo err >&2; exit 3").unwrap_err().to_string();
    for part in ["exit status: 3", "\nout\n", "err\n"] {
        assert!(error.contains(part), "{error}");
    }
}
