//! Given host wheels and device wheels, when they are verified, then what does not fit together is reported.

use std::fs;
use std::path::Path;

use crate::wheels::{FAT, binary, binary_wheel, members, names, noise};
use kpack_core::{Severity, ids};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::bytes;
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

/// The wheel as a host wheel whose extra asks for a device wheel by `pin`.
fn host(wheel: Wheel, pin: &str) -> Wheel {
    let requires = |extra: &str| format!("{pin} ; extra == '{extra}'");
    wheel
        .field("Provides-Extra", "device-gfx942")
        .field("Provides-Extra", "device-all")
        .field("Requires-Dist", &requires("device-gfx942"))
        .field("Requires-Dist", &requires("device-all"))
}

/// A host wheel whose extra asks for a device wheel by `pin`, and the device wheel, which requires `required`.
fn set(pin: &str, required: &str) -> (Wheel, Wheel) {
    let device = FAT.replace("vec-", "vec_device_gfx942-");
    (host(binary_wheel(), pin), Wheel::new(&device).field("Requires-Dist", required))
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

/// Given a library with a damaged marker, whether something else than kpack split it or its wheel has the extras of a host,
/// then the fault is that of the wheel, and no path is one of the directory that the wheel was unpacked into.
#[test]
fn a_damaged_library_is_named_as_a_member_of_its_wheel() {
    let tree = Tree::new();
    tree.write("site/vec/_vec.so", binary());
    let mut options = InstallOptions::new(tree.path("site"), "vec", ["vec/_vec.so"]);
    options.kpack_dir = "vec/.kpack".into();
    install(&options, &()).unwrap();
    let mut damaged = fs::read(tree.path("site/vec/_vec.so")).unwrap();
    let key = bytes::position(&damaged, b"kpack_search_paths");
    damaged[key - 1] = 0xc1;
    let foreign = Wheel::new(FAT).member("vec/_vec.so", damaged.clone());
    let (host, device) = set("vec-device-gfx942==1.0", "vec==1.0");
    let host = host.member("vec/damaged.so", damaged);
    for (name, wheels) in [("foreign", vec![foreign]), ("host", vec![host, device])] {
        let tree = Tree::new();
        let paths = Vec::from_iter(wheels.iter().map(|wheel| wheel.write(tree.root()).unwrap()));
        let report = verify(&paths, &VerifyOptions::default()).unwrap();
        let is_of_wheel = |path: &Path| paths.iter().any(|wheel| path.starts_with(wheel));
        for found in &report.findings {
            let is_general = found.file().as_os_str().is_empty();
            assert!(is_general || is_of_wheel(found.file()), "{name}: {found:?}");
            assert!(!found.text.contains("/site/"), "{name}: {found:?}");
        }
        let mut findings = report.findings.iter();
        assert!(findings.any(|found| found.id == ids::DAMAGED_MARKER), "{name}: {report:#?}");
        let refused = split(&Options::new([&paths[0]], tree.path("out")), &()).unwrap_err();
        let start = paths[0].display().to_string();
        assert!(refused.to_string().starts_with(&start), "{name}: {refused}");
    }
}

/// Given host wheels for two Pythons with one device wheel, what is wrong with that is said once.
#[test]
fn a_fault_of_a_wheel_that_two_hosts_share_is_said_once() {
    let tree = Tree::new();
    let pin = "vec-device-gfx942==1.0";
    let one = host(binary_wheel(), pin);
    let other = host(Wheel::new(&FAT.replace("cp311-cp311", "cp312-cp312")), pin);
    let device = Wheel::new("vec_device_gfx942-1.0-py3-none-manylinux_2_28_x86_64.whl");
    let device = device.field("Requires-Dist", "vec==2.0");
    let wheels = [one, other, device].map(|wheel| wheel.write(tree.root()).unwrap());
    let found = verify(&wheels, &VerifyOptions::default()).unwrap().findings;
    let pins = found.iter().filter(|found| found.id == ids::WRONG_PIN);
    assert_eq!(pins.count(), 1, "{found:#?}");
}

/// Given a set of wheels of which one is damaged, then the fault is that of this wheel, not of its intact host.
#[test]
fn a_damaged_wheel_is_the_one_that_is_named() {
    let tree = Tree::new();
    let data = noise(4096);
    let fat = binary_wheel().member("vec/data.bin", data.clone()).write(tree.root()).unwrap();
    let out = tree.path("out");
    split(&Options::new([&fat], &out), &()).unwrap();
    let wheels = Vec::from_iter(names(&out).iter().map(|name| out.join(name)));
    let device = wheels.iter().find(|path| path.to_string_lossy().contains("_gfx942-")).unwrap();
    let checked = || {
        let mut options = VerifyOptions::default();
        options.against = Some(fat.clone());
        let found = verify(&wheels, &options).unwrap().findings;
        let is_fault = |found: &kpack_core::Finding| found.severity == Severity::Fault;
        Vec::from_iter(found.into_iter().filter(is_fault))
    };
    assert_eq!(checked(), []);

    // The fat wheel: a byte of a member is another.
    let intact = fs::read(&fat).unwrap();
    let mut damaged = intact.clone();
    damaged[bytes::position(&intact, &data[..64]) + 70] ^= 1;
    fs::write(&fat, damaged).unwrap();
    let [found] = &checked()[..] else { panic!("{:#?}", checked()) };
    assert_eq!(found.file(), fat);
    assert!(found.text.contains("vec/data.bin"), "{found:?}");
    fs::write(&fat, intact).unwrap();

    // A device wheel: its RECORD is right, but an archive is damaged.
    let name = device.file_name().unwrap().to_str().unwrap();
    let mut wheel = Wheel::new(name).field("Requires-Dist", "vec==1.0");
    for (member, (_, mut content)) in members(device) {
        if member.ends_with(".kpack") {
            content[0] ^= 1;
        }
        if !member.contains(".dist-info/") {
            wheel = wheel.member(&member, content);
        }
    }
    wheel.write(&out).unwrap();
    // The manifest in the wheel names the archive; the binary, in the host wheel, does not repeat that.
    let host = wheels.iter().find(|path| path.file_name() == fat.file_name()).unwrap();
    let [in_device, in_host] = [
        device.join("vec/.kpack/vec_lib.gfx942.kpm: `vec_lib_gfx942.kpack` for gfx942 is damaged"),
        host.join("vec/.kpack/vec_lib_gfx942.kpack"),
    ]
    .map(|start| start.display().to_string());
    let said = Vec::from_iter(
        checked().iter().map(|found| format!("{}: {}", found.file().display(), found.text)),
    );
    assert!(said.iter().any(|text| text.contains(&in_device)), "{said:#?}");
    assert!(said.iter().all(|text| !text.contains(&in_host)), "{said:#?}");
}
