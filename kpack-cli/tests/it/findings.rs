//! The catalogue of findings: its page, and the tests that assert its entries.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::command;
use kpack_tests::tree::Tree;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_page_is_the_catalogue() {
    let tree = Tree::new();
    let output = command(&tree, &["explain", "--markdown"]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let path = workspace().join("docs/findings.md");
    let written = fs::read_to_string(path).unwrap();
    assert!(
        page == written,
        "run `kpack explain --markdown > docs/findings.md`"
    );
}
