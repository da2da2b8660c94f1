//! Given wheels with libraries that were copied from a split ROCm, when they are split with ROCm's archives, then no
//! library gets the archives of another one.

use std::fs;
use std::path::Path;

use crate::wheels::{FAT, members, names, text, vendored};
use kpack_core::{Error, Finding, ids};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{Wheel, add_and_mul};
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, WheelReport, split};

/// Builds the library `file` of a prefix, and splits it with the archives that `module` names in `.kpack`. Returns
/// its bytes.
fn in_prefix(prefix: &Path, file: &str, module: &str, targets: [&'static str; 2]) -> Vec<u8> {
    let path = prefix.join(file);
    add_and_mul(targets, targets).build(&path).unwrap();
    let mut options = InstallOptions::new(prefix, module, [file]);
    options.kpack_dir = ".kpack".into();
    install(&options, &()).unwrap();
    fs::read(path).unwrap()
}

/// Splits the wheel with the archives of these prefixes.
fn split_with(tree: &Tree, wheel: &Wheel, archives: &[&str]) -> Result<WheelReport, Error> {
    let fat = wheel.write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    options.archives = archives.iter().map(|prefix| tree.path(prefix)).collect();
    split(&options, &())
}

/// Given two libraries in one directory whose archives have the same names and other contents, when the wheel is
/// split, then it is rejected: one library would lack its kernels.
#[test]
fn archives_of_one_name_and_other_contents_are_rejected() {
    let tree = Tree::new();
    let targets = ["gfx90a", "gfx942"];
    let first = in_prefix(&tree.path("first"), "lib/libvec.so", "vec", targets);
    let second = in_prefix(&tree.path("second"), "lib/libmore.so", "vec", targets);
    let two = Wheel::new(FAT)
        .member("vec.libs/libvec-1a2b3c4d.so", first.clone())
        .member("vec.libs/libmore-1a2b3c4d.so", second);
    let with_archives = names(&tree.path("second/.kpack")).iter().fold(
        Wheel::new(FAT).member("vec.libs/libvec-1a2b3c4d.so", first),
        |wheel, name| {
            let bytes = fs::read(tree.path("second/.kpack").join(name)).unwrap();
            wheel.member(&format!("vec.libs/.kpack/{name}"), bytes)
        },
    );
    for (wheel, archives) in [(two, &["first", "second"][..]), (with_archives, &["first"][..])] {
        let error = split_with(&tree, &wheel, archives).unwrap_err();
        let said = error.in_one_line();
        assert!(
            matches!(error, Error::Refused { id, .. } if id == ids::NAME_CLASH)
                && said.contains("vec.libs/.kpack/vec_lib_gfx90a.kpack"),
            "{said}"
        );
        assert_eq!(names(&tree.path("out")), [""; 0]);
    }
}

/// The findings about archives whose build is unknown.
fn unchecked(report: &WheelReport) -> Vec<&Finding> {
    let findings = report.findings.iter();
    Vec::from_iter(findings.filter(|finding| finding.id == ids::STALE_ARCHIVE))
}

/// Given archives that do not say which build they are for, when nothing in their prefix says it either, then a
/// warning says that they may be of another build. Files outside of the prefix are no part of it.
#[test]
fn archives_of_unknown_builds_are_reported() {
    let tree = Tree::new();
    let wheel = vendored(&tree);
    assert!(unchecked(&split_with(&tree, &wheel, &["rocm"]).unwrap()).is_empty());
    // The markers have no IDs for these targets.
    for name in ["vec", "more"] {
        let file = format!("lib/lib{name}.so");
        in_prefix(&tree.path("odd"), &file, name, ["gfx1030", "gfx1100"]);
    }
    let error = split_with(&tree, &wheel, &["odd"]).unwrap_err();
    let of_another_build = "the device code of another build of the library";
    assert!(error.in_one_line().contains(of_another_build), "{error}");
    for content in ["INPUT(libvec.so.1)\n", "\x7fELF"] {
        for name in ["vec", "more"] {
            fs::write(tree.path(&format!("odd/lib/lib{name}.so")), content).unwrap();
        }
        let report = split_with(&tree, &wheel, &["odd"]).unwrap();
        assert_eq!(unchecked(&report).len(), 2, "{report:?}");
    }
    for name in ["vec", "more"] {
        let other = add_and_mul(["gfx1030", "gfx1100"], ["gfx1030", "gfx1100"]);
        let library = tree.path(&format!("odd/lib/lib{name}.so"));
        fs::remove_file(&library).unwrap();
        other.build(&library).unwrap();
    }
    let report = split_with(&tree, &wheel, &["odd/.kpack"]).unwrap();
    let found = unchecked(&report);
    assert_eq!(found.len(), 2, "{report:?}");
    let text = &found[0].text;
    assert!(
        text.contains("member `vec.libs/libmore-1a2b3c4d.so`") && text.contains("more_lib_gfx1030"),
        "{text}"
    );
}

/// Given a library in platlib of a wheel whose root is purelib, when its archives are added, then they go to platlib.
#[test]
fn archives_are_added_to_the_site_packages_of_their_library() {
    let tree = Tree::new();
    let targets = ["gfx90a", "gfx942"];
    let library = in_prefix(&tree.path("rocm"), "lib/libvec.so", "vec", targets);
    let wheel = Wheel::new(FAT)
        .in_wheel("Purelib: false", "Purelib: true")
        .member("vec-1.0.data/platlib/vec.libs/libvec-1a2b3c4d.so", library.clone());
    let report = split_with(&tree, &wheel, &["rocm"]).unwrap();
    let (host, devices) = report.wheels.split_last().unwrap();
    let manifest = "vec-1.0.data/platlib/vec.libs/.kpack/vec_lib.kpm";
    assert!(members(&host.path).contains_key(manifest), "{host:?}");
    for device in devices {
        let wheel = members(&device.path);
        let wheel = wheel.keys().find(|name| name.ends_with("/WHEEL")).unwrap();
        let wheel = text(&device.path, wheel);
        assert!(wheel.contains("Root-Is-Purelib: false\n"), "{wheel}");
    }
    fs::remove_dir_all(tree.path("out")).unwrap();
    let error = split_with(&tree, &wheel.member("vec/libvec.so", library), &["rocm"]).unwrap_err();
    let said = error.in_one_line();
    assert!(said.contains("in both purelib and platlib"), "{said}");
}
