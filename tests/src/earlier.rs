//! What an early version of kpack wrote: `tests/fixtures/earlier`.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::tree::Tree;

/// Unpacks it into a tree.
///
/// # Panics
/// The fixture is missing, or `tar` fails.
pub fn unpack() -> Tree {
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/earlier/earlier.tar.zst");
    let files = zstd::decode_all(File::open(packed).unwrap()).unwrap();
    let tree = Tree::new();
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--file=-"]).current_dir(tree.root());
    let mut tar = tar.stdin(Stdio::piped()).spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&files).unwrap();
    assert!(tar.wait().unwrap().success());
    tree
}
