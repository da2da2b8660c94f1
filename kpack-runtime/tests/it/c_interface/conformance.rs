//! Given the conformance vectors, when kpack's loader is asked, then it answers what they say.

use std::fs;

use kpack_tests::conformance::{KPACK, check, directory, files};

use super::prefix;

#[test]
fn the_loader_answers_what_the_vectors_say() {
    let loader = prefix().join("lib/librocm_kpack.so.0");
    // Six are about binaries for x86-64.
    let least = if cfg!(target_arch = "x86_64") { 38 } else { 32 };
    assert!(check(&loader, KPACK).unwrap() >= least);
}

/// `CONFORMANCE_UPDATE=1` writes them.
#[test]
fn the_vectors_are_those_that_the_program_writes() {
    let directory = directory();
    let expected = files(&prefix().join("bin/kpack")).unwrap();
    if std::env::var_os("CONFORMANCE_UPDATE").is_some() {
        fs::create_dir_all(directory.join("files")).unwrap();
        for (path, bytes) in &expected {
            fs::write(directory.join(path), bytes).unwrap();
        }
    }
    for (path, bytes) in &expected {
        assert!(fs::read(directory.join(path)).unwrap() == *bytes, "{path} differs");
    }
    let there = fs::read_dir(directory.join("files")).unwrap().count();
    assert_eq!(there, expected.len() - 1, "there are files that the program does not write");
}
