//! The command `kpack`, and what it says.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
    let ([stdout, stderr], code) = texts(tree, kpack(tree, arguments));
    format!("$ kpack {}\n{stdout}{stderr}exit code {code}\n", arguments.join(" "))
}

/// Standard output, standard error and exit code, with the tree as `/tree`.
fn texts(tree: &Tree, output: Output) -> ([String; 2], i32) {
    let root = tree.root().canonicalize().unwrap();
    // The default module.
    let module = root.file_name().unwrap().to_str().unwrap().replace('.', "_");
    let texts = [output.stdout, output.stderr].map(|bytes| {
        let text = String::from_utf8(bytes).unwrap();
        text.replace(root.to_str().unwrap(), "/tree")
            .replace(tree.root().to_str().unwrap(), "/tree")
            .replace(&module, "tree")
    });
    (texts, output.status.code().unwrap())
}

/// Lets a command find no configuration of the user, of installers, of the dynamic linker and of GPUs.
pub(crate) fn without_configuration<'a>(command: &'a mut Command, tree: &Tree) -> &'a mut Command {
    let starts = [
        "PIP_",
        "UV_",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "XDG_CONFIG_HOME",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ROCR_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
        "ROCM_PATH",
        "ROCM_KPACK_",
        "KPACK_HIP",
    ];
    let is_configuration = |name: &OsString| {
        starts.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()))
    };
    for name in env::vars_os().map(|(name, _)| name).filter(is_configuration) {
        command.env_remove(name);
    }
    command.env("HOME", tree.root())
}

/// A command line of a shell, in a tree, where `kpack` is the command under test.
pub(crate) fn shell(tree: &Tree, line: &str) -> Command {
    let own = Path::new(env!("CARGO_BIN_EXE_kpack")).parent().unwrap().to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([own].into_iter().chain(env::split_paths(&path))).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(tree.root()).stdin(Stdio::null()).env("PATH", path);
    without_configuration(&mut shell, tree);
    shell
}

/// A command line, and what it prints, as in the rows of [`said_by`]. The shell must find what it runs.
pub(crate) fn transcript(tree: &Tree, line: &str, mut shell: Command) -> String {
    let ([stdout, stderr], code) = texts(tree, shell.output().unwrap());
    // The shell's own: what the line names does not exist, or cannot be run.
    assert!(![126, 127].contains(&code), "{line}: {stderr}");
    let stderr = stderr.lines().map(|line| format!("! {line}\n"));
    format!("$ {line}\n{stdout}{}exit code {code}\n", String::from_iter(stderr))
}

/// A name, what it changes in a copy of its table's tree, and the lines that a shell then runs there, one after the other.
pub(crate) type Row = (&'static str, fn(&Tree), &'static [&'static str]);

/// What the commands of each row print, with their exit codes and the files that they change, for a snapshot. Lines of standard
/// error start with `! `.
pub(crate) fn said_by(rows: &[Row], original: &Tree) -> String {
    let mut text = String::new();
    for (name, change, lines) in rows {
        assert!(lines.iter().any(|line| line.contains("kpack ")), "{name}: nothing runs kpack");
        let tree = original.copy();
        change(&tree);
        text += &format!("# {name}\n");
        let mut before = states(&tree);
        for line in *lines {
            text += &transcript(&tree, line, shell(&tree, line));
            let after = states(&tree);
            for path in BTreeSet::from_iter(before.keys().chain(after.keys())) {
                match (before.get(path), after.get(path)) {
                    (None, _) => text += &format!("created {path}\n"),
                    (_, None) => text += &format!("removed {path}\n"),
                    (old, new) if old != new => text += &format!("changed {path}\n"),
                    _ => {}
                }
            }
            before = after;
        }
        text += "\n";
    }
    text.replace('\u{1b}', "ESC")
}

/// Mode, bytes, inode and time of each file and directory.
fn states(tree: &Tree) -> BTreeMap<String, impl PartialEq + use<>> {
    let (mut files, times) = tree.snapshot_with_times();
    let states = times.into_iter().map(|(path, inode, seconds, nanoseconds)| {
        let name = path.strip_prefix(tree.root()).unwrap().to_str().unwrap().to_owned();
        let content = files.remove(&name);
        (name, (content, inode, seconds, nanoseconds))
    });
    states.collect()
}
