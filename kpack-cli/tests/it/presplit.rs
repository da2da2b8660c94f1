//! Given a binary that was linked from split objects and finds its device code in the build tree, when it is
//! installed, then the prefix is as if the linked binary had been split.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::fat::{elements, fat, shown};
use crate::markers::{assert_expects, is_one_map, markers};
use crate::verified::{assert_holds, assert_holds_against, check, check_with, faults};
use kpack_build::object_file;
use kpack_core::ids;
use kpack_split::install::{InstallOptions, Only, Outcome, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, add_and_mul, code};
use kpack_tests::linker;
use kpack_tests::process;
use kpack_tests::tree::{Tree, files_in};
use serde_json::json;

fn fixture() -> FatLibrary {
    add_and_mul(["gfx1100", "gfx90a:xnack+"], ["gfx1100", "gfx942"]).kind(Kind::Object)
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

/// `fat/lib/libvec.so` from unsplit objects, and `host/lib/libvec.so` from split ones, each split into a
/// directory of its own.
fn build() -> Tree {
    let tree = fixture().in_tree("objects/vec.o");
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
    link_with("bfd", tree, prefix, first, second);
}

fn link_with(linker: &str, tree: &Tree, prefix: &str, first: &str, second: &str) {
    let library = tree.path(&format!("{prefix}/lib/libvec.so"));
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let mut command = linker::driver(linker);
    command.args(["-shared", "-o"]).arg(&library);
    process::run(command.args([tree.path(first), tree.path(second)]));
}

fn options(prefix: &Path) -> InstallOptions {
    InstallOptions::new(prefix, "vec", ["lib/libvec.so"])
}

/// The archives and the manifest of a prefix.
fn archives(prefix: &Path) -> BTreeMap<String, Vec<u8>> {
    files_in(&prefix.join("lib/.kpack"))
}

fn assert_verifies(tree: &Tree, prefix: &str, original: &str) {
    assert_holds(&tree.path(prefix));
    let library = tree.path(&format!("{prefix}/lib/libvec.so"));
    assert_holds_against(&library, &tree.path(original));
}

#[test]
fn the_archives_are_those_of_a_linked_binary_that_was_split() {
    let tree = build();
    fs::copy(tree.path("fat/lib/libvec.so"), tree.path("original.so")).unwrap();
    install(&options(&tree.path("fat")), &()).unwrap();
    let report = install(&options(&tree.path("host")), &()).unwrap();
    assert!(
        matches!(&report.files[0].outcome, Outcome::Relocated { wrappers: 3, targets } if targets.len() == 3),
        "{report:#?}"
    );
    assert_eq!(archives(&tree.path("fat")), archives(&tree.path("host")));

    // Nothing refers to the build tree any more.
    fs::remove_dir_all(tree.path("split")).unwrap();
    assert_verifies(&tree, "host", "original.so");
    let bytes = fs::read(tree.path("host/lib/libvec.so")).unwrap();
    let place = tree.root().to_str().unwrap().as_bytes();
    assert!(!bytes::contains(&bytes, place));

    let before = tree.snapshot_with_times();
    let again = install(&options(&tree.path("host")), &()).unwrap();
    assert_eq!(again.files[0].outcome, Outcome::AlreadySplit);
    assert_eq!(tree.snapshot_with_times(), before);
}

/// Installs `host/lib/libvec.so` in one run for the device code and one for the host part. Together they
/// give what one run makes of the fat library.
fn assert_halves_are_the_whole(tree: &Tree) {
    let source = tree.path("libvec.so");
    fs::copy(tree.path("host/lib/libvec.so"), &source).unwrap();
    fs::create_dir_all(tree.path("device")).unwrap();
    let mut device = options(&tree.path("device"));
    device.only = Some(Only::Device);
    device.sources = vec![source];
    install(&device, &()).unwrap();
    let mut host = options(&tree.path("host"));
    host.only = Some(Only::Host);
    install(&host, &()).unwrap();
    let mut all = archives(&tree.path("device"));
    all.extend(archives(&tree.path("host")));
    install(&options(&tree.path("fat")), &()).unwrap();
    assert_eq!(all, archives(&tree.path("fat")));
}

#[test]
fn it_can_be_installed_in_halves() {
    assert_halves_are_the_whole(&build());
}

/// With several objects, there are several maps in the section.
#[test]
fn the_marker_of_a_single_object_fills_its_section() {
    let tree = fixture().in_tree("objects/vec.o");
    let (output, object) = (tree.path("split"), tree.path("objects/vec.o"));
    let mut split = object_file::Options::new("vec", &output, [object]);
    let pattern = output.join(".kpack/vec_lib_@GFXARCH@.kpack");
    split.search_paths = vec![pattern.to_str().unwrap().to_owned()];
    object_file::split(&split, &()).unwrap();
    let library = tree.path("lib/libvec.so");
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let mut link = Command::new("cc");
    link.arg("-shared").arg("-o").arg(&library);
    process::run(link.arg(output.join("vec.o")));
    assert!(is_one_map(&library));
    install(&options(tree.root()), &()).unwrap();
    assert!(is_one_map(&library));
}

#[test]
fn it_cannot_be_joined_before_it_is_installed() {
    let tree = build();
    let gpu = "gfx1100".parse().unwrap();
    let options = JoinOptions::new(tree.path("host"), [gpu], ["lib/libvec.so"]);
    let error = join(&options, &()).unwrap_err();
    assert_eq!(error.id(), ids::SPLIT_BEFORE_LINK, "{error}");
}

#[test]
fn a_path_to_its_archives_that_is_too_long() {
    let tree = build();
    let mut options = options(&tree.path("host"));
    options.kpack_dir = "long/".repeat(300).into();
    let before = tree.snapshot();
    let error = install(&options, &()).unwrap_err();
    assert_eq!(error.id(), ids::NO_ROOM, "{error}");
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn archives_that_are_gone_are_missed() {
    let tree = build();
    fs::remove_dir_all(tree.path("split/other")).unwrap();
    let before = tree.snapshot();
    let error = install(&options(&tree.path("host")), &()).unwrap_err();
    let text = error.in_one_line();
    assert!(text.contains("[missing-archive]") && text.contains("--clean-first"), "{text}");
    assert_eq!(tree.snapshot(), before);

    // Nor are they passed over when all binaries are asked for.
    let mut all = options(&tree.path("host"));
    (all.files, all.all) = (Vec::new(), true);
    let error = install(&all, &()).unwrap_err().in_one_line();
    assert!(error.contains("the archives are missing"), "{error}");
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
    assert!(
        text.contains("no archive has kernel `other.o@")
            && text.contains("[recompiled-after-link]"),
        "{text}"
    );
}

/// A library may also be linked from objects or static libraries that nobody split.
#[test]
fn a_binary_of_fat_and_split_objects_is_split_and_relocated() {
    let tree = build();
    install(&options(&tree.path("fat")), &()).unwrap();
    let orders = [
        ("first", "objects/vec.o", "split/other/other.o"),
        ("last", "split/vec/vec.o", "objects/other.o"),
    ];
    let linkers = linker::installed();
    let all = linkers.iter().flat_map(|linker| orders.map(|order| (linker, order)));
    for (linker, (order, first, second)) in all {
        let prefix = &format!("{linker}-{order}");
        link_with(linker, &tree, prefix, first, second);
        let library = tree.path(&format!("{prefix}/lib/libvec.so"));
        let mixed = fs::read(&library).unwrap();
        let fat = fat(&library);
        let split_before = fat["split_before"].as_u64().unwrap_or_default();
        assert_eq!(elements(&fat, "wrappers").len() as u64 + split_before, 3);

        let report = install(&options(&tree.path(prefix)), &()).unwrap();
        assert!(
            matches!(&report.files[0].outcome, Outcome::Split { wrappers: 3, targets, .. } if targets.len() == 3),
            "{report:#?}"
        );
        assert_eq!(archives(&tree.path("fat")), archives(&tree.path(prefix)));
        fs::write(tree.path("mixed.so"), mixed).unwrap();
        assert_verifies(&tree, prefix, "mixed.so");
        let bytes = fs::read(&library).unwrap();
        // Not the whole tree: gold writes the name of the output into the library.
        let place = tree.path("split");
        let place = place.to_str().unwrap().as_bytes();
        let left = bytes::contains(&bytes, place);
        assert!(!left, "{prefix}");
        let before = tree.snapshot_with_times();
        let again = install(&options(&tree.path(prefix)), &()).unwrap();
        assert_eq!(again.files[0].outcome, Outcome::AlreadySplit);
        assert_eq!(tree.snapshot_with_times(), before);
    }
}

#[test]
fn all_markers_of_a_binary_expect_its_device_code() {
    let tree = build();
    let targets = ["gfx1100", "gfx90a:xnack+", "gfx942"];
    // Given split objects, whose markers expect the code in their own archives,
    let object = tree.path("split/vec");
    assert_expects(&object.join("vec.o"), &object.join(".kpack"), "vec_lib", &targets);
    let other = tree.path("split/other");
    assert_expects(&other.join("other.o"), &other.join(".kpack"), "vec_lib", &["gfx942"]);
    // when a binary of split objects, or of split and fat ones, is installed, then each of its
    // markers expects the same as that of a binary that was linked from fat objects.
    link(&tree, "mixed", "split/vec/vec.o", "objects/other.o");
    let library = |prefix: &str| tree.path(&format!("{prefix}/lib/libvec.so"));
    for (prefix, count) in [("fat", 1), ("host", 2), ("mixed", 2)] {
        install(&options(&tree.path(prefix)), &()).unwrap();
        let kpacks = tree.path(&format!("{prefix}/lib/.kpack"));
        assert_expects(&library(prefix), &kpacks, "vec_lib", &targets);
        let found = markers(&library(prefix));
        assert_eq!(found.len(), count);
        assert!(found.iter().all(|marker| *marker == markers(&library("fat"))[0]));
    }
}

#[test]
fn archives_of_another_build_are_named() {
    // Given two builds of a library, from split objects and from fat ones,
    let tree = build();
    link(&tree, "fat-2", "objects/vec.o", "objects/other.o");
    let other = fixture().wrapper(Storage::Plain, [code("gfx942", "another")]);
    other.build(&tree.path("objects/vec.o")).unwrap();
    link(&tree, "fat", "objects/vec.o", "objects/other.o");
    for prefix in ["fat", "fat-2", "host"] {
        install(&options(&tree.path(prefix)), &()).unwrap();
    }
    for prefix in ["fat-2", "host"] {
        // when an archive of one replaces that of the other,
        let name = "lib/.kpack/vec_lib_gfx942.kpack";
        let place = tree.path(&format!("{prefix}/{name}"));
        fs::copy(tree.path(&format!("fat/{name}")), &place).unwrap();
        // then verify finds a fault, also for that target alone, and show names it; other targets hold.
        let library = tree.path(&format!("{prefix}/lib/libvec.so"));
        for (target, holds) in [("gfx942", false), ("gfx1100", true)] {
            let path = format!("{prefix}/lib/libvec.so");
            let report = check_with(&tree, &path, None, &[target]);
            assert_eq!(report.holds(), holds, "{report:#?}");
            let text = format!("{report:?}");
            let what = "vec_lib_gfx942.kpack`: made for another build of lib/libvec.so; \
                        install the matching package";
            assert_eq!(text.contains(what), !holds, "{report:#?}");
        }
        let other = fs::canonicalize(&place).unwrap();
        assert_eq!(shown(&library, "split-binary")["other_builds"], json!([other]));
    }
}

#[test]
fn a_mixed_binary_can_be_installed_in_halves() {
    let tree = build();
    link(&tree, "host", "objects/vec.o", "split/other/other.o");
    assert_halves_are_the_whole(&tree);
}

/// Objects that were split for archives beside the binary have relative markers.
#[test]
fn a_mixed_binary_takes_its_archives_along_also_by_relative_paths() {
    let tree = build();
    let output = tree.path("mixed/lib");
    let object = tree.path("objects/other.o");
    object_file::split(&object_file::Options::new("part", &output, [object]), &()).unwrap();
    link(&tree, "mixed", "objects/vec.o", "mixed/lib/other.o");
    install(&options(&tree.path("mixed")), &()).unwrap();
    install(&options(&tree.path("fat")), &()).unwrap();
    let mut all = archives(&tree.path("mixed"));
    all.retain(|name, _| name.starts_with("vec"));
    assert_eq!(all, archives(&tree.path("fat")));
}

#[test]
fn a_damaged_archive_is_not_installed() {
    let tree = build();
    let archive = tree.path("split/vec/.kpack/vec_lib_gfx1100.kpack");
    let mut bytes = fs::read(&archive).unwrap();
    let starts = |at: &usize| bytes[*at..].starts_with(b"\x7fELF");
    let code_objects: Vec<usize> = (0..bytes.len()).filter(starts).collect();
    assert_eq!(code_objects.len(), 2);
    for at in code_objects.into_iter().map(|start| start + 12) {
        bytes[at] ^= 1;
        fs::write(&archive, &bytes).unwrap();
        let before = tree.snapshot();
        let error = install(&options(&tree.path("host")), &()).unwrap_err();
        let text = error.in_one_line();
        assert!(text.contains("vec_lib_gfx1100.kpack"), "{text}");
        assert!(text.contains("compile the binary's objects again"), "{text}");
        assert_eq!(tree.snapshot(), before);
        bytes[at] ^= 1;
    }
}

/// Which object each wrapper is of is unknown then.
#[test]
fn a_damaged_marker_is_one_fault() {
    let tree = build();
    let library = tree.path("host/lib/libvec.so");
    let mut bytes = fs::read(&library).unwrap();
    let key = b"kpack_search_paths";
    let marker = bytes.windows(key.len()).position(|part| part == key);
    bytes[marker.unwrap()] = b'K';
    fs::write(&library, bytes).unwrap();
    let found = faults(&check(&tree, "host/lib/libvec.so"));
    assert!(matches!(&found[..], [only] if only.contains("not a kpack marker")), "{found:#?}");
}
