//! Given Cargo's messages about a build, when it is staged, then the directory is complete, and programs find
//! their device code by relative paths. `cargo xtask e2e` does so with Cargo itself.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::cargo_build::{
    artifact, artifact_of, built, messages, out_dir, program, refused, script, stage,
};
use crate::verified::assert_holds;
use kpack_build::object_file;
use kpack_cli::stage::Options;
use kpack_core::{Severity, ids};
use kpack_format::archive::Archive;
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::process;
use kpack_tests::tree::Tree;
use serde_json::json;

#[test]
fn a_staged_release_can_be_moved() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    program(&tree, "target/release/build/vec-0123/out/kpack/vec/vec.o", "");
    let text = messages(&[script(&tree, "registry+x#vec@0.2.0", "vec-0123"), artifact(&tree)]);
    for _ in 0..2 {
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    }
    fs::create_dir(tree.path("elsewhere")).unwrap();
    fs::rename(tree.path("dist"), tree.path("elsewhere/app")).unwrap();
    fs::remove_dir_all(tree.path("target")).unwrap();
    let staged = tree.path("elsewhere/app");
    assert_holds(&staged);
    let printed = process::run(&mut Command::new(staged.join("bin/app")));
    assert_eq!(printed, "HIPK 0\nhost 27\n");
    let files =
        Vec::from_iter(tree.files().into_iter().filter(|file| file.starts_with("elsewhere")));
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
    let place = place.to_str().unwrap();
    bytes::contains(&fs::read(file).unwrap(), place)
}

/// The build script found the targets, since nothing named any.
#[test]
fn targets_of_the_machine_that_built_a_package() {
    let tree = Tree::new();
    let text = built(&tree);
    let native = "target/release/build/vec-0123/out/kpack/vec/native-targets.txt";
    for targets in [None, Some("gfx942\ngfx1100\n")] {
        if let Some(targets) = targets {
            fs::write(tree.path(native), targets).unwrap();
        }
        let report = stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
        let warned = report.findings.iter().find(|finding| finding.id == ids::NATIVE_TARGETS);
        assert_eq!(warned.is_some(), targets.is_some());
        if let Some(warning) = warned {
            assert_eq!(warning.severity, Severity::Warning);
            let expected =
                "package `vec v0.2.0` has code only for gfx942, gfx1100, the GPUs of the machine";
            assert!(warning.text.starts_with(expected), "{}", warning.text);
        }
    }
}

/// They are in the program, which is linked with no library of theirs.
#[test]
fn modules_for_the_machine_that_built_them() {
    let tree = Tree::new();
    let out = "target/release/build/vec-0123/out/kpack";
    let (modules, stale) = (format!("{out}/kernels"), format!("{out}/old"));
    for (directory, targets) in [(&modules, "gfx942\n"), (&stale, "gfx1030\n")] {
        fs::create_dir_all(tree.path(directory)).unwrap();
        fs::write(tree.path(&format!("{directory}/include-directories.txt")), "").unwrap();
        fs::write(tree.path(&format!("{directory}/native-targets.txt")), targets).unwrap();
    }
    fat_object(&tree, "modules.o", "fixture_report");
    program(&tree, "modules.o", "");
    let mut script = script(&tree, "registry+x#vec@0.2.0", "vec-0123");
    script["linked_paths"] = json!([]);
    script["env"] = json!([["KPACK_MODULES_kernels", tree.path(&modules)], ["OTHER", "1"]]);
    let text = messages(&[script, artifact(&tree)]);
    let report = stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    let [warning] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    assert_eq!(warning.id, ids::NATIVE_TARGETS);
    let expected = "package `vec v0.2.0` has code only for gfx942, the GPUs of the machine";
    assert!(warning.text.starts_with(expected), "{}", warning.text);
}

/// Two programs, of which one has an object that was split before the link, and the other has modules, whose archives get
/// the program's name.
#[test]
fn an_archive_that_is_written_twice_is_listed_once() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "app");
    program(&tree, "target/release/build/vec-0123/out/kpack/app/app.o", "");
    let tool = tree.path("target/release/tool");
    fs::rename(tree.path("target/release/app"), &tool).unwrap();
    fat_object(&tree, "modules.o", "fixture_report");
    program(&tree, "modules.o", "");
    let text = messages(&[
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        artifact(&tree),
        artifact_of(&tree, &tool, "bin"),
    ]);
    let report = stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    let listed = report.archives.iter().map(|archive| {
        assert_eq!(archive.size, fs::metadata(&archive.path).unwrap().len());
        archive.path.strip_prefix(tree.path("dist")).unwrap().to_str().unwrap()
    });
    assert_eq!(
        Vec::from_iter(listed),
        ["lib/.kpack/app_lib_gfx1100.kpack", "lib/.kpack/app_lib_gfx942.kpack"]
    );
    assert_eq!(staged_kernels(&tree).len(), 4);
    assert_holds(&tree.path("dist"));
}

#[test]
fn two_packages_with_one_module() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    out_dir(&tree, "fork-4567", "vec");
    program(&tree, "target/release/build/vec-0123/out/kpack/vec/vec.o", "");
    let scripts = [
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        script(&tree, "path+file:///srv/fork#1.0.0", "fork-4567"),
        artifact(&tree),
    ];
    insta::assert_snapshot!(refused(&tree, &messages(&scripts)));

    // One package may have several: a library, and its build script's own.
    let twice = [
        script(&tree, "registry+x#vec@0.2.0", "vec-0123"),
        script(&tree, "registry+x#vec@0.2.0", "fork-4567"),
        artifact(&tree),
    ];
    stage(&Options::new(tree.path("dist")), messages(&twice).as_bytes()).unwrap();
}

#[test]
fn what_is_no_successful_build_is_refused() {
    let tree = Tree::new();
    out_dir(&tree, "vec-0123", "vec");
    program(&tree, "target/release/build/vec-0123/out/kpack/vec/vec.o", "");
    let failed = json!({"reason": "build-finished", "success": false}).to_string();
    let text = [refused(&tree, ""), refused(&tree, &failed), refused(&tree, &messages(&[]))];
    insta::assert_snapshot!(text.join("\n\n"));
}

/// The kernels in the archives of a release.
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
            script(&tree, "path+file:///srv/other#1.0.0", "other-4567"),
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
    // The same package again: unchanged, and in the directory of build scripts and macros.
    let again = messages(&[of_program.clone(), of_program.clone(), artifact(&tree)]);
    stage(&Options::new(tree.path("dist")), again.as_bytes()).unwrap();
    assert!(tree.path("dist/lib/libvec.so").is_file());

    fs::create_dir_all(tree.path("target/debug/build")).unwrap();
    let [from, to] =
        ["target/release/build/vec-4567", "target/debug/build/vec-4567"].map(|p| tree.path(p));
    let of_host = script(&tree, "registry+x#vec@0.2.0", "vec-4567");
    let near = messages(&[of_host.clone(), of_program.clone(), artifact(&tree)]);
    fs::rename(&from, &to).unwrap();
    let far = of_host.to_string().replace(from.to_str().unwrap(), to.to_str().unwrap());
    let far = format!("{far}\n{}", messages(&[of_program.clone(), artifact(&tree)]));
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
fn markers_that_lead_beside_the_program() {
    let tree = Tree::new();
    let text = built(&tree);
    // A build script or a shell may split objects with the default search paths, beside the program.
    let options =
        object_file::Options::new("vec", tree.path("target/release"), [tree.path("vec.o")]);
    object_file::split(&options, &()).unwrap();
    program(&tree, "target/release/vec.o", "");
    let staged = tree.path("dist");
    stage(&Options::new(&staged), text.as_bytes()).unwrap();
    assert_eq!(staged_kernels(&tree).len(), 2);
    assert_holds(&staged);

    fs::remove_dir_all(tree.path("dist")).unwrap();
    fs::remove_dir_all(tree.path("target/release/.kpack")).unwrap();
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
    kpack_cli::stage::stage(&options, messages.as_bytes(), &mut |text| shown += text).unwrap_err();
    assert_eq!(shown, "error[E0308]: mismatched types\n");
}

/// An object with device code that was not split before the link, as modules are.
fn fat_object(tree: &Tree, file: &str, function: &str) {
    let library = FatLibrary::new().kind(Kind::Object).flag(format!("-Dfixture_report={function}"));
    let targets = [code("gfx1100", file), code("gfx942", file)];
    let object = tree.path(file);
    library.wrapper(Storage::Plain, targets).build(&object).unwrap();
    // Other objects of the fixture have symbols of the same names.
    let mut objcopy = Command::new("objcopy");
    process::run(objcopy.arg(format!("--keep-global-symbol={function}")).arg(&object));
}

#[test]
fn device_code_in_a_program_is_moved_or_stays() {
    let tree = Tree::new();
    fs::create_dir_all(tree.path("target/release")).unwrap();
    fat_object(&tree, "modules.o", "fixture_report");
    program(&tree, "modules.o", "");
    let text = messages(&[artifact(&tree)]);
    let report = stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let mut app = Command::new(tree.path("dist/bin/app"));
    assert_eq!(process::run(&mut app), "HIPK 0\nhost 27\n");
    assert_holds(&tree.path("dist"));
    assert_eq!(
        staged_kernels(&tree),
        [
            "dist/lib/.kpack/app_lib_gfx1100.kpack bin/app#0",
            "dist/lib/.kpack/app_lib_gfx942.kpack bin/app#0",
        ]
    );

    let mut options = Options::new(tree.path("dist"));
    options.embed = true;
    let report = stage(&options, text.as_bytes()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let staged = fs::read(tree.path("dist/bin/app")).unwrap();
    assert_eq!(staged, fs::read(tree.path("target/release/app")).unwrap());
    assert!(!tree.path("dist/lib").exists());
}

/// Kernels that C++ code launches are split before the link, and modules are not.
#[test]
fn a_program_with_kernels_and_modules() {
    for module in ["vec", "app"] {
        let tree = Tree::new();
        out_dir(&tree, "vec-0123", module);
        fat_object(&tree, "modules.o", "modules_report");
        let object = format!("target/release/build/vec-0123/out/kpack/{module}/{module}.o");
        process::run(Command::new("ld").current_dir(tree.root()).args([
            "-r",
            "-o",
            "both.o",
            &object,
            "modules.o",
        ]));
        program(&tree, "both.o", "");
        let text = messages(&[script(&tree, "registry+x#vec@0.2.0", "vec-0123"), artifact(&tree)]);
        let report = stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
        assert!(report.findings.is_empty(), "{module}: {:?}", report.findings);
        fs::remove_dir_all(tree.path("target")).unwrap();
        assert_holds(&tree.path("dist"));
        let kernels = staged_kernels(&tree);
        assert_eq!(kernels.len(), 4, "{module}: {kernels:?}");
        assert!(!contains(&tree.path("dist/bin/app"), tree.root()));
    }
}
