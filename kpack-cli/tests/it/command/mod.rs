//! The command `kpack`, and what it says.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use kpack_tests::process;
use kpack_tests::tree::Tree;

/// Neither root nor the owner of any file in the tests.
pub(crate) const NOBODY: u32 = 65534;

/// A copy of the command that every user may run, and the directory that is removed with it: others may not be allowed to
/// read the directory of the build, such as one in root's home.
pub(crate) fn for_every_user() -> (PathBuf, Tree) {
    let tree = Tree::new();
    fs::set_permissions(tree.root(), Permissions::from_mode(0o755)).unwrap();
    process::copy(env!("CARGO_BIN_EXE_kpack"), tree.path("kpack"));
    (tree.path("kpack"), tree)
}

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
