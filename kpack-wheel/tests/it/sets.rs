//! Given host wheels and device wheels, when they are verified, then what does not fit together is reported.

use std::fs;

use crate::wheels::{FAT, binary, binary_wheel};
use kpack_core::ids;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::Wheel;
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, VerifyOptions, describe, split, verify};

#[test]
fn libraries_that_another_tool_split_are_named() {
    // Given wheels with a split library, without its archives and with them.
    let tree = Tree::new();
    tree.write("site/vec/_vec.so", binary());
    let mut options = InstallOptions::new(tree.path("site"), "vec", ["vec/_vec.so"]);
    options.kpack_dir = "vec/.kpack".into();
    install(&options, &()).unwrap();
    let file = |path: &str| fs::read(tree.path("site").join(path)).unwrap();
    let without = Wheel::new(FAT).member("vec/_vec.so", file("vec/_vec.so"));
    let with = ["vec_lib_gfx942.kpack", "vec_lib_gfx90a.kpack", "vec_lib.kpm"]
        .iter()
        .map(|name| format!("vec/.kpack/{name}"))
        .fold(without.clone(), |wheel, path| wheel.member(&path, file(&path)));
    for (wheel, expected) in [
        (without, "the wheel has no archives at `.kpack/vec_lib_@GFXARCH@.kpack`"),
        (with, "its archives are in the wheel"),
    ] {
        let bytes = wheel.bytes().unwrap();
        // Then each command names the library, and says what is missing and what to do.
        let path = tree.path(FAT);
        fs::write(&path, &bytes).unwrap();
        match split(&Options::new([&path], tree.path("out")), &()) {
            Ok(_) => assert!(expected.starts_with("its archives")),
            Err(error) => {
                let named = "member `vec/_vec.so`: split by another tool";
                assert!(error.to_string().contains(named), "{error}");
                assert!(!tree.path("out").exists());
            }
        }
        let shown = &describe(std::slice::from_ref(&path)).unwrap()[0].findings;
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0].id, ids::SPLIT_BY_ANOTHER_TOOL);
        assert!(shown[0].text.contains(expected), "{shown:?}");
        let report = verify(&[path], &VerifyOptions::default()).unwrap();
        assert!(
            report
                .findings
                .iter()
                .any(|check| (check.id, &check.text) == (shown[0].id, &shown[0].text)),
            "{:?}",
            report.findings
        );
        assert_eq!(
            report.findings.iter().filter(|check| check.text.contains("host wheel")).count(),
            0,
            "{:?}",
            report.findings
        );
    }
}

/// A host wheel whose extra asks for a device wheel by `pin`, and the device wheel, which requires `host`.
fn set(pin: &str, host: &str) -> (Wheel, Wheel) {
    let requires = |pin: &str, extra: &str| format!("{pin} ; extra == '{extra}'");
    let of_host = binary_wheel()
        .field("Provides-Extra", "device-gfx942")
        .field("Provides-Extra", "device-all")
        .field("Requires-Dist", &requires(pin, "device-gfx942"))
        .field("Requires-Dist", &requires(pin, "device-all"));
    let device = FAT.replace("vec-", "vec_device_gfx942-");
    (of_host, Wheel::new(&device).field("Requires-Dist", host))
}

/// The IDs of what is wrong with two wheels.
fn wrong((host, device): (Wheel, Wheel)) -> Vec<kpack_core::Id> {
    let tree = Tree::new();
    let wheels = [host, device].map(|wheel| wheel.write(tree.root()).unwrap());
    let found = verify(&wheels, &VerifyOptions::default()).unwrap().findings;
    let faults = found.into_iter().filter(|found| found.severity == kpack_core::Severity::Fault);
    faults.map(|found| found.id).collect()
}

/// Installers would take a device wheel of another build.
#[test]
fn pins_that_are_not_exact() {
    let (exact, host) = ("vec-device-gfx942==1.0", "vec==1.0");
    assert!(!wrong(set(exact, host)).contains(&ids::WRONG_PIN));
    for (pin, host) in
        [("vec-device-gfx942==2.0", host), (exact, "vec==2.0"), (exact, "other==1.0")]
    {
        assert!(wrong(set(pin, host)).contains(&ids::WRONG_PIN), "{pin}, {host}");
    }
}

/// The second one to be installed would replace the file.
#[test]
fn two_wheels_with_one_file() {
    for member in ["vec/__init__.py", "vec/__init__.py/more"] {
        let (host, device) = set("vec-device-gfx942==1.0", "vec==1.0");
        let found = wrong((host, device.member(member, "")));
        assert!(found.contains(&ids::OVERLAPPING_WHEELS), "{member}: {found:?}");
    }
}

/// Installers would choose it for another GPU.
#[test]
fn a_wheel_variant_that_says_something_else_than_its_name() {
    let tree = Tree::new();
    let mut options = Options::new([binary_wheel().write(tree.root()).unwrap()], tree.path("out"));
    options.variant = true;
    split(&options, &()).unwrap();
    let [gfx90a, gfx1100] = ["gfx90a", "gfx1100"].map(|label| {
        let name = FAT.replace("vec-", "vec_device-").replace(".whl", &format!("-{label}.whl"));
        tree.path("out").join(name)
    });
    fs::rename(gfx90a, &gfx1100).unwrap();
    let found = verify(&[gfx1100], &VerifyOptions::default()).unwrap().findings;
    let text = "the file describes gfx90a (expected gfx1100, as the file name says)";
    assert!(found.iter().any(|finding| finding.text.contains(text)), "{found:?}");
}
