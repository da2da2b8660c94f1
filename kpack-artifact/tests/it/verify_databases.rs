//! Given kernel databases as rocBLAS and hipBLASLt write them, when a file is missing, stands in for another
//! or is there for some targets only, then verification finds it; and a complete database has no fault.

use std::fs;
use std::os::unix::fs::symlink;

use kpack_artifact::split::{Options, split};
use kpack_core::Severity;
use kpack_tests::fixture::{
    Storage, bundle, code, code_object, lazy_library, library_file, library_of_kernels,
};
use kpack_tests::process;
use kpack_tests::tree::Tree;

use crate::verified::{assert_found, check, check_with, checks, faults};

const LIBRARY: &str = "lib/rocblas/library";
const FALLBACK: &str = "TensileLibrary_Type_SS_fallback";

/// As rocBLAS 6.4: libraries that are loaded when they are needed, and source kernels for each variant.
fn lazy(tree: &Tree, root: &str, processors: &[&str]) {
    let put = |name: &str, bytes: Vec<u8>| {
        tree.write(&format!("{root}/{LIBRARY}/{name}"), &bytes);
    };
    for processor in processors {
        let stem = format!("TensileLibrary_Type_SS_{processor}");
        put(
            &format!("TensileLibrary_lazy_{processor}.dat"),
            lazy_library(processor, &[&stem, FALLBACK]).unwrap(),
        );
        put(&format!("{stem}.dat"), library_of_kernels(&[processor], &[false, true]).unwrap());
        put(&format!("{stem}.co"), code_object(processor, b"assembly").unwrap());
        let variants: &[&str] = match *processor {
            "gfx90a" => &[":xnack+", ":xnack-"],
            _ => &[""],
        };
        for variant in variants {
            let object = || code_object(&format!("{processor}{variant}"), b"source").unwrap();
            let end = variant.replace(':', "-");
            put(&format!("{stem}{end}.hsaco"), object());
            put(&format!("{FALLBACK}_{processor}{end}.hsaco"), object());
            put(&format!("Kernels.so-000-{processor}{end}.hsaco"), object());
        }
    }
    put(&format!("{FALLBACK}.dat"), library_of_kernels(&[], &[true]).unwrap());
}

fn prefix() -> Tree {
    let tree = Tree::new();
    lazy(&tree, "root", &["gfx908", "gfx90a"]);
    tree
}

#[test]
fn every_file_that_a_lazy_library_needs_is_missed() {
    let tree = prefix();
    assert_eq!(faults(&check(&tree, "root")), [""; 0]);
    process::copy(tree.path("root"), tree.path("original"));
    let library = tree.path(&format!("root/{LIBRARY}"));
    let all = fs::read_dir(&library).unwrap();
    let names: Vec<String> =
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 16);
    for name in names {
        let bytes = fs::read(library.join(&name)).unwrap();
        fs::remove_file(library.join(&name)).unwrap();
        assert_found(&check(&tree, "root"), &[&name]);
        // The files of other targets are not missed, those for all are.
        let (asked, other) =
            if name.contains("gfx908") { ("gfx908", "gfx90a") } else { ("gfx90a", "gfx908") };
        assert_found(&check_with(&tree, "root", None, &[asked]), &[&name]);
        let report = check_with(&tree, "root", None, &[other]);
        if name.contains("gfx9") {
            assert_eq!(faults(&report), [""; 0], "{name}");
            assert!(checks(&report, Severity::Note).iter().any(|note| note.contains(&name)));
        }
        // What the original lacks as well is no fault.
        let original = tree.path(&format!("original/{LIBRARY}/{name}"));
        fs::remove_file(&original).unwrap();
        let report = check_with(&tree, "root", Some("original"), &[]);
        assert_eq!(faults(&report), [""; 0], "{name}");
        let notes = checks(&report, Severity::Note);
        let same = "the same in the unsplit tree";
        assert!(notes.iter().any(|note| note.contains(&name) && note.contains(same)), "{notes:#?}");
        for path in [library.join(&name), original] {
            fs::write(path, &bytes).unwrap();
        }
    }
}

/// Debian's hipBLASLt 7.1.1.
#[test]
fn a_file_for_all_targets_has_something_for_each_of_the_database() {
    let tree = Tree::new();
    let library = "root/lib/hipblaslt/library";
    let put = |name: &str, bytes: &[u8]| tree.write(&format!("{library}/{name}"), bytes);
    for target in ["gfx908", "gfx1100"] {
        let object = code_object(target, b"kernels").unwrap();
        put(&format!("Kernels.so-000-{target}.hsaco"), &object);
        put(&format!("extop_{target}.co"), &object);
    }
    let names = library_file("gfx908", &["extop_gfx908.co", "extop_gfx1100.co"]).unwrap();
    put("hipblasltExtOpLibrary.dat", &names);
    let transform = |targets: &[&str]| {
        let codes: Vec<_> = targets.iter().map(|target| code(target, "t")).collect();
        bundle(Storage::Plain, &codes).unwrap()
    };
    put("hipblasltTransform.hsaco", &transform(&["gfx908"]));
    let parts = ["hipblasltTransform.hsaco", "lists no kernels for gfx1100"];
    assert_found(&check(&tree, "root"), &parts);
    assert_found(&check_with(&tree, "root", None, &["gfx1100"]), &parts);
    let of_other = faults(&check_with(&tree, "root", None, &["gfx908"]));
    assert!(!of_other.iter().any(|fault| fault.contains("Transform")), "{of_other:#?}");
    put("hipblasltTransform.hsaco", &transform(&["gfx908", "gfx1100"]));
    let found = faults(&check(&tree, "root"));
    assert!(!found.iter().any(|fault| fault.contains("Transform")), "{found:#?}");
    // A code object that a package which is not installed has.
    for name in ["Kernels.so-000-gfx1100.hsaco", "extop_gfx1100.co"] {
        fs::remove_file(tree.path(&format!("{library}/{name}"))).unwrap();
    }
    let found = faults(&check(&tree, "root"));
    assert!(!found.iter().any(|fault| fault.contains("extop_gfx1100")), "{found:#?}");
}

#[test]
fn what_stands_in_for_a_file_is_damaged() {
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let tree = prefix();
    let [object, library] = ["co", "dat"]
        .map(|end| tree.path(&format!("root/{LIBRARY}/TensileLibrary_Type_SS_gfx908.{end}")));
    for (path, bytes, what) in [
        (&object, &b""[..], "damaged: empty"),
        (&object, b"no code", "damaged: not a code object or bundle"),
        (&object, POINTER, "damaged: a Git LFS pointer"),
        (&library, POINTER, "damaged: a Git LFS pointer"),
        (&library, b"", "damaged"),
    ] {
        let whole = fs::read(path).unwrap();
        fs::write(path, bytes).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_found(&check(&tree, "root"), &[name, what, "damaged-database-file"]);
        fs::write(path, whole).unwrap();
    }
}

/// rocBLAS has links for processors that run another's kernels.
#[test]
fn links_that_lead_into_the_artifact_of_another_target() {
    let tree = Tree::new();
    lazy(&tree, "in/blas_lib/stage", &["gfx1100", "gfx1101"]);
    tree.write("in/blas_lib/artifact_manifest.txt", b"stage\n");
    let name = "TensileLibrary_Type_SS_gfx1101.co";
    let link = tree.path(&format!("in/blas_lib/stage/{LIBRARY}/{name}"));
    fs::remove_file(&link).unwrap();
    symlink("TensileLibrary_Type_SS_gfx1100.co", &link).unwrap();
    // Everything is there,
    process::copy(tree.path("in/blas_lib/stage"), tree.path("root"));
    assert_eq!(faults(&check(&tree, "root")), [""; 0]);
    // but not in the packages of one target.
    let leads = "links to TensileLibrary_Type_SS_gfx1100.co in the artifact of gfx1100";
    let options = Options::new(tree.path("in/blas_lib"), tree.path("out"), "blas_lib");
    let report = split(&options, &()).unwrap();
    let warned = report.findings.iter().filter(|notice| notice.severity == Severity::Warning);
    let warned: Vec<_> = warned.map(|notice| &notice.text).collect();
    assert!(warned.len() == 1 && warned[0].contains(leads), "{warned:#?}");
    assert_found(&check(&tree, "out"), &[name, leads]);
    let report = check_with(&tree, "out", None, &["gfx1100"]);
    assert_eq!(faults(&report), [""; 0]);

    let other = format!("root/{LIBRARY}/TensileLibrary_Type_SS_gfx1100.co");
    fs::remove_file(tree.path(&other)).unwrap();
    let parts = [name, "a link to", "incomplete-database"];
    assert_found(&check(&tree, "root"), &parts);
}

/// As rocBLAS 5.5: one library for all targets, and a code object for each.
#[test]
fn code_objects_of_a_merged_library() {
    let tree = Tree::new();
    let put = |name: &str, bytes: &[u8]| tree.write(&format!("root/{LIBRARY}/{name}"), bytes);
    put("TensileLibrary.dat", &library_of_kernels(&["gfx908", "gfx1030"], &[true, false]).unwrap());
    for target in ["gfx906", "gfx908", "gfx1030"] {
        let object = code_object(target, b"kernels").unwrap();
        put(&format!("Kernels.so-000-{target}.hsaco"), &object);
        // One target may have nothing but source kernels.
        if target != "gfx906" {
            put(&format!("TensileLibrary_{target}.co"), &object);
        }
    }
    assert_eq!(faults(&check(&tree, "root")), [""; 0]);
    for name in ["TensileLibrary_gfx908.co", "Kernels.so-000-gfx908.hsaco"] {
        let path = tree.path(&format!("root/{LIBRARY}/{name}"));
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_found(&check(&tree, "root"), &[name]);
        fs::write(&path, bytes).unwrap();
    }
}
