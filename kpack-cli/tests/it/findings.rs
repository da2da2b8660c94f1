//! The catalogue of findings: its page, and the tests that assert its entries.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::command::command;
use kpack_artifact::packaging::Configuration;
use kpack_core::{Id, ids};
use kpack_split::install::{InstallOptions, Only, Report, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::page::repository;
use kpack_tests::tree::Tree;

#[test]
fn the_page_is_the_catalogue() {
    let tree = Tree::new();
    let output = command(&tree, &["explain", "--markdown"]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let path = repository().join("docs/findings.md");
    let written = fs::read_to_string(path).unwrap();
    assert!(page == written, "run `kpack explain --markdown > docs/findings.md`");
}

/// Whoever has a file that does not load may ask `explain` why.
#[test]
fn explain_names_doctor_for_files() {
    let tree = prefix();
    let said = command(&tree, &["explain", "lib/libone.so"]).output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert!(text.ends_with("; for a file, run `kpack doctor lib/libone.so` [usage]\n"), "{text}");
    assert_eq!(said.status.code(), Some(2));
}

/// What `--arch` may name is said where it is asked for.
#[test]
fn targets_are_named_where_one_must_be_chosen() {
    let tree = Tree::new();
    let targets = ["gfx90a:xnack+", "gfx90a:xnack-"].map(|target| code(target, "add"));
    FatLibrary::new().wrapper(Storage::Plain, targets).build(&tree.path("libvec.so")).unwrap();
    let said = command(&tree, &["extract", "libvec.so", "-o", "code"]).output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    let which =
        "2 code objects are selected (gfx90a:xnack+, gfx90a:xnack-); choose one with --arch";
    assert!(text.contains(which), "{text}");
}

/// A prefix with two libraries of one module.
fn prefix() -> Tree {
    let tree = Tree::new();
    let one = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "add")]);
    let two = (0..2).fold(FatLibrary::new(), |library, _| {
        library.wrapper(Storage::Plain, [code("gfx1100", "mul")])
    });
    one.build(&tree.path("lib/libone.so")).unwrap();
    two.build(&tree.path("lib/libtwo.so")).unwrap();
    tree
}

fn installed(tree: &Tree, file: &str) -> Report {
    install(&InstallOptions::new(tree.root(), "vec", [file]), &()).unwrap()
}

fn found(report: &Report) -> Vec<Id> {
    report.findings.iter().map(|finding| finding.id).collect()
}

#[test]
fn an_archive_with_fewer_kernels_than_its_manifest_lists() {
    let tree = prefix();
    assert_eq!(found(&installed(&tree, "lib/libtwo.so")), []);
    fs::remove_file(tree.path("lib/.kpack/vec_lib_gfx1100.kpack")).unwrap();
    let mut options = InstallOptions::new(tree.root(), "vec", ["lib/libone.so"]);
    options.only = Some(Only::Host);
    let report = install(&options, &()).unwrap();
    assert_eq!(found(&report), [ids::FEWER_KERNELS]);
}

#[test]
fn a_manifest_that_cannot_be_read() {
    let tree = prefix();
    fs::create_dir(tree.path("lib/.kpack")).unwrap();
    fs::write(tree.path("lib/.kpack/vec_lib.kpm"), "{").unwrap();
    let report = installed(&tree, "lib/libone.so");
    assert_eq!(found(&report), [ids::DAMAGED_MANIFEST]);
}

#[test]
fn a_prefix_without_device_code() {
    let tree = Tree::new();
    let mut options = InstallOptions::new(tree.root(), "vec", [""; 0]);
    options.all = true;
    assert_eq!(found(&install(&options, &()).unwrap()), [ids::NO_DEVICE_CODE]);
}

#[test]
fn errors_of_an_install_that_changes_nothing() {
    for (id, file) in [(ids::SYSTEM, "lib/libnone.so"), (ids::OUTPUT_IN_THE_WAY, "lib/libtwo.so")] {
        let tree = prefix();
        // Where its archive goes, there is a directory.
        fs::create_dir_all(tree.path("lib/.kpack/vec_lib_gfx1100.kpack")).unwrap();
        let before = tree.snapshot_with_times();
        let options = InstallOptions::new(tree.root(), "vec", [file]);
        let error = install(&options, &()).unwrap_err();
        assert_eq!(error.id(), id, "{error}");
        assert_eq!(tree.snapshot_with_times(), before);
    }
}

#[test]
fn a_name_that_markers_cannot_hold() {
    let tree = prefix();
    let odd = Path::new(OsStr::from_bytes(b"lib/lib\xff.so"));
    fs::copy(tree.path("lib/libone.so"), tree.root().join(odd)).unwrap();
    let error = install(&InstallOptions::new(tree.root(), "vec", [odd]), &()).unwrap_err();
    assert_eq!(error.id(), ids::UNREPRESENTABLE_PATH, "{error}");
}

#[test]
fn a_configuration_that_is_no_text() {
    let tree = Tree::new();
    let path = tree.path("packaging.json");
    fs::write(&path, b"\xff").unwrap();
    assert_eq!(Configuration::read(&path).unwrap_err().id(), ids::NOT_TEXT);
}
