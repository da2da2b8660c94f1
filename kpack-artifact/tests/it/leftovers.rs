//! Given leftovers of killed runs, when a tree is verified or its binaries are taken, then nothing of that
//! passes for output.

use std::fs;
use std::os::unix::fs::symlink;

use crate::verified::{check, checks, faults};
use kpack_artifact::verify::{self, verify};
use kpack_build::Error;
use kpack_core::Severity;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::{Tree, write};

/// What each command calls what it has not finished. With a final `/`, it is a directory.
const HIDDEN: [(&str, &str); 11] = [
    ("split", "lib/.libhalf.so.0123456789abcdef.tmp"),
    ("split", "lib/.kpack/.vec_lib_gfx90a.kpack.0123456789abcdef.tmp"),
    ("split", "lib/.kpack/.vec_lib.kpm.0123456789abcdef.tmp"),
    ("split", "lib/.kpack/.scratch.0123456789abcdef.tmp"),
    ("artifact split", ".blas_lib.tmp/"),
    ("artifact recombine", "out/.fft_lib.tmp/"),
    ("wheel split", "dist/.vec.tmp/"),
    ("launch", ".kernels.hip.o.kpack.tmp/"),
    ("Hip", "kpack/.vector.tmp/"),
    ("extract", "out/.kpack-extract.tmp/"),
    ("stage", ".release.tmp/"),
];

fn library(tree: &Tree, path: &str) {
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add")])
        .build(&tree.path(path))
        .unwrap();
}

#[test]
fn verify_reports_each_hidden_name() {
    let tree = Tree::new();
    library(&tree, "lib/libvec.so");
    install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
    for (_, path) in HIDDEN {
        match path.strip_suffix('/') {
            Some(directory) => write(tree.path(directory).join("half.kpack"), b"KPAK"),
            None => tree.write(path, b"KPAK"),
        }
    }
    let report = check(&tree, "");
    assert_eq!(faults(&report), [""; 0]);
    let notes = checks(&report, Severity::Note);
    let unknown = HIDDEN.iter().filter(|(_, path)| {
        let path = path.trim_end_matches('/');
        let line = format!("/{path}: leftover of an interrupted run");
        notes.iter().filter(|note| note.contains(&line)).count() != 1
    });
    assert_eq!(unknown.collect::<Vec<_>>(), [&("", ""); 0], "{notes:#?}");
}

#[test]
fn a_hidden_name_is_the_output_of_who_asks_for_it() {
    let tree = Tree::new();
    library(&tree, ".vec.tmp/lib/libvec.so");
    let mut options = InstallOptions::new(tree.path(".vec.tmp"), "vec", [""; 0]);
    options.all = true;
    let report = install(&options, &()).unwrap();
    assert_eq!(report.files.len(), 1);
    assert_eq!(faults(&check(&tree, ".vec.tmp")), [""; 0]);
}

#[test]
fn a_name_with_nothing_inside_is_none_of_kpack_s() {
    let tree = Tree::new();
    library(&tree, "lib/libvec.so");
    install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
    // The second marks a release.
    for name in [".tmp", ".kpack-stage", "vec.tmp", ".vec"] {
        fs::write(tree.path(name), "text").unwrap();
    }
    let report = check(&tree, "");
    assert_eq!(faults(&report), [""; 0]);
    let notes = checks(&report, Severity::Note);
    assert!(!notes.iter().any(|note| note.contains("leftover")), "{notes:#?}");
}

#[test]
fn a_device_that_does_not_answer_is_no_fault_of_a_tree() {
    let tree = Tree::new();
    library(&tree, "lib/libvec.so");
    install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
    // Reading it fails with EIO.
    symlink("/proc/self/mem", tree.path("lib/libfar.so")).unwrap();
    let paths = [tree.root().to_owned()];
    let verified = verify(&paths, &verify::Options::default(), &());
    let error = verified.map(|report| faults(&report)).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}
