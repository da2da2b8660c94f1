//! The command `kpack`, and what it says.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::process::{Command, Output, Stdio};

use kpack_tests::tree::Tree;

/// The command, in a tree.
pub(crate) fn command(tree: &Tree, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kpack"));
    command.current_dir(tree.root()).args(arguments).stdin(Stdio::null());
    command
}

/// The arguments in a line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

pub(crate) fn kpack(tree: &Tree, arguments: &[&str]) -> Output {
    command(tree, arguments).output().unwrap()
}

/// What the command prints on standard output, which must succeed.
#[track_caller]
pub(crate) fn succeeds(tree: &Tree, arguments: &[&str]) -> String {
    let output = kpack(tree, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The command line, standard output, standard error and exit code, with the tree as `/tree`.
pub(crate) fn said(tree: &Tree, arguments: &[&str]) -> String {
    let output = kpack(tree, arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    let said = text(output.stdout) + &text(output.stderr);
    let root = tree.root().canonicalize().unwrap();
    let said = said
        .replace(root.to_str().unwrap(), "/tree")
        .replace(tree.root().to_str().unwrap(), "/tree");
    format!("$ kpack {}\n{said}exit code {code}\n", arguments.join(" "))
}
