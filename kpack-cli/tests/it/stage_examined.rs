//! Given an application, when it is staged, then it is examined as the doctor does; and when a file of it is removed later, then
//! the doctor names that file.

use std::fs;
use std::process::Command;

use insta::assert_snapshot;
use kpack_core::Severity;
use kpack_doctor::{Options, Scope, examine};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, stub_library};
use kpack_tests::process;
use kpack_tests::removed::each_file;
use kpack_tests::tree::Tree;

use crate::command::{Row, said_by, succeeds, words};
use crate::machine::{code, kpack_loader, split_files};
use crate::stage_application::{GPUS, database, library};

/// A program without device code that is linked with these libraries.
fn program(tree: &Tree, name: &str, libraries: &[&str]) {
    tree.write("main.c", "int main(void) { return 0; }");
    let mut cc = Command::new("cc");
    cc.args(["main.c", "-Wl,--no-as-needed,-rpath,$ORIGIN/../lib", "-o"]);
    fs::create_dir_all(tree.path("bin")).unwrap();
    process::run(cc.arg(tree.path("bin").join(name)).args(libraries).current_dir(tree.root()));
}

/// Given an application that lacks what no table of its files lists, then stage says so.
#[test]
fn what_is_found_in_the_output() {
    let tree = Tree::new();
    for name in ["librocblas.so.5", "libMIOpen.so.1", "libplain.so"] {
        stub_library(&tree.path("lib").join(name), "", &[]);
        let stem = name.split('.').next().unwrap();
        program(&tree, &stem[3..], &[&format!("lib/{name}")]);
    }
    let only = FatLibrary::new().wrapper(Storage::Plain, [code("gfx942", 1)]);
    only.flag("-Wl,-soname,libonly.so").build(&tree.path("lib/libonly.so")).unwrap();
    let rows: &[Row] = &[
        (
            "a library without its database, and no code for a GPU",
            |_| {},
            &["kpack stage bin/rocblas --output-dir dist"],
        ),
        (
            "a library that searches for kernels at run time instead",
            |_| {},
            &["kpack stage bin/MIOpen --output-dir dist"],
        ),
        ("a program without device code", |_| {}, &["kpack stage bin/plain --output-dir dist"]),
        (
            "a library that the program beside it does not load, without code for the GPU",
            |_| {},
            &[
                "kpack stage bin/plain lib/libonly.so --output-dir dist --arch gfx1100",
                "kpack stage bin/plain lib/libonly.so --output-dir dist --arch gfx942",
            ],
        ),
    ];
    assert_snapshot!(said_by(rows, &tree));
}

/// Libraries that the HIP runtime needs besides.
const OTHERS: usize = 16;

/// A program with a split library in `app`, and ROCm in `rocm`, which loads what it compiles with by name.
fn application() -> Tree {
    let tree = Tree::new();
    let at = |name: &str| tree.path("rocm/lib").join(name);
    let stub = |name: &str, code: &str, needed: &[String]| {
        let needed = Vec::from_iter(needed.iter().map(|name| at(name)));
        stub_library(&at(name), code, &Vec::from_iter(needed.iter().map(|path| &**path)));
    };
    let others = Vec::from_iter((0..OTHERS).map(|number| format!("libother{number}.so.1")));
    others.iter().for_each(|name| stub(name, "", &[]));
    stub("libhsa-runtime64.so.1", "", &others);
    stub("libLLVM.so.21.1", "", &[]);
    stub("libamd_comgr.so.3", "", &["libLLVM.so.21.1".to_owned()]);
    stub("libamd_comgr_loader.so.1", "", &[]);
    tree.write("rocm/amdgcn/bitcode/ocml.bc", "");
    kpack_loader(&tree, "rocm/lib/librocm_kpack.so.0");
    let code = "int kpack_load_code_object(void);\n\
        int (*loads)(void) = kpack_load_code_object;\n\
        const char comgr[] = \"libamd_comgr.so.3\";";
    let needed = ["librocm_kpack.so.0", "libhsa-runtime64.so.1", "libamd_comgr_loader.so.1"];
    stub("libamdhip64.so.7", code, &needed.map(str::to_owned));
    let hip = at("libamdhip64.so.7");
    stub("libhiprtc-builtins.so.7", "", &[]);
    stub("libhiprtc.so.7", "const char comgr[] = \"libamd_comgr.so.3\";", &[]);
    library("librocblas.so.5").linked_with(&hip, "$ORIGIN").build(&at("librocblas.so.5")).unwrap();
    GPUS.iter().for_each(|gpu| database(&tree, gpu));
    let rocm = "$ORIGIN/../../rocm/lib";
    let vec = library("libvec.so").linked_with(at("librocblas.so.5"), rocm);
    let vec = vec.linked_with(at("libhiprtc.so.7"), rocm);
    vec.build(&tree.path("app/lib/libvec.so")).unwrap();
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = program.linked_with(tree.path("app/lib/libvec.so"), "$ORIGIN/../lib");
    program.flag("-Wl,--allow-shlib-undefined").build(&tree.path("app/bin/app")).unwrap();
    split_files(&tree, "app", &["lib/libvec.so"]);
    tree
}

#[test]
fn each_file_of_a_staged_application_is_missed() {
    let tree = application();
    succeeds(&tree, &words("stage app/bin/app --output-dir dist"));
    let program = tree.path("dist/bin/app");
    let faults = || {
        if !program.exists() {
            return "bin/app is missing".to_owned();
        }
        let mut options = Options::default();
        options.targets = Vec::from_iter(GPUS.iter().map(|gpu| gpu.parse().unwrap()));
        options.system = tree.path("system");
        options.scope = Some(Scope { directory: Some(tree.path("dist")), ..Scope::default() });
        let report = examine(std::slice::from_ref(&program), &options).unwrap();
        let findings = report.findings.iter().map(|found| &found.finding);
        let faults = findings.filter(|finding| finding.severity == Severity::Fault);
        Vec::from_iter(faults.map(|fault| format!("{}: {}", fault.file().display(), fault.text)))
            .join("\n")
    };
    let removed = each_file(&tree.path("dist"), faults);
    assert!(removed.missed.len() >= 30, "{removed:#?}");
    // Only kpack reads its mark of the directory and the manifest. Comgr contains the bitcode, and hipRTC its builtins.
    assert_eq!(
        removed.unnoticed,
        [
            ".kpack-stage",
            "amdgcn/bitcode/ocml.bc",
            "lib/.kpack/vec_lib.kpm",
            "lib/libhiprtc-builtins.so.7"
        ]
    );
}
