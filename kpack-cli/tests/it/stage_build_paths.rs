//! Given a release that contains paths of the build machine, when it is staged, then it is rejected wherever
//! they are, and for no other reason.

use std::fs;

use crate::cargo_build::{
    artifact, built, messages, out_dir, out_dir_with, program, refused, script, stage,
};
use kpack_cli::stage::Options;
use kpack_tests::tree::Tree;

#[test]
fn a_path_of_the_build_machine_is_refused() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    let place = tree.path("app/src/main.rs");
    program(&tree, "target/release/build/vec-0123/out/kpack/vec/vec.o", place.to_str().unwrap());
    let text = messages(&[script(&tree, "registry+x#vec@0.2.0", "vec-0123"), artifact(&tree)]);
    insta::assert_snapshot!(refused(&tree, &text));
    let mut options = Options::new(tree.path("dist"));
    options.allow_build_paths = true;
    let report = stage(&options, text.as_bytes()).unwrap();
    assert!(report.findings.iter().any(|notice| notice.text.contains("of this machine")));
}

#[test]
fn short_paths_do_not_match_parts_of_other_paths() {
    let tree = Tree::new();
    let text =
        built(&tree).replace(tree.path("app/Cargo.toml").to_str().unwrap(), "/src/Cargo.toml");
    let object = "target/release/build/vec-0123/out/kpack/vec/vec.o";
    for harmless in ["/rustc/0123/library/core/src/slice.rs", "app/src/main.rs", "/srcs"] {
        program(&tree, object, harmless);
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    }
    fs::remove_dir_all(tree.path("dist")).unwrap();
    program(&tree, object, "/src/main.rs");
    let said = refused(&tree, &text);
    assert!(said.contains("contains the path `/src` of this machine"), "{said}");
}

#[test]
fn paths_of_the_workspace_the_headers_and_device_code() {
    let tree = Tree::new();
    let text = built(&tree);
    let object = "target/release/build/vec-0123/out/kpack/vec/vec.o";
    let places = [
        tree.path("include/where.h"),
        tree.path("target/x86_64-unknown-linux-gnu/generated.h"),
        "/somewhere/else/include/vec.h".into(),
    ];
    fs::write(tree.path("Cargo.lock"), "").unwrap();
    fs::write(tree.path("target/CACHEDIR.TAG"), "").unwrap();
    let known = tree.path("target/release/build/vec-0123/out/kpack/vec/include-directories.txt");
    fs::write(known, "/somewhere/else/include\n").unwrap();
    let mut said = Vec::new();
    for place in places {
        program(&tree, object, place.to_str().unwrap());
        said.push(refused(&tree, &text));
    }
    // In a code object, which the release compresses.
    out_dir_with(&tree, "vec-0123", "vec", &tree.path("app/src/add.hip"));
    program(&tree, object, "");
    said.push(refused(&tree, &text));
    insta::assert_snapshot!(said.join("\n\n"));
}
