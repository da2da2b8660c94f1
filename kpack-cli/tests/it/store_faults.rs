//! Given a store, when a system call of `kpack artifact unpack` fails or it is killed there, then it does not blame the
//! artifact, it leaves nothing, and the same command finishes the work.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use kpack_tests::require;
use kpack_tests::tree::{Tree, write};
use tar::EntryType;

use crate::packed::{Tar, entry, write_index};

/// An artifact with directories of all kinds, two names of a file, and a link, beside an output directory.
fn store(exists: bool) -> Tree {
    let tree = Tree::new();
    let tar = Tar::new()
        .directory("stage/empty")
        .file("stage/lib/deep/file", b"text")
        .member("stage/bin/name", EntryType::Link, 0o644, "stage/lib/deep/file", b"")
        .link("stage/lib/link", "deep/file");
    let (files, size) = tar.contents;
    let bytes = tar.compressed();
    write(tree.path("store/blas_lib_gfx942.tar.zst"), &bytes);
    write_index(&tree.path("store"), &[entry("blas_lib", "gfx942", &bytes, files, size)]);
    if exists {
        fs::create_dir(tree.path("out")).unwrap();
    }
    tree
}

/// Unpacks, under strace with these options.
fn unpack(tree: &Tree, strace: &[&str], flatten: bool) -> Output {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq"]).args(strace).arg(env!("CARGO_BIN_EXE_kpack"));
    command.args(["artifact", "unpack", "store", "--output-dir", "out", "--jobs", "1"]);
    command.args(flatten.then_some("--flatten"));
    command.current_dir(tree.root()).output().unwrap()
}

/// Unpacks, with a fault in one call of that name, or in each.
fn disturbed(tree: &Tree, flatten: bool, call: &str, fault: &str, when: Option<usize>) -> Output {
    let when = when.map_or(String::new(), |number| format!(":when={number}"));
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{fault}{when}"));
    unpack(tree, &["-o", "/dev/null", "-e", &trace, "-e", &inject], flatten)
}

/// The numbers of the calls of that name in an undisturbed run, from the first one about the index; and what it makes.
fn undisturbed(exists: bool, flatten: bool, call: &str) -> (Vec<usize>, Vec<String>) {
    let (tree, traces) = (store(exists), Tree::new());
    let log = traces.path("log").display().to_string();
    let filter = format!("trace={call}");
    let output = unpack(&tree, &["-o", &log, "-e", &filter], flatten);
    assert!(output.status.success(), "{output:?}");
    let log = fs::read_to_string(log).unwrap();
    let lines = log.lines().enumerate();
    let lines = lines.skip_while(|(_, line)| call == "openat" && !line.contains("index.json"));
    (lines.map(|(index, _)| index + 1).collect(), made(&tree))
}

/// What is beside the store, hidden or not.
fn made(tree: &Tree) -> Vec<String> {
    tree.files().into_iter().filter(|name| !name.starts_with("store/")).collect()
}

#[test]
fn an_error_of_the_system_is_no_fault_of_the_artifact() {
    if !require::tracing() {
        return;
    }
    for (exists, flatten) in [(false, false), (true, true)] {
        let (calls, expected) = undisturbed(exists, flatten, "openat");
        for (number, error) in calls.iter().zip(["EIO", "EMFILE", "ENOSPC"].iter().cycle()) {
            let tree = store(exists);
            let fault = format!("error={error}");
            let output = disturbed(&tree, flatten, "openat", &fault, Some(*number));
            let said = String::from_utf8_lossy(&output.stderr);
            let what = format!("{error} at openat {number} of {calls:?}, {flatten}: {said}");
            match output.status.code() {
                // Some directories need not be opened.
                Some(0) => assert_eq!(made(&tree), expected, "{what}"),
                Some(4) => assert_eq!(made(&tree), [""; 0], "{what}"),
                code => panic!("exit code {code:?}, {what}"),
            }
        }
    }
}

#[test]
fn what_cannot_be_removed_or_was_not_is_no_reason_to_leave_more() {
    if !require::tracing() {
        return;
    }
    for (exists, flatten) in [(true, true), (false, true), (false, false)] {
        let (calls, expected) = undisturbed(exists, flatten, "unlinkat");
        for number in &calls {
            let tree = store(exists);
            let output = disturbed(&tree, flatten, "unlinkat", "error=EIO", Some(*number));
            let what = format!("unlinkat {number} of {calls:?}, {exists}, {flatten}: {output:?}");
            match output.status.code() {
                Some(0) => assert_eq!(made(&tree), expected, "{what}"),
                Some(4) => assert_eq!(made(&tree), [""; 0], "{what}"),
                _ => panic!("{what}"),
            }
            let tree = store(exists);
            let output = disturbed(&tree, flatten, "unlinkat", "signal=KILL", Some(*number));
            assert_eq!(output.status.signal(), Some(9), "{what}");
            let output = unpack(&tree, &["-o", "/dev/null", "-e", "trace=none"], flatten);
            assert!(output.status.success(), "after a kill at {what}: {output:?}");
            assert_eq!(made(&tree), expected, "after a kill at {what}");
            assert!(!tree.path(".out.tmp").exists(), "after a kill at {what}");
            assert!(!tree.path("out/.kpack-unpack.tmp").exists(), "after a kill at {what}");
        }
        // If nothing at all can be removed, the files are under hidden names.
        let tree = store(exists);
        let output = disturbed(&tree, flatten, "unlinkat", "error=EIO", None);
        if exists {
            assert_eq!(output.status.code(), Some(4), "{output:?}");
            let is_visible = |name: &String| !name.contains(".tmp/");
            assert!(!made(&tree).iter().any(is_visible), "{:?}", made(&tree));
        }
        let output = unpack(&tree, &["-o", "/dev/null", "-e", "trace=none"], flatten);
        assert!(output.status.success() && made(&tree) == expected, "{output:?}");
    }
}

#[test]
fn files_of_others_beside_a_leftover_stay() {
    if !require::tracing() {
        return;
    }
    let tree = store(true);
    fs::create_dir(tree.path("out/.kpack-unpack.tmp")).unwrap();
    write(tree.path("out/lib/deep/file"), b"mine");
    let output = unpack(&tree, &["-o", "/dev/null", "-e", "trace=none"], true);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("[output-in-the-way]"), "{said}");
    assert_eq!(made(&tree), ["out/lib/deep/file"]);
    assert_eq!(fs::read(tree.path("out/lib/deep/file")).unwrap(), b"mine");
}
