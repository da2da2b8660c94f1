//! Given what Cargo says about a build, when it is staged, then the directory has everything, finds
//! it by relative paths, and names no path of the machine; `cargo xtask e2e` does it with Cargo.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use kpack_build::stage::{self, Options};
use kpack_build::{Error, report::Report};
use kpack_build::{object_file, verify};
use kpack_format::archive::Archive;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::tree::Tree;
use serde_json::json;

fn stage(options: &Options, messages: &[u8]) -> Result<Report, Error> {
    stage::stage(options, messages, &mut |_| {})
}

/// What a build script of a package made: a split object in its OUT_DIR.
fn out_dir(tree: &Tree, directory: &str, module: &str) {
    out_dir_with(tree, directory, module, Path::new(directory));
}

/// The same, with a path in its device code.
fn out_dir_with(tree: &Tree, directory: &str, module: &str, place: &Path) {
    let object = tree.path(&format!("{module}.o"));
    let library = FatLibrary::new().kind(Kind::Object);
    let name = format!("{module} in {}", place.display());
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
    fs::write(output.join("include-directories.txt"), "").unwrap();
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

/// A build script ran, and told to link the one library in its OUT_DIR.
fn script(tree: &Tree, package: &str, directory: &str) -> serde_json::Value {
    let out_dir = tree.path(&format!("target/release/build/{directory}/out"));
    let library = fs::read_dir(out_dir.join("kpack"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    json!({
        "reason": "build-script-executed", "package_id": package,
        "linked_libs": ["static=kernels", "dylib=stdc++"],
        "linked_paths": [format!("native={}", library.display()), "native=/opt/rocm/lib"],
        "cfgs": [], "env": [], "out_dir": out_dir,
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

/// The kernels of a release, as its archives have them.
fn staged_kernels(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.files() {
        if file.starts_with("dist/") && file.ends_with(".kpack") {
            let archive = Archive::open(File::open(tree.path(&file)).unwrap()).unwrap();
            let kernels = archive.toc().kernels.keys();
            found.extend(kernels.map(|kernel| format!("{file} {kernel}")));
        }
    }
    found
}

#[test]
fn what_an_earlier_build_left_in_out_dir() {
    let tree = Tree::new();
    let text = built(&tree);
    // A shared library, and the archives of another module, under names that build.rs had before.
    let old = tree.path("target/release/build/vec-0123/out/kpack/old");
    out_dir(&tree, "other-4567", "other");
    let other = tree.path("target/release/build/other-4567/out/kpack/other");
    fs::rename(&other, &old).unwrap();
    fs::write(old.join("libold.so"), "").unwrap();
    out_dir(&tree, "other-4567", "other");
    let with_other = text.lines().next().unwrap().to_owned()
        + "\n"
        + &messages(&[
            script(&tree, "path+file:///work/other#1.0.0", "other-4567"),
            artifact(&tree),
        ]);
    for text in [text, with_other] {
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
        assert!(!tree.path("dist/lib/libold.so").exists());
        assert_eq!(
            staged_kernels(&tree),
            [
                "dist/lib/.kpack/vec_lib_gfx1100.kpack bin/app#0",
                "dist/lib/.kpack/vec_lib_gfx942.kpack bin/app#0",
            ]
        );
    }
}

#[test]
fn a_shared_library_that_is_built_twice() {
    let tree = Tree::new();
    built(&tree);
    out_dir(&tree, "vec-4567", "vec");
    for directory in ["vec-0123", "vec-4567"] {
        let library = format!("target/release/build/{directory}/out/kpack/vec/libvec.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-x", "c", "/dev/null", "-o"]);
        assert!(cc.arg(tree.path(&library)).status().unwrap().success());
    }
    let of_program = script(&tree, "registry+x#vec@0.2.0", "vec-0123");
    // The same package again: as it was, and in the directory of what runs on the build machine.
    let again = messages(&[of_program.clone(), of_program.clone(), artifact(&tree)]);
    stage(&Options::new(tree.path("dist")), again.as_bytes()).unwrap();
    assert!(tree.path("dist/lib/libvec.so").is_file());

    fs::create_dir_all(tree.path("target/debug/build")).unwrap();
    let [from, to] = [
        "target/release/build/vec-4567",
        "target/debug/build/vec-4567",
    ]
    .map(|p| tree.path(p));
    let of_host = script(&tree, "registry+x#vec@0.2.0", "vec-4567");
    let near = messages(&[of_host.clone(), of_program.clone(), artifact(&tree)]);
    fs::rename(&from, &to).unwrap();
    let far = of_host
        .to_string()
        .replace(from.to_str().unwrap(), to.to_str().unwrap());
    let far = format!(
        "{far}\n{}",
        messages(&[of_program.clone(), artifact(&tree)])
    );
    stage(&Options::new(tree.path("dist")), far.as_bytes()).unwrap();
    fs::rename(&to, &from).unwrap();

    fs::remove_dir_all(tree.path("dist")).unwrap();
    let mut said = refused(&tree, &near);
    let fork = near.replacen("registry+x#vec@0.2.0", "registry+x#fork@1.0.0", 1);
    fs::remove_file(from.join("out/kpack/vec/.kpack/vec_lib.kpm")).unwrap();
    said += "\n\n";
    said += &refused(&tree, &fork);
    insta::assert_snapshot!(said);
}

#[test]
fn short_paths_are_no_part_of_other_paths() {
    let tree = Tree::new();
    let text = built(&tree).replace(
        tree.path("app/Cargo.toml").to_str().unwrap(),
        "/src/Cargo.toml",
    );
    let object = "target/release/build/vec-0123/out/kpack/vec/vec.o";
    for harmless in [
        "/rustc/0123/library/core/src/slice.rs",
        "app/src/main.rs",
        "/srcs",
    ] {
        program(&tree, object, harmless);
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    }
    fs::remove_dir_all(tree.path("dist")).unwrap();
    program(&tree, object, "/src/main.rs");
    let said = refused(&tree, &text);
    assert!(
        said.contains("it has the path `/src` of this machine"),
        "{said}"
    );
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
    // In a code object, which the archive of a release has compressed.
    out_dir_with(&tree, "vec-0123", "vec", &tree.path("app/src/add.hip"));
    program(&tree, object, "");
    said.push(refused(&tree, &text));
    insta::assert_snapshot!(said.join("\n\n"));
}

#[test]
fn markers_that_do_not_tell_where_the_archives_are() {
    let tree = Tree::new();
    let text = built(&tree);
    let object = tree.path("vec.o");
    let mut options = object_file::Options::new("vec", tree.path("target/release"), [object]);
    options.search_paths = vec![".kpack/vec_lib_@GFXARCH@.kpack".to_owned()];
    object_file::split(&options, &()).unwrap();
    program(&tree, "target/release/vec.o", "");
    insta::assert_snapshot!(refused(&tree, &text));
}

#[test]
fn what_the_compiler_said_is_passed_on() {
    let tree = Tree::new();
    built(&tree);
    let said = json!({
        "reason": "compiler-message", "package_id": "path+file:///app#0.1.0",
        "manifest_path": tree.path("app/Cargo.toml"),
        "target": artifact(&tree)["target"],
        "message": {"message": "mismatched types", "code": null, "level": "error", "spans": [],
                    "children": [], "rendered": "error[E0308]: mismatched types\n"},
    });
    let failed = json!({"reason": "build-finished", "success": false});
    let mut shown = String::new();
    let messages = format!("{said}\n{failed}\n");
    let options = Options::new(tree.path("dist"));
    stage::stage(&options, messages.as_bytes(), &mut |text| shown += text).unwrap_err();
    assert_eq!(shown, "error[E0308]: mismatched types\n");
}
