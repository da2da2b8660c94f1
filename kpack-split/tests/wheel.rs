//! Given Python wheels with device code, when they are split, then installers find a host wheel and device
//! wheels that fit together, and a wheel with something wrong in it leaves nothing behind.

mod command;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use command::{kpack, said};
use kpack_split::wheel::{Options, Report, split};
use kpack_tests::fixture::{FatLibrary, Storage, Wheel, add_and_mul, code};
use kpack_tests::process::run;
use kpack_tests::tree::Tree;
use zip::ZipArchive;

const FAT: &str = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";

/// A shared object with code for gfx942 and two kinds of gfx90a.
fn library() -> FatLibrary {
    let library = add_and_mul(["gfx942", "gfx90a:xnack+"], ["gfx942", "gfx90a:xnack-"]);
    library.wrapper(
        Storage::Plain,
        [
            code("gfx942", "more"),
            code("gfx90a:xnack+", "more"),
            code("gfx90a:xnack-", "more"),
        ],
    )
}

fn binary(library: &FatLibrary) -> Vec<u8> {
    let tree = Tree::new();
    library.build(&tree.path("lib.so")).unwrap();
    fs::read(tree.path("lib.so")).unwrap()
}

/// A wheel of a package with a fat binary, and something of everything else.
fn wheel(file: &str) -> Wheel {
    let licence = format!(
        "{}.dist-info/licenses/LICENSE",
        &file[..file.match_indices('-').nth(1).unwrap().0]
    );
    Wheel::new(file)
        .field("License-File", "LICENSE")
        .field("Requires-Python", ">=3.9")
        .member("vec/__init__.py", "answer = 42\n")
        .member_with_mode("vec/_vec.so", 0o755, binary(&library()))
        .member_with_mode("vec/private.txt", 0o600, "mine")
        .member(&licence, "Do as you like.\n")
}

/// Splits the wheels in the tree into `out`.
fn run_split<W: Into<PathBuf>>(tree: &Tree, wheels: impl IntoIterator<Item = W>) -> Report {
    let options = Options::new(wheels, tree.path("out"));
    split(&options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()))
}

/// The members of a wheel, their modes and bytes.
fn members(wheel: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut zip = ZipArchive::new(File::open(wheel).unwrap()).unwrap();
    let mut members = BTreeMap::new();
    for index in 0..zip.len() {
        let mut member = zip.by_index(index).unwrap();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).unwrap();
        let name = member.name().unwrap().into_owned();
        members.insert(name, (member.unix_mode().unwrap() & 0o777, bytes));
    }
    members
}

fn text(wheel: &Path, member: &str) -> String {
    String::from_utf8(members(wheel)[member].1.clone()).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .map(|entries| entries.flatten().collect())
        .unwrap_or_else(|_| Vec::new())
        .into_iter()
        .map(|entry: fs::DirEntry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Unpacks a wheel as installers do.
fn install(wheel: &Path, site: &Path) {
    for (name, (_, bytes)) in members(wheel) {
        let path = site.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(!path.exists(), "two wheels have {}", path.display());
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn a_host_wheel_and_a_device_wheel_for_each_processor() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    run_split(&tree, [&fat]);

    let out = tree.path("out");
    let device =
        |target: &str| format!("vec_device_{target}-1.0-cp311-cp311-manylinux_2_28_x86_64.whl");
    assert_eq!(
        names(&out),
        [FAT.to_owned(), device("gfx90a"), device("gfx942")]
    );
    let host = members(&out.join(FAT));
    let names: Vec<(&str, u32)> = host
        .iter()
        .map(|(n, (mode, _))| (n.as_str(), *mode))
        .collect();
    assert_eq!(
        names,
        [
            ("vec-1.0.dist-info/METADATA", 0o644),
            ("vec-1.0.dist-info/RECORD", 0o644),
            ("vec-1.0.dist-info/WHEEL", 0o644),
            ("vec-1.0.dist-info/licenses/LICENSE", 0o644),
            ("vec/.kpack/vec_lib.kpm", 0o644),
            ("vec/__init__.py", 0o644),
            ("vec/_vec.so", 0o755),
            ("vec/private.txt", 0o600),
        ]
    );
    assert_eq!(
        text(&out.join(FAT), "vec-1.0.dist-info/METADATA"),
        "\
Metadata-Version: 2.1
Name: vec
Version: 1.0
License-File: LICENSE
Requires-Python: >=3.9
Provides-Extra: device-all
Requires-Dist: vec-device-gfx90a==1.0 ; extra == 'device-all'
Requires-Dist: vec-device-gfx942==1.0 ; extra == 'device-all'
Provides-Extra: device-gfx90a
Requires-Dist: vec-device-gfx90a==1.0 ; extra == 'device-gfx90a'
Provides-Extra: device-gfx90a-xnack-off
Requires-Dist: vec-device-gfx90a==1.0 ; extra == 'device-gfx90a-xnack-off'
Provides-Extra: device-gfx90a-xnack-on
Requires-Dist: vec-device-gfx90a==1.0 ; extra == 'device-gfx90a-xnack-on'
Provides-Extra: device-gfx942
Requires-Dist: vec-device-gfx942==1.0 ; extra == 'device-gfx942'

Vectors for everybody.
"
    );
    let device = out.join(device("gfx90a"));
    let names = Vec::from_iter(members(&device).into_keys());
    assert_eq!(
        names,
        [
            "vec/.kpack/vec_lib.gfx90a.kpm",
            "vec/.kpack/vec_lib_gfx90a:xnack+.kpack",
            "vec/.kpack/vec_lib_gfx90a:xnack-.kpack",
            "vec_device_gfx90a-1.0.dist-info/METADATA",
            "vec_device_gfx90a-1.0.dist-info/RECORD",
            "vec_device_gfx90a-1.0.dist-info/WHEEL",
            "vec_device_gfx90a-1.0.dist-info/licenses/LICENSE",
        ]
    );
    assert_eq!(
        text(&device, "vec_device_gfx90a-1.0.dist-info/METADATA"),
        "\
Metadata-Version: 2.1
License-File: LICENSE
Requires-Python: >=3.9
Name: vec-device-gfx90a
Version: 1.0
Summary: GPU code of vec for gfx90a
Requires-Dist: vec==1.0

Vectors for everybody.
"
    );
    let record = text(&device, "vec_device_gfx90a-1.0.dist-info/RECORD");
    assert_eq!(record.lines().count(), 7, "{record}");
    assert!(
        record
            .lines()
            .filter(|row| row.contains(",sha256="))
            .count()
            == 6,
        "{record}"
    );
}

#[test]
fn a_host_wheel_with_any_device_wheel_verifies() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let report = run_split(&tree, [&fat]);
    let (host, devices) = report.wheels.split_last().unwrap();
    for device in devices {
        let site = tree.path(device.extra.as_ref().unwrap());
        install(&host.path, &site);
        install(&device.path, &site);
        let said = said(&tree, &["verify", site.to_str().unwrap()]);
        assert!(said.ends_with("0 faults\nexit code 0\n"), "{said}");
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    run_split(&tree, [&fat]);
    let first = tree.snapshot();
    run_split(&tree, [&fat]);
    assert_eq!(tree.snapshot(), first);
    let one = kpack(
        &tree,
        &[
            "wheel",
            "split",
            "-j1",
            "-q",
            fat.to_str().unwrap(),
            "--output-dir",
            "out",
        ],
    );
    assert!(one.status.success());
    assert_eq!(tree.snapshot(), first);
}

#[test]
fn wheels_of_several_pythons_share_device_wheels() {
    let tree = Tree::new();
    let wheels: Vec<PathBuf> = ["cp310", "cp311"]
        .iter()
        .map(|python| {
            let file = format!("vec-1.0-{python}-{python}-manylinux_2_28_x86_64.whl");
            let wheel = wheel(&file).member("vec/python.txt", *python);
            wheel.write(&tree.path("dist")).unwrap()
        })
        .collect();
    run_split(&tree, &wheels);
    assert_eq!(
        names(&tree.path("out")),
        [
            "vec-1.0-cp310-cp310-manylinux_2_28_x86_64.whl",
            FAT,
            "vec_device_gfx90a-1.0-py3-none-manylinux_2_28_x86_64.whl",
            "vec_device_gfx942-1.0-py3-none-manylinux_2_28_x86_64.whl",
        ]
    );
}

#[test]
fn python_reads_the_wheels() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let report = run_split(&tree, [&fat]);
    for wheel in &report.wheels {
        let test = run(Command::new("python3")
            .args(["-m", "zipfile", "-t"])
            .arg(&wheel.path));
        assert!(test.contains("Done testing"), "{test}");
    }
}

/// Splits one wheel that is rejected, and returns the message.
fn refused(bytes: &[u8], file: &str) -> String {
    let tree = Tree::new();
    let fat = tree.path(file);
    File::create(&fat).unwrap().write_all(bytes).unwrap();
    let options = Options::new([&fat], tree.path("out"));
    let error = split(&options, &()).unwrap_err().in_one_line();
    assert_eq!(names(&tree.path("out")), [""; 0], "{error}");
    error.replace(&format!("{}/", tree.root().display()), "")
}

#[test]
fn wheels_with_something_wrong_are_rejected() {
    let bytes = |wheel: Wheel| wheel.bytes().unwrap();
    let replaced = |wheel: Wheel, from: &str, to: &str| {
        let mut bytes = wheel.bytes().unwrap();
        while let Some(at) = bytes
            .windows(from.len())
            .position(|part| part == from.as_bytes())
        {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        bytes
    };
    let mut said = Vec::new();
    for bytes in [
        replaced(
            wheel(FAT).member("vec/__double.py", ""),
            "vec/__double.py",
            "vec/__init__.py",
        ),
        bytes(wheel(FAT).member("vec/../../etc/passwd", "")),
        bytes(wheel(FAT).member("/etc/passwd", "")),
        bytes(wheel(FAT).symlink("vec/link.so", "_vec.so")),
        bytes(wheel(FAT).member("vec", "a file")),
        bytes(
            wheel(FAT).row("vec/__init__.py,sha256=mC2eL54uT30ZPT-5TokWSpZ9jjDt-5peDKH2-qDYVt4,4"),
        ),
        bytes(wheel(FAT).row("vec/__init__.py,,4")),
        bytes(wheel(FAT).member("other-1.0.dist-info/METADATA", "")),
        bytes(wheel(FAT).in_wheel("Wheel-Version: 1.0", "Wheel-Version: 2.0")),
        bytes(wheel(FAT).in_metadata("Name: vec", "Name: other")),
        bytes(Wheel::new(FAT).member("vec/__init__.py", "")),
        wheel(FAT).bytes().unwrap()[..1000].to_vec(),
        Vec::new(),
    ] {
        said.push(refused(&bytes, FAT));
    }
    said.push(refused(
        &bytes(wheel(FAT)),
        "vec-1.0-cp311-cp311-win_amd64.whl",
    ));
    said.push(refused(&bytes(wheel(FAT)), "vec.whl"));
    insta::assert_snapshot!(said.join("\n"));
}
