//! A build by Cargo, to be staged: the files of its build scripts and linkers, and Cargo's messages.

#![allow(dead_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_build::object_file;
use kpack_cli::stage::{self, Options};
use kpack_split::Error;
use kpack_split::report::Report;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::process;
use kpack_tests::tree::Tree;
use serde_json::json;

pub(crate) fn stage(options: &Options, messages: &[u8]) -> Result<Report, Error> {
    stage::stage(options, messages, &mut |_| {})
}

/// The output of a package's build script: a split object in its OUT_DIR.
pub(crate) fn out_dir(tree: &Tree, directory: &str, module: &str) {
    out_dir_with(tree, directory, module, Path::new(directory));
}

/// The same, with a path in its device code.
pub(crate) fn out_dir_with(tree: &Tree, directory: &str, module: &str, place: &Path) {
    let object = tree.path(&format!("{module}.o"));
    let library = FatLibrary::new().kind(Kind::Object);
    let name = format!("{module} in {}", place.display());
    let targets = [code("gfx1100", &name), code("gfx942", &name)];
    library.wrapper(Storage::Plain, targets).build(&object).unwrap();
    let output = tree.path(&format!("target/release/build/{directory}/out/kpack/{module}"));
    let mut options = object_file::Options::new(module, &output, [object]);
    let pattern = output.join(format!(".kpack/{module}_lib_@GFXARCH@.kpack"));
    options.search_paths = vec![pattern.to_str().unwrap().to_owned()];
    object_file::split(&options, &()).unwrap();
    fs::write(output.join("include-directories.txt"), "").unwrap();
}

/// A program, linked with the build script's object.
pub(crate) fn program(tree: &Tree, object: &str, extra: &str) {
    let main = format!(
        "void fixture_report(void);\nconst char *place = \"{extra}\";\nint main(void) {{ fixture_report(); return !place; }}\n"
    );
    fs::write(tree.path("main.c"), main).unwrap();
    let mut command = Command::new("cc");
    command.arg("-o").arg(tree.path("target/release/app")).arg(tree.path("main.c"));
    process::run(command.arg(tree.path(object)));
}

/// Cargo's message about a build script that links the one library in its OUT_DIR.
pub(crate) fn script(tree: &Tree, package: &str, directory: &str) -> serde_json::Value {
    let out_dir = tree.path(&format!("target/release/build/{directory}/out"));
    let library = fs::read_dir(out_dir.join("kpack")).unwrap().next().unwrap().unwrap().path();
    json!({
        "reason": "build-script-executed", "package_id": package,
        "linked_libs": ["static=kernels", "dylib=stdc++"],
        "linked_paths": [format!("native={}", library.display()), "native=/opt/rocm/lib"],
        "cfgs": [], "env": [], "out_dir": out_dir,
    })
}

pub(crate) fn artifact(tree: &Tree) -> serde_json::Value {
    artifact_of(tree, &tree.path("target/release/app"), "bin")
}

/// Cargo's message about a binary of this kind that it linked.
pub(crate) fn artifact_of(tree: &Tree, binary: &Path, kind: &str) -> serde_json::Value {
    let executable = Some(binary).filter(|_| kind == "bin");
    json!({
        "reason": "compiler-artifact", "package_id": "path+file:///app#0.1.0",
        "manifest_path": tree.path("app/Cargo.toml"),
        "target": {"kind": [kind], "crate_types": [kind], "name": "app", "src_path": "/app/src/main.rs",
                   "edition": "2024", "doc": true, "doctest": false, "test": true},
        "profile": {"opt_level": "3", "debuginfo": 0, "debug_assertions": false, "overflow_checks": false, "test": false},
        "features": [], "filenames": [binary], "executable": executable, "fresh": false,
    })
}

pub(crate) fn messages(lines: &[serde_json::Value]) -> String {
    let end = json!({"reason": "build-finished", "success": true});
    let lines = lines.iter().chain([&end]);
    lines.map(|line| format!("{line}\n")).collect()
}

pub(crate) fn refused(tree: &Tree, messages: &str) -> String {
    refused_with(tree, &Options::new(tree.path("dist")), messages)
}

pub(crate) fn refused_with(tree: &Tree, options: &Options, messages: &str) -> String {
    let error = stage(options, messages.as_bytes()).unwrap_err();
    assert!(!tree.path("dist").exists());
    nothing_hidden(tree);
    error.in_one_line().replace(tree.root().to_str().unwrap(), "[root]")
}

/// Nothing is left beside the release.
pub(crate) fn nothing_hidden(tree: &Tree) {
    let entries = fs::read_dir(tree.root()).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name());
    assert!(names.all(|name| !name.to_str().unwrap().starts_with('.')));
}

/// A build of one program with kernels.
pub(crate) fn built(tree: &Tree) -> String {
    out_dir(tree, "vec-0123", "vec");
    program(tree, "target/release/build/vec-0123/out/kpack/vec/vec.o", "");
    messages(&[script(tree, "registry+x#vec@0.2.0", "vec-0123"), artifact(tree)])
}
