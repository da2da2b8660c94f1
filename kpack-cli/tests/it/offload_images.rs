//! Given images that clang made for OpenMP, when a command reads the file, then it names them, and leaves them where
//! they are.

use std::fs;
use std::process::Command;

use kpack_tests::process::run;
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;

use crate::command::said;
use crate::wheels::library;

const SOURCE: &str = "int main(void) {\n  int x = 1;\n#pragma omp target map(tofrom : x)\n  { x = 0; }\n  return x;\n}\n";

/// An object of clang's with an image for gfx1100.
fn object(tree: &Tree) -> bool {
    if !tool("clang-19") {
        return false;
    }
    fs::write(tree.path("omp.c"), SOURCE).unwrap();
    let mut clang = Command::new("clang-19");
    clang.current_dir(tree.root()).args([
        "-fopenmp",
        "-fopenmp-targets=amdgcn-amd-amdhsa",
        "-Xopenmp-target=amdgcn-amd-amdhsa",
        "-march=gfx1100",
        "-nogpulib",
        "-c",
        "omp.c",
        "-o",
        "omp.o",
    ]);
    run(&mut clang);
    objcopy(tree, &["--dump-section", ".llvm.offloading=images.bin", "omp.o", "/dev/null"]);
    true
}

fn objcopy(tree: &Tree, arguments: &[&str]) {
    run(Command::new("objcopy").current_dir(tree.root()).args(arguments));
}

/// A library of ours with the images of OpenMP's in it, as the linker keeps them.
fn library_with_images(tree: &Tree) {
    library().build(&tree.path("stage/lib/libvec.so")).unwrap();
    objcopy(tree, &["--add-section", ".llvm.offloading=images.bin", "stage/lib/libvec.so"]);
}

fn section(tree: &Tree, file: &str) -> Vec<u8> {
    objcopy(tree, &["--dump-section", ".llvm.offloading=after.bin", file, "/dev/null"]);
    fs::read(tree.path("after.bin")).unwrap()
}

#[test]
fn images_of_openmp_are_named_wherever_they_are() {
    let tree = Tree::new();
    if object(&tree) {
        images_are_named(&tree);
    }
}

/// They are for no HIP runtime, so there is nothing to split before the link.
#[test]
fn an_object_with_images_of_openmp_alone_passes_through() {
    let tree = Tree::new();
    if !object(&tree) {
        return;
    }
    let text = said(&tree, &["show", "omp.o"]);
    assert!(text.contains("no device code\n"), "{text}");
    let before = fs::read(tree.path("omp.o")).unwrap();
    let text = said(&tree, &["object", "--module", "m", "--output-dir", "out", "omp.o"]);
    assert!(text.ends_with("exit code 0\n"), "{text}");
    assert!(fs::read(tree.path("omp.o")).unwrap() == before, "the object changed");
}

fn images_are_named(tree: &Tree) {
    library_with_images(tree);
    for file in ["omp.o", "images.bin", "stage/lib/libvec.so"] {
        for command in ["show", "list"] {
            let text = said(tree, &[command, file]);
            assert!(text.contains("1 offload image\n"), "{text}");
            let row = text.lines().find(|line| line.contains("openmp")).unwrap();
            for word in ["bitcode", "amdgcn-amd-amdhsa", "gfx1100", "KiB"] {
                assert!(row.contains(word), "{text}");
            }
            assert!(text.ends_with("exit code 0\n"), "{text}");
        }
    }
    let text = said(tree, &["show", "--json", "images.bin"]);
    assert!(text.contains("\"kind\": \"offload-binary\""), "{text}");
    assert!(text.contains("\"producer\": \"openmp\""), "{text}");
    let text = said(tree, &["show", "."]);
    assert!(text.contains("images.bin"), "{text}");
}

#[test]
fn splitting_names_the_images_and_leaves_them() {
    let tree = Tree::new();
    if !object(&tree) {
        return;
    }
    library_with_images(&tree);
    let images = fs::read(tree.path("images.bin")).unwrap();
    let text = said(&tree, &["split", "--prefix", "stage", "--module", "vec", "--all"]);
    assert!(
        text.contains("1 image for other offloading runtimes: openmp bitcode for gfx1100"),
        "{text}"
    );
    assert!(text.contains("[offload-images]") && text.ends_with("exit code 0\n"), "{text}");
    assert!(section(&tree, "stage/lib/libvec.so") == images, "the images changed");
}

#[test]
fn damaged_images_are_rejected() {
    let tree = Tree::new();
    if !object(&tree) {
        return;
    }
    let images = fs::read(tree.path("images.bin")).unwrap();
    fs::write(tree.path("short.bin"), &images[..100]).unwrap();
    let text = said(&tree, &["show", "short.bin"]);
    assert!(text.contains("short.bin: offload binary at offset 8: a length of"), "{text}");
    assert!(text.contains("[damaged-binary]") && text.ends_with("exit code 3\n"), "{text}");
}
