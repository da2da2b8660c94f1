//! Given a binary that is linked of split objects and finds its device code where it was built, when
//! it is installed, then the prefix is as if the linked binary had been split.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_build::install::{Only, Options, Outcome, install};
use kpack_build::{object_file, verify};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::tree::Tree;

fn fixture() -> FatLibrary {
    FatLibrary::new()
        .kind(Kind::Object)
        .wrapper(
            Storage::Plain,
            [code("gfx1100", "add"), code("gfx90a:xnack+", "add")],
        )
        .wrapper(
            Storage::Zstd(2),
            [code("gfx1100", "mul"), code("gfx942", "mul")],
        )
}

/// Builds an object whose symbols are not those of the fixture.
fn build_other(path: &Path, name: &str) {
    let other = FatLibrary::new().kind(Kind::Object);
    let other = other.wrapper(Storage::Plain, [code("gfx942", name)]);
    other.build(path).unwrap();
    let mut objcopy = Command::new("objcopy");
    for symbol in ["wrapper0", "fixture_host", "fixture_report"] {
        objcopy.arg(format!("--redefine-sym={symbol}=other_{symbol}"));
    }
    assert!(objcopy.arg(path).status().unwrap().success());
}

/// `fat/lib/libvec.so` of objects as they are, and `host/lib/libvec.so` of split ones, each split
/// into a directory of its own.
fn build() -> Tree {
    let tree = Tree::new();
    fixture().build(&tree.path("objects/vec.o")).unwrap();
    build_other(&tree.path("objects/other.o"), "other");
    for name in ["vec", "other"] {
        let output = tree.path(&format!("split/{name}"));
        let object = tree.path(&format!("objects/{name}.o"));
        let mut options = object_file::Options::new("vec", &output, [object]);
        let pattern = output.join(".kpack/vec_lib_@GFXARCH@.kpack");
        options.search_paths = vec![pattern.to_str().unwrap().to_owned()];
        object_file::split(&options, &()).unwrap();
    }
    link(&tree, "fat", "objects/vec.o", "objects/other.o");
    link(&tree, "host", "split/vec/vec.o", "split/other/other.o");
    tree
}

fn link(tree: &Tree, prefix: &str, first: &str, second: &str) {
    let library = tree.path(&format!("{prefix}/lib/libvec.so"));
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-o"]).arg(&library);
    let output = command
        .args([tree.path(first), tree.path(second)])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn options(prefix: &Path) -> Options {
    Options::new(prefix, "vec", ["lib/libvec.so"])
}

/// The archives and the manifest of a prefix.
fn archives(prefix: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(prefix.join("lib/.kpack")).unwrap();
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn assert_verifies(tree: &Tree, prefix: &str) {
    let against = verify::Options {
        against: Some(tree.path("original.so")),
        ..Default::default()
    };
    let library = tree.path(&format!("{prefix}/lib/libvec.so"));
    for (path, options) in [
        (tree.path(prefix), verify::Options::default()),
        (library, against),
    ] {
        let report = verify::verify(&[path], &options, &mut |_, _, _| {}).unwrap();
        assert!(report.holds(), "{report:#?}");
    }
}

#[test]
fn the_archives_are_those_of_a_linked_binary_that_was_split() {
    let tree = build();
    fs::copy(tree.path("fat/lib/libvec.so"), tree.path("original.so")).unwrap();
    install(&options(&tree.path("fat")), &()).unwrap();
    let report = install(&options(&tree.path("host")), &()).unwrap();
    assert!(
        matches!(&report.files[0].outcome, Outcome::Placed { wrappers: 3, targets } if targets.len() == 3),
        "{report:#?}"
    );
    assert_eq!(archives(&tree.path("fat")), archives(&tree.path("host")));

    // Nothing leads to where it was built any more.
    fs::remove_dir_all(tree.path("split")).unwrap();
    assert_verifies(&tree, "host");
    let bytes = fs::read(tree.path("host/lib/libvec.so")).unwrap();
    let place = tree.root().to_str().unwrap().as_bytes();
    assert!(!bytes.windows(place.len()).any(|window| window == place));

    let before = tree.snapshot_with_times();
    let again = install(&options(&tree.path("host")), &()).unwrap();
    assert_eq!(again.files[0].outcome, Outcome::AlreadySplit);
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn it_can_be_installed_in_halves() {
    let tree = build();
    let whole = tree.path("host/lib/libvec.so");
    let source = tree.path("libvec.so");
    fs::copy(&whole, &source).unwrap();
    let mut device = options(&tree.path("device"));
    device.only = Some(Only::Device);
    device.sources = vec![source];
    fs::create_dir_all(tree.path("device")).unwrap();
    install(&device, &()).unwrap();
    let mut host = options(&tree.path("host"));
    host.only = Some(Only::Host);
    install(&host, &()).unwrap();
    let mut all = archives(&tree.path("device"));
    all.extend(archives(&tree.path("host")));
    all.sort();
    install(&options(&tree.path("fat")), &()).unwrap();
    assert_eq!(all, archives(&tree.path("fat")));
}

#[test]
fn archives_that_are_gone_are_missed() {
    let tree = build();
    fs::remove_dir_all(tree.path("split/other")).unwrap();
    let before = tree.snapshot();
    let error = install(&options(&tree.path("host")), &()).unwrap_err();
    let text = error.in_one_line();
    assert!(
        text.contains("there is no archive of it any more") && text.contains("Build it again"),
        "{text}"
    );
    assert_eq!(tree.snapshot(), before);

    // Another build of the object, with other device code, has other kernels.
    build_other(&tree.path("objects/other.o"), "changed");
    let output = tree.path("split/other");
    object_file::split(
        &object_file::Options::new("vec", &output, [tree.path("objects/other.o")]),
        &(),
    )
    .unwrap();
    let error = install(&options(&tree.path("host")), &()).unwrap_err();
    let text = error.in_one_line();
    assert!(text.contains("no archive has kernel `other.o@"), "{text}");
}
