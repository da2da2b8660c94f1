//! Given what Cargo says about a build, when it is staged, then the directory has everything, finds
//! it by relative paths, and names no path of the machine; `cargo xtask e2e` does it with Cargo.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_build::stage::{Options, stage};
use kpack_build::{object_file, verify};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::tree::Tree;
use serde_json::json;

/// What a build script of a package made: a split object in its OUT_DIR.
fn out_dir(tree: &Tree, directory: &str, module: &str) {
    let object = tree.path(&format!("{module}.o"));
    let library = FatLibrary::new().kind(Kind::Object);
    let name = format!("{module} in {directory}");
    let targets = [code("gfx1100", &name), code("gfx942", &name)];
    library
        .wrapper(Storage::Plain, targets)
        .build(&object)
        .unwrap();
    let output = tree.path(&format!(
        "target/release/build/{directory}/out/kpack/{module}"
    ));
    let mut options = object_file::Options::new(module, &output, [object]);
    let pattern = output.join(format!(".kpack/{module}_lib_@GFXARCH@.kpack"));
    options.search_paths = vec![pattern.to_str().unwrap().to_owned()];
    object_file::split(&options, &()).unwrap();
}

/// A program, linked with what the build script made.
fn program(tree: &Tree, object: &str, extra: &str) {
    let main = format!(
        "void fixture_report(void);\nconst char *place = \"{extra}\";\nint main(void) {{ fixture_report(); return !place; }}\n"
    );
    fs::write(tree.path("main.c"), main).unwrap();
    let mut command = Command::new("cc");
    command
        .arg("-o")
        .arg(tree.path("target/release/app"))
        .arg(tree.path("main.c"));
    let output = command.arg(tree.path(object)).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn script(tree: &Tree, package: &str, directory: &str) -> serde_json::Value {
    json!({
        "reason": "build-script-executed", "package_id": package, "linked_libs": [], "linked_paths": [],
        "cfgs": [], "env": [], "out_dir": tree.path(&format!("target/release/build/{directory}/out")),
    })
}

fn artifact(tree: &Tree) -> serde_json::Value {
    let program = tree.path("target/release/app");
    json!({
        "reason": "compiler-artifact", "package_id": "path+file:///app#0.1.0",
        "manifest_path": tree.path("app/Cargo.toml"),
        "target": {"kind": ["bin"], "crate_types": ["bin"], "name": "app", "src_path": "/app/src/main.rs",
                   "edition": "2024", "doc": true, "doctest": false, "test": true},
        "profile": {"opt_level": "3", "debuginfo": 0, "debug_assertions": false, "overflow_checks": false, "test": false},
        "features": [], "filenames": [program], "executable": program, "fresh": false,
    })
}

fn messages(lines: &[serde_json::Value]) -> String {
    let end = json!({"reason": "build-finished", "success": true});
    let lines = lines.iter().chain([&end]);
    lines.map(|line| format!("{line}\n")).collect()
}

fn refused(tree: &Tree, messages: &str) -> String {
    let error = stage(&Options::new(tree.path("dist")), messages.as_bytes()).unwrap_err();
    assert!(!tree.path("dist").exists());
    nothing_hidden(tree);
    error
        .in_one_line()
        .replace(tree.root().to_str().unwrap(), "[root]")
}

/// Nothing is left beside the release.
fn nothing_hidden(tree: &Tree) {
    let entries = fs::read_dir(tree.root()).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name());
    assert!(names.all(|name| !name.to_str().unwrap().starts_with('.')));
}

#[test]
fn a_staged_release_can_be_moved() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    program(
        &tree,
        "target/release/build/vec-0123/out/kpack/vec/vec.o",
        "",
    );
    let text = messages(&[
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        artifact(&tree),
    ]);
    for _ in 0..2 {
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    }
    fs::create_dir(tree.path("elsewhere")).unwrap();
    fs::rename(tree.path("dist"), tree.path("elsewhere/app")).unwrap();
    fs::remove_dir_all(tree.path("target")).unwrap();
    let staged = tree.path("elsewhere/app");
    let options = verify::Options::default();
    let report =
        verify::verify(std::slice::from_ref(&staged), &options, &mut |_, _, _| {}).unwrap();
    assert!(report.holds(), "{report:#?}");
    let output = Command::new(staged.join("bin/app")).output().unwrap();
    assert_eq!(output.stdout, b"HIPK 0\nhost 27\n");
    let files = Vec::from_iter(
        tree.files()
            .into_iter()
            .filter(|file| file.starts_with("elsewhere")),
    );
    assert_eq!(
        files,
        [
            "elsewhere/app/.kpack-stage",
            "elsewhere/app/bin/app",
            "elsewhere/app/lib/.kpack/vec_lib.kpm",
            "elsewhere/app/lib/.kpack/vec_lib_gfx1100.kpack",
            "elsewhere/app/lib/.kpack/vec_lib_gfx942.kpack",
        ]
    );
    for file in files {
        assert!(!contains(&tree.path(&file), tree.root()), "{file}");
    }
}

fn contains(file: &Path, place: &Path) -> bool {
    let place = place.to_str().unwrap().as_bytes();
    fs::read(file)
        .unwrap()
        .windows(place.len())
        .any(|window| window == place)
}

#[test]
fn two_packages_with_one_module() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    out_dir(&tree, "fork-4567", "vec");
    program(
        &tree,
        "target/release/build/vec-0123/out/kpack/vec/vec.o",
        "",
    );
    let scripts = [
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        script(&tree, "path+file:///work/fork#1.0.0", "fork-4567"),
        artifact(&tree),
    ];
    insta::assert_snapshot!(refused(&tree, &messages(&scripts)));

    // One package may have several: a library, and its build script's own.
    let twice = [
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        script(&tree, "registry+x#vec@0.2.0", "fork-4567"),
        artifact(&tree),
    ];
    stage(
        &Options::new(tree.path("dist")),
        messages(&twice).as_bytes(),
    )
    .unwrap();
}

#[test]
fn a_path_of_the_build_machine_is_refused() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    let place = tree.path("app/src/main.rs");
    program(
        &tree,
        "target/release/build/vec-0123/out/kpack/vec/vec.o",
        place.to_str().unwrap(),
    );
    let text = messages(&[
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        artifact(&tree),
    ]);
    insta::assert_snapshot!(refused(&tree, &text));
    let mut options = Options::new(tree.path("dist"));
    options.allow_build_paths = true;
    let report = stage(&options, text.as_bytes()).unwrap();
    assert!(
        report
            .notices
            .iter()
            .any(|notice| notice.text.contains("of this machine"))
    );
}

#[test]
fn what_is_no_successful_build_is_refused() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    program(
        &tree,
        "target/release/build/vec-0123/out/kpack/vec/vec.o",
        "",
    );
    let failed = json!({"reason": "build-finished", "success": false}).to_string();
    let text = [
        refused(&tree, ""),
        refused(&tree, &failed),
        refused(&tree, &messages(&[])),
    ];
    insta::assert_snapshot!(text.join("\n\n"));
}

/// A build of one program with kernels.
fn built(tree: &Tree) -> String {
    out_dir(tree, "vec-0123", "vec");
    program(
        tree,
        "target/release/build/vec-0123/out/kpack/vec/vec.o",
        "",
    );
    messages(&[
        script(tree, "registry+x#vec@0.2.0", "vec-0123"),
        artifact(tree),
    ])
}

#[test]
fn only_what_was_staged_is_replaced() {
    let tree = Tree::new();
    let text = built(&tree);
    let in_the_way = |directory: &str| {
        let before = tree.snapshot();
        let options = Options::new(tree.path(directory));
        let error = stage(&options, text.as_bytes()).unwrap_err();
        assert_eq!(tree.snapshot(), before);
        nothing_hidden(&tree);
        let root = tree.root().to_str().unwrap();
        error.in_one_line().replace(root, "[root]")
    };
    // A prefix that has nothing but what a release has, too.
    fs::create_dir_all(tree.path("prefix/bin")).unwrap();
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    fs::write(tree.path("prefix/bin/precious"), "mine").unwrap();
    let mut said = vec![in_the_way("prefix")];
    // A release, with a file of the user's.
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    fs::write(tree.path("dist/bin/start"), "mine").unwrap();
    said.push(in_the_way("dist"));
    fs::remove_file(tree.path("dist/bin/start")).unwrap();
    fs::create_dir_all(tree.path("dist/share/doc")).unwrap();
    said.push(in_the_way("dist"));
    fs::remove_dir_all(tree.path("dist/share")).unwrap();
    fs::write(tree.path("file"), "mine").unwrap();
    said.push(in_the_way("file"));
    insta::assert_snapshot!(said.join("\n\n"));

    // The release alone is replaced, with what a run that was killed left beside it.
    fs::create_dir(tree.path(".dist.kpack-stage-old")).unwrap();
    fs::copy(
        tree.path("dist/.kpack-stage"),
        tree.path(".dist.kpack-stage-old/.kpack-stage"),
    )
    .unwrap();
    fs::remove_file(tree.path("dist/bin/app")).unwrap();
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    assert!(tree.path("dist/bin/app").is_file());
    nothing_hidden(&tree);
    // Killed between its two renames, that run left the release under the other name.
    fs::rename(tree.path("dist"), tree.path(".dist.kpack-stage-old")).unwrap();
    let failed = json!({"reason": "build-finished", "success": true}).to_string();
    stage(&Options::new(tree.path("dist")), failed.as_bytes()).unwrap_err();
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    nothing_hidden(&tree);
}

#[test]
fn symbolic_links_and_empty_directories_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let tree = Tree::new();
    let text = built(&tree);
    fs::create_dir(tree.path("real")).unwrap();
    fs::set_permissions(tree.path("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("real", tree.path("dist")).unwrap();
    for _ in 0..2 {
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
        assert!(tree.path("dist").is_symlink());
        assert!(tree.path("real/bin/app").is_file());
        nothing_hidden(&tree);
    }
    symlink("nowhere", tree.path("broken")).unwrap();
    stage(&Options::new(tree.path("broken")), text.as_bytes()).unwrap_err();
    assert!(tree.path("broken").is_symlink() && !tree.path("nowhere").exists());
    // Directories above one that is not made are not made either.
    let deep = Options::new(tree.path("a/b/dist"));
    let failed = messages(&[]);
    stage(&deep, failed.as_bytes()).unwrap_err();
    fs::write(tree.path("target/release/app"), "#!/bin/sh\n").unwrap();
    let place = tree.path("target/release");
    fs::write(tree.path("target/release/app"), place.to_str().unwrap()).unwrap();
    stage(&deep, text.as_bytes()).unwrap_err();
    assert!(!tree.path("a").exists());
}
