//! Given Python wheels with device code, when they are split, then installers find a host wheel and device
//! wheels that fit together, and a wheel with something wrong in it leaves nothing behind.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::command::{kpack, said};
use crate::wheels::{FAT, binary_wheel, library, members, names, text, vendored};
use kpack_core::publish::Stage;
use kpack_core::{Severity, ids};
use kpack_format::manifest::Manifest;
use kpack_split::input::LinkedBinary;
use kpack_tests::fixture::{FatLibrary, Storage, Wheel, add_and_mul, code, library_file};
use kpack_tests::process::{run, try_run};
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, Report, split};
use rocm_kpack::{Cache, Environment, Request};
use tar::EntryType;

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
        .member_with_mode("vec/_vec.so", 0o755, library().bytes())
        .member_with_mode("vec/private.txt", 0o600, "mine")
        .member(&licence, "Do as you like.\n")
}

/// Splits the wheels in the tree into `out`.
fn run_split<W: Into<PathBuf>>(tree: &Tree, wheels: impl IntoIterator<Item = W>) -> Report {
    let options = Options::new(wheels, tree.path("out"));
    split(&options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()))
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
    assert_eq!(names(&out), [FAT.to_owned(), device("gfx90a"), device("gfx942")]);
    let host = members(&out.join(FAT));
    let names: Vec<(&str, u32)> = host.iter().map(|(n, (mode, _))| (n.as_str(), *mode)).collect();
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
Requires-Dist: vec-device-gfx90a==1.0 ; extra == \"device-all\"
Requires-Dist: vec-device-gfx942==1.0 ; extra == \"device-all\"
Provides-Extra: device-gfx90a
Requires-Dist: vec-device-gfx90a==1.0 ; extra == \"device-gfx90a\"
Provides-Extra: device-gfx942
Requires-Dist: vec-device-gfx942==1.0 ; extra == \"device-gfx942\"

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
            "vec_device_gfx90a-1.0.dist-info/top_level.txt",
        ]
    );
    assert_eq!(text(&device, "vec_device_gfx90a-1.0.dist-info/top_level.txt"), "vec\n");
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
Description-Content-Type: text/plain

Vectors for everybody.
"
    );
    let record = text(&device, "vec_device_gfx90a-1.0.dist-info/RECORD");
    assert_eq!(record.lines().count(), 8, "{record}");
    assert!(record.lines().filter(|row| row.contains(",sha256=")).count() == 7, "{record}");
}

/// The path of a wheel in the tree, for the command.
pub(crate) fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs `kpack wheel verify` on these wheels.
fn verified(tree: &Tree, wheels: &[&Path], more: &[&str]) -> String {
    let mut arguments = vec!["wheel", "verify", "-q"];
    arguments.extend(wheels.iter().map(|wheel| shown(wheel)));
    said(tree, &[&arguments, more].concat())
}

/// TheRock's project `rocm` is a source distribution: its extras ask for wheels that no other wheel asks for.
#[test]
fn what_a_source_distribution_asks_for_is_asked_for() {
    let tree = Tree::new();
    let wheels = ["core", "device_gfx942"].map(|name| {
        let wheel = Wheel::new(&format!("rocm_sdk_{name}-7.14.0-py3-none-linux_x86_64.whl"));
        let wheel = wheel.member(&format!("_rocm_sdk_{name}/__init__.py"), "");
        wheel.write(&tree.path("dist")).unwrap()
    });
    let wheels = wheels.each_ref().map(|path| &**path);
    // What is wrong, but for the digests that the fixture leaves out.
    let faults = |wheels: &[&Path]| -> Vec<String> {
        let said = verified(&tree, wheels, &[]);
        let faults = said.lines().filter(|line| line.starts_with("FAULT "));
        let faults = faults.filter(|line| !line.contains("RECORD has no hash"));
        let ids = faults.map(|line| line.rsplit_once('[').unwrap().1.trim_end_matches(']'));
        ids.map(str::to_owned).collect()
    };
    // Without it, one line says what is missing.
    assert_eq!(faults(&wheels), [ids::MISSING_WHEEL.to_string()]);

    let sdist = |pin: &str| {
        let directory = tree.path("rocm-7.14.0");
        fs::create_dir_all(&directory).unwrap();
        let fields = format!(
            "Metadata-Version: 2.4\nName: rocm\nVersion: 7.14.0\nProvides-Extra: device-gfx942\n\
             Provides-Extra: libraries\nRequires-Dist: rocm-sdk-core==7.14.0\n\
             Requires-Dist: rocm-sdk-libraries==7.14.0; extra == \"libraries\"\n\
             Requires-Dist: rocm-sdk-device-gfx942{pin}; extra == \"device-gfx942\"\n"
        );
        fs::write(directory.join("PKG-INFO"), fields).unwrap();
        let mut tar = Command::new("tar");
        run(tar.current_dir(tree.root()).args(["-czf", "rocm-7.14.0.tar.gz", "rocm-7.14.0"]));
        tree.path("rocm-7.14.0.tar.gz")
    };
    let path = sdist("==7.14.0");
    let all = [wheels[0], wheels[1], &path];
    assert_eq!(faults(&all), [""; 0]);
    let loud = [&["wheel", "verify", "--verbose"], &all.map(shown)[..]].concat();
    let loud = self::said(&tree, &loud);
    let asks = "it asks for 2 projects of these, and for rocm-sdk-libraries==7.14.0";
    assert!(loud.contains(asks), "{loud}");

    let older = sdist("==7.13.0");
    let expected = [ids::WRONG_PIN, ids::UNREQUESTED_WHEEL].map(|id| id.to_string());
    assert_eq!(faults(&[wheels[0], wheels[1], &older]), expected);
    // Any version is asked for by what names none alone.
    for pin in ["", ">=7", "==7.*"] {
        let any = sdist(pin);
        assert_eq!(faults(&[wheels[0], wheels[1], &any]), [""; 0], "{pin}");
    }
    // It asks for no wheel of another project.
    let other = Wheel::new("vec_device_gfx942-1.0-py3-none-linux_x86_64.whl");
    let other = other.member("vec/x", "").write(&tree.path("dist")).unwrap();
    let path = sdist("==7.14.0");
    let expected = [ids::UNREQUESTED_WHEEL.to_string()];
    assert_eq!(faults(&[wheels[0], wheels[1], &other, &path]), expected);
    fs::write(&path, "no archive").unwrap();
    let expected = [ids::DAMAGED_WHEEL, ids::UNREQUESTED_WHEEL].map(|id| id.to_string());
    assert_eq!(faults(&[wheels[0], &path]), expected);
}

/// What may be in a source distribution, whose file name and fields are right.
const PKG_INFO: &[u8] = b"Metadata-Version: 2.4\nName: rocm\nVersion: 7.14.0\n";

/// A tar archive with these members.
fn tar(members: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (kind, name, content) in members {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, name, *content).unwrap();
    }
    tar.into_inner().unwrap()
}

/// Compresses a source distribution of these parts.
fn compressed<'a>(tree: &Tree, parts: impl IntoIterator<Item = &'a [u8]>) -> PathBuf {
    let path = tree.path("rocm-7.14.0.tar.gz");
    let mut gzip = Command::new("gzip");
    let gzip = gzip.args(["-1", "-c"]).stdin(Stdio::piped());
    let mut gzip = gzip.stdout(File::create(&path).unwrap()).spawn().unwrap();
    let mut input = gzip.stdin.take().unwrap();
    for part in parts {
        input.write_all(part).unwrap();
    }
    drop(input);
    assert!(gzip.wait().unwrap().success());
    path
}

#[test]
fn only_the_metadata_of_a_source_distribution_counts() {
    let tree = Tree::new();
    let member = "rocm-7.14.0/PKG-INFO";
    let large = [PKG_INFO, &[b'\n'; 17 << 20]].concat();
    let cut = &tar(&[(EntryType::Regular, member, &[b'\n'; 4096])])[..1024];
    let file = |name, content| tar(&[(EntryType::Regular, name, content)]);
    let none = "it has no file `rocm-7.14.0/PKG-INFO`";
    for (bytes, expected) in [
        (file(member, PKG_INFO), "exit code 0"),
        (file("other-7.14.0/PKG-INFO", PKG_INFO), none),
        (file("rocm-7.14.0/rocm.egg-info/PKG-INFO", PKG_INFO), none),
        (tar(&[(EntryType::Directory, member, b"")]), none),
        (file(member, b"Name: rocm\n"), "it has no Version"),
        (file(member, b"Version: 7.14.0\nName:\n"), "it has no Name"),
        (file(member, &large), "expected at most 16777216"),
        (cut.to_vec(), "end of file"),
    ] {
        let path = compressed(&tree, [&*bytes]);
        let said = verified(&tree, &[&path], &[]);
        assert!(said.contains(expected), "{expected}: {said}");
        let is_damaged = said.contains("[damaged-wheel]") && said.ends_with("exit code 1\n");
        assert_eq!(is_damaged, expected != "exit code 0", "{said}");
    }
}

#[test]
fn a_long_name_in_a_source_distribution_takes_no_memory() {
    let tree = Tree::new();
    let mut long = tar::Header::new_gnu();
    long.set_entry_type(EntryType::GNULongName);
    long.set_size(256 << 20);
    long.set_cksum();
    let end = tar(&[(EntryType::Regular, "rocm-7.14.0/PKG-INFO", PKG_INFO)]);
    let name = vec![b'a'; 1 << 20];
    let parts = [&long.as_bytes()[..]].into_iter();
    let parts = parts.chain(std::iter::repeat_n(&*name, 256)).chain([&*end]);
    let path = compressed(&tree, parts);
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", "ulimit -v 262144; exec \"$0\" wheel verify -j 1 \"$1\""]);
    let output = shell.arg(env!("CARGO_BIN_EXE_kpack")).arg(path).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The start of a process's memory cannot be read.
#[test]
fn a_source_distribution_that_cannot_be_read_is_not_called_damaged() {
    let tree = Tree::new();
    let path = tree.path("rocm-7.14.0.tar.gz");
    symlink("/proc/self/mem", &path).unwrap();
    let said = verified(&tree, &[&path], &[]);
    assert!(said.contains("cannot read"), "{said}");
    assert!(said.ends_with("exit code 4\n"), "{said}");
}

#[test]
fn a_source_distribution_with_many_extras_and_requirements_is_a_fault() {
    let tree = Tree::new();
    let extras = (0..1000).map(|n| format!("Provides-Extra: e{n}\n"));
    let requirements = (0..20_000).map(|n| format!("Requires-Dist: p{n}; extra == 'e'\n"));
    let fields = String::from_iter(extras.chain(requirements));
    let bytes = [PKG_INFO, fields.as_bytes()].concat();
    let bytes = tar(&[(EntryType::Regular, "rocm-7.14.0/PKG-INFO", &bytes)]);
    let said = verified(&tree, &[&compressed(&tree, [&*bytes])], &[]);
    assert!(said.contains("has 1000 extras and "), "{said}");
}

#[test]
fn a_complete_set_verifies_and_an_incomplete_or_changed_one_does_not() {
    let tree = Tree::new();
    let fat = wheel(FAT)
        .member("vec-1.0.data/scripts/vec", "#!python\n")
        .write(&tree.path("dist"))
        .unwrap();
    let report = run_split(&tree, [&fat]);
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let against = ["--against", shown(&fat)];
    let said = verified(&tree, &written, &against);
    assert!(said.ends_with("exit code 0\n"), "{said}");

    // Without a device wheel, or without the host wheel.
    let said = verified(&tree, &written[1..], &[]);
    let missing = "the extras ask for vec-device-gfx90a==1.0, which is not among these wheels [missing-wheel]";
    assert!(said.contains(missing) && said.ends_with("exit code 1\n"), "{said}");
    // With the device wheels at hand, and those of one GPU.
    let said = verified(&tree, &written[1..], &["--arch", "gfx942"]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    let both = ["--arch", "gfx942", "--against", shown(&fat)];
    let said = verified(&tree, &written[1..], &both);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    let said = verified(&tree, &written[1..], &["--arch", "gfx90a:xnack+"]);
    assert!(said.contains(missing) && said.ends_with("exit code 1\n"), "{said}");
    let said = verified(&tree, &written[1..], &["--arch", "gfx1100"]);
    assert!(said.contains("no extra for gfx1100 [missing-wheel]"), "{said}");
    let loud = [
        &["wheel", "verify", "--verbose", "--arch", "gfx942"],
        &[written[1], written[2]].map(shown)[..],
    ];
    let loud = self::said(&tree, &loud.concat());
    assert!(loud.contains("not checked: 1 device wheel for other GPUs [missing-wheel]"), "{loud}");
    let said = verified(&tree, &written[..1], &[]);
    assert!(said.contains("[missing-wheel]"), "{said}");

    // A device wheel of another build, with valid archives, and a host with another script.
    let other = add_and_mul(["gfx942", "gfx90a:xnack+"], ["gfx1100", "gfx90a:xnack-"]);
    let other = Wheel::new(FAT)
        .member("vec/_vec.so", other.bytes())
        .member("vec-1.0.data/scripts/vec", "#!python3\n");
    let other = other.write(&tree.path("other")).unwrap();
    let options = Options::new([&other], tree.path("other/out"));
    split(&options, &()).unwrap();
    let device = "vec_device_gfx942-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let device = tree.path("other/out").join(device);
    let said = verified(&tree, &[written[0], &device, written[2]], &against);
    assert!(said.contains("made for another build"), "{said}");
    let host = tree.path("other/out").join(FAT);
    let said = verified(&tree, &[written[0], written[1], &host], &against);
    let script =
        "member `vec-1.0.data/scripts/vec` differs from that of the fat wheel [host-differs]";
    assert!(said.contains(script), "{said}");
}

#[test]
fn what_a_set_of_wheels_is() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let report = run_split(&tree, [&fat]);
    let mut arguments = vec!["wheel", "show"];
    arguments.extend(report.wheels.iter().map(|wheel| shown(&wheel.path)));
    let shown = said(&tree, &arguments);
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"(?m)^\$ .*$", "$$ kpack wheel show …");
    settings.add_filter(r"[0-9.]+ KiB", "[size]");
    settings.add_filter(r" +size\n", " size\n");
    settings.add_filter(r" +\[size\]", " [size]");
    settings.bind(|| insta::assert_snapshot!(shown));
}

#[test]
fn files_of_kernel_databases_move_to_device_wheels_at_their_paths() {
    let tree = Tree::new();
    let code_object = |target| code(target, "kernel").1;
    let library = "vec/lib/rocblas/library";
    let fat = Wheel::new(FAT)
        .member(&format!("{library}/Kernels.so-000-gfx942.hsaco"), code_object("gfx942"))
        .member(&format!("{library}/Kernels.so-000-gfx1100.hsaco"), code_object("gfx1100"))
        .member(&format!("{library}/TensileManifest.txt"), "names")
        .member("vec.libs/libvec-1a2b3c4d.so", self::library().bytes())
        .member("vec/_vec.so", self::library().bytes());
    let fat = fat.write(&tree.path("dist")).unwrap();
    let report = run_split(&tree, [&fat]);
    let device = &report.wheels.iter().find(|w| w.extra.as_deref() == Some("device-gfx942"));
    let names = Vec::from_iter(members(&device.unwrap().path).into_keys());
    assert_eq!(
        names[..5],
        [
            "vec.libs/.kpack/vec_lib.gfx942.kpm",
            "vec.libs/.kpack/vec_lib_gfx942.kpack",
            "vec/.kpack/vec_lib.gfx942.kpm",
            "vec/.kpack/vec_lib_gfx942.kpack",
            "vec/lib/rocblas/library/Kernels.so-000-gfx942.hsaco",
        ]
    );
    let host = &report.wheels.last().unwrap().path;
    assert!(members(host).contains_key(&format!("{library}/TensileManifest.txt")));
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &["--against", shown(&fat)]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
}

/// A wheel in the shape of torch's: AOTriton's images are for families of processors.
fn wheel_with_families(tree: &Tree) -> PathBuf {
    let library = add_and_mul(["gfx942", "gfx1100"], ["gfx942", "gfx1201"]);
    let mut fat = Wheel::new(FAT).member("vec/_vec.so", library.bytes());
    for directory in ["amd-gfx11xx", "amd-gfx110x", "amd-gfx120x", "amd-gfx942"] {
        let image = format!("vec/lib/aotriton.images/{directory}/flash/attn_fwd.aks2");
        fat = fat.member(&image, directory);
    }
    fat.write(&tree.path("dist")).unwrap()
}

#[test]
fn the_files_of_a_family_come_with_each_of_its_processors() {
    let tree = Tree::new();
    let fat = wheel_with_families(&tree);
    let report = run_split(&tree, [&fat]);
    let host = &report.wheels.last().unwrap().path;
    let metadata = text(host, "vec-1.0.dist-info/METADATA");
    let pins = |extra: &str| {
        let marker = format!("; extra == \"device-{extra}\"");
        let lines = metadata.lines().filter(|line| line.ends_with(&marker));
        let lines = lines.filter_map(|line| line.strip_prefix("Requires-Dist: vec-device-"));
        let labels = lines.filter_map(|line| line.split_once("==")).map(|(label, _)| label);
        labels.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(pins("gfx1100"), ["gfx1100", "gfx11", "gfx110x"]);
    assert_eq!(pins("gfx1201"), ["gfx1201", "gfx12_0"]);
    // No other extra, since every family comes with its processors.
    let extras = metadata.lines().filter_map(|line| line.strip_prefix("Provides-Extra: device-"));
    assert_eq!(extras.collect::<Vec<_>>(), ["all", "gfx1100", "gfx1201", "gfx942"]);
    assert_eq!(pins("gfx942"), ["gfx942"]);
    let device = |extra: &str| {
        let mut wheels = report.wheels.iter();
        let wheel = wheels.find(|wheel| wheel.extra.as_deref() == Some(extra));
        wheel.unwrap().path.clone()
    };
    // Who installs a device wheel by its name gets them as well.
    let gfx1100 = text(&device("device-gfx1100"), "vec_device_gfx1100-1.0.dist-info/METADATA");
    let required = gfx1100.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
    assert_eq!(
        required.collect::<Vec<_>>(),
        ["vec==1.0", "vec-device-gfx11==1.0", "vec-device-gfx110x==1.0"]
    );
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &["--against", shown(&fat)]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
}

/// Given a wheel in the shape of torch's, when pip installs it with the extra of a GPU, then every file for this GPU
/// and its families is there, and none for another.
#[test]
fn pip_installs_every_file_for_a_gpu() {
    if !tool("pip3") {
        return;
    }
    let tree = Tree::new();
    let library = add_and_mul(["gfx942", "gfx1100"], ["gfx942", "gfx1201"]);
    let images = "vec/lib/aotriton.images";
    let tensile = "vec/lib/rocblas/library";
    let own = [
        format!("{images}/amd-gfx11xx/flash/attn_fwd.aks2"),
        format!("{images}/amd-gfx110x/flash/attn_bwd.aks2"),
        format!("{tensile}/Kernels.so-000-gfx1100.hsaco"),
        format!("{tensile}/TensileLibrary_Type_gfx1100.co"),
        format!("{tensile}/TensileLibrary_Type_gfx1100.dat"),
    ];
    let of_others = own.each_ref().map(|path| {
        let path = path.replace("gfx1100", "gfx942");
        path.replace("gfx11xx", "gfx942").replace("gfx110x", "gfx120x")
    });
    let shared = format!("{tensile}/TensileLibrary_Type_fallback.dat");
    let mut fat = Wheel::new(FAT).member("vec/_vec.so", library.bytes());
    for path in own.iter().chain(&of_others).chain([&shared]) {
        let target = if path.contains("gfx942") { "gfx942" } else { "gfx1100" };
        let content = match path.rsplit('.').next() {
            Some("hsaco" | "co") => code(target, path).1,
            Some("dat") => library_file(target, &[]).unwrap(),
            _ => path.clone().into_bytes(),
        };
        fat = fat.member(path, content);
    }
    let fat = fat.write(&tree.path("dist")).unwrap();
    run_split(&tree, [&fat]);
    let mut pip = Command::new("pip3");
    pip.args(["install", "--quiet", "--no-index", "--only-binary=:all:"]);
    pip.args(["--platform", "manylinux_2_28_x86_64"]);
    pip.args(["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]);
    pip.args(["--disable-pip-version-check", "--no-compile", "--target"]);
    pip.arg(tree.path("site")).arg("--find-links");
    run(pip.arg(tree.path("out")).arg("vec[device-gfx1100]"));
    for path in own.iter().chain([&shared]) {
        let installed = fs::read(tree.path("site").join(path));
        assert!(installed.is_ok(), "{path}");
    }
    for path in &of_others {
        assert!(!tree.path("site").join(path).exists(), "{path}");
    }
    let said = said(&tree, &["verify", "site", "--arch", "gfx1100"]);
    assert!(said.contains(", 0 faults") && said.ends_with("\nexit code 0\n"), "{said}");
}

#[test]
fn archives_below_one_directory_and_requirements_of_others() {
    let tree = Tree::new();
    let library = add_and_mul(["gfx942", "gfx1100"], ["gfx942", "gfx1100"]);
    let fat = Wheel::new(FAT)
        .member("vec/lib/libvec.so", library.bytes())
        .member("vec.libs/libmore.so", library.bytes())
        .member("vec/lib/aotriton.images/amd-gfx11xx/flash/attn_fwd.aks2", "image");
    let fat = fat.write(&tree.path("dist")).unwrap();
    let fat = fat.to_str().unwrap();
    let arguments = "wheel split --device-name amd-vec-device-{target} --overlay-root vec/ --output-dir own \
         --device-requires rocm-sdk-device-{target}==7.14 --device-requires hip-helper \
         --host-requires rocm-bootstrap>=1";
    let arguments = Vec::from_iter(arguments.split_whitespace().chain([fat]));
    let split = self::said(&tree, &arguments);
    assert!(split.ends_with("exit code 0\n"), "{split}");
    let device = |label: &str| {
        let file = format!("own/amd_vec_device_{label}-1.0-cp311-cp311-manylinux_2_28_x86_64.whl");
        let metadata =
            text(&tree.path(&file), &format!("amd_vec_device_{label}-1.0.dist-info/METADATA"));
        let lines = metadata.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
        (
            Vec::from_iter(members(&tree.path(&file)).into_keys()),
            Vec::from_iter(lines.map(str::to_owned)),
        )
    };
    let (files, requirements) = device("gfx1100");
    assert!(files.contains(&"vec/.kpack/vec_lib_gfx1100.kpack".to_owned()), "{files:?}");
    assert!(!files.iter().any(|file| file.starts_with("vec.libs")), "{files:?}");
    let own = "rocm-sdk-device-gfx1100==7.14";
    let expected = ["vec==1.0", "amd-vec-device-gfx11==1.0", own, "hip-helper"];
    assert_eq!(requirements, expected);
    assert_eq!(device("gfx11").1, ["vec==1.0", "hip-helper"]);
    let host = text(&tree.path("own").join(FAT), "vec-1.0.dist-info/METADATA");
    assert!(host.contains("\nRequires-Dist: rocm-bootstrap>=1\n"), "{host}");
    let written = names(&tree.path("own"));
    let written = Vec::from_iter(written.iter().map(|name| tree.path("own").join(name)));
    let written: Vec<&Path> = written.iter().map(PathBuf::as_path).collect();
    let said = verified(&tree, &written, &["--against", fat]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    for (option, value, code) in [
        ("--overlay-root", "missing", 3),
        ("--overlay-root", "vec-1.0.dist-info", 2),
        ("--overlay-root", "../vec", 2),
        ("--device-requires", "a b", 2),
        ("--host-requires", "a-{target}", 2),
    ] {
        let said = self::said(&tree, &["wheel", "split", fat, "--output-dir", "no", option, value]);
        assert!(said.contains(option) && said.ends_with(&format!("exit code {code}\n")), "{said}");
        assert!(!tree.path("no").exists(), "{said}");
    }
}

#[test]
fn a_group_has_the_files_of_its_families() {
    let tree = Tree::new();
    let fat = wheel_with_families(&tree);
    let mut options = Options::new([&fat], tree.path("out"));
    options.groups = vec!["mine=gfx942,gfx1100".parse().unwrap()];
    let report = split(&options, &()).unwrap();
    let wheels: Vec<&str> = report.wheels.iter().filter_map(|w| w.extra.as_deref()).collect();
    assert_eq!(wheels, ["device-gfx1201", "device-mine"]);
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &["--against", shown(&fat)]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
}

/// The parsed `variant.json` of a wheel, or index file of its project.
fn variants(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn wheel_variants_require_the_device_wheel_of_their_gpus() {
    let tree = Tree::new();
    let fat = wheel_with_families(&tree);
    let mut options = Options::new([&fat], tree.path("out"));
    options.groups = vec!["cdna=gfx942".parse().unwrap()];
    options.variant = true;
    let report = split(&options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()));
    let out = tree.path("out");
    let of_variants = |name: &String| name.starts_with("vec_device-");
    let written = Vec::from_iter(names(&out).into_iter().filter(of_variants));
    let tags = "cp311-cp311-manylinux_2_28_x86_64";
    assert_eq!(
        written,
        [
            format!("vec_device-1.0-{tags}-cdna.whl"),
            format!("vec_device-1.0-{tags}-gfx1100.whl"),
            format!("vec_device-1.0-{tags}-gfx1201.whl"),
            format!("vec_device-1.0-{tags}-null.whl"),
            format!("vec_device-1.0-{tags}.whl"),
            "vec_device-1.0-variants.json".to_owned(),
        ]
    );
    let index = fs::read(out.join("vec_device-1.0-variants.json")).unwrap();
    let listed = &variants(&index)["variants"];
    let amd = |processor: &str| serde_json::json!({"amd": {"gfx_arch": [processor]}});
    for (wheel, label, properties, required) in [
        (0, "cdna", amd("gfx942"), Some("vec-device-cdna==1.0")),
        (1, "gfx1100", amd("gfx1100"), Some("vec-device-gfx1100==1.0")),
        (3, "null", serde_json::json!({}), None),
    ] {
        let wheel = out.join(&written[wheel]);
        let of_wheel = variants(&members(&wheel)["vec_device-1.0.dist-info/variant.json"].1);
        assert_eq!(of_wheel["variants"], serde_json::json!({ label: properties }));
        assert_eq!(listed[label], properties);
        for part in ["$schema", "default-priorities", "providers"] {
            assert_eq!(of_wheel[part], variants(&index)[part]);
        }
        let metadata = text(&wheel, "vec_device-1.0.dist-info/METADATA");
        let requirements = metadata.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
        let expected = Vec::from_iter(["vec==1.0"].into_iter().chain(required));
        assert_eq!(Vec::from_iter(requirements), expected);
    }
    // Installers without variants take the wheel without a label.
    assert!(!members(&out.join(&written[4])).contains_key("vec_device-1.0.dist-info/variant.json"));
    let host = &report.wheels.last().unwrap().path;
    let metadata = text(host, "vec-1.0.dist-info/METADATA");
    assert!(metadata.contains("Requires-Dist: vec-device==1.0\n"), "{metadata}");
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &["--against", shown(&fat)]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    // One that says something else than its name.
    let gfx1100 = out.join(format!("vec_device-1.0-{tags}-gfx1100.whl"));
    let renamed = out.join(format!("vec_device-1.0-{tags}-gfx942.whl"));
    fs::rename(gfx1100, &renamed).unwrap();
    let said = verified(&tree, &[&renamed], &[]);
    assert!(
        said.contains("the file describes gfx1100 (expected gfx942, as the file name says)"),
        "{said}"
    );
    for (name, group) in
        [("{dist}-{target}", "cdna"), ("{dist}-device-{target}", "much_too_long_label")]
    {
        options.device_name = name.to_owned();
        options.groups = vec![format!("{group}=gfx942").parse().unwrap()];
        let error = split(&options, &()).unwrap_err();
        assert!(matches!(error, kpack_core::Error::Usage(_)), "{error:?}");
    }
}

/// Given a wheel that its build split, as `kpack_install` does with scikit-build-core, when it is split into wheels,
/// then these are like those of a fat wheel.
#[test]
fn wheels_that_were_split_when_they_were_built() {
    use kpack_split::install::{InstallOptions, install as split_binary};
    let tree = library().in_tree("built/vec/_vec.so");
    let mut options = InstallOptions::new(tree.path("built"), "vec", ["vec/_vec.so"]);
    options.kpack_dir = "vec/.kpack".into();
    split_binary(&options, &()).unwrap();
    let mut built =
        Wheel::new(FAT).member("vec/_vec.so", fs::read(tree.path("built/vec/_vec.so")).unwrap());
    for name in names(&tree.path("built/vec/.kpack")) {
        let bytes = fs::read(tree.path("built/vec/.kpack").join(&name)).unwrap();
        built = built.member(&format!("vec/.kpack/{name}"), bytes);
    }
    let built = built.write(&tree.path("dist")).unwrap();
    let own = run_split(&tree, [&built]);
    let fat = Wheel::new(FAT).member("vec/_vec.so", library().bytes());
    let fat = fat.write(&tree.path("fat")).unwrap();
    let options = Options::new([&fat], tree.path("plain"));
    let plain = split(&options, &()).unwrap();
    assert_eq!(names(&tree.path("out")), names(&tree.path("plain")));
    for (own, plain) in own.wheels.iter().zip(&plain.wheels) {
        let listed = |wheel: &Path| Vec::from_iter(members(wheel).into_keys());
        assert_eq!(listed(&own.path), listed(&plain.path));
    }
    let (host, devices) = own.wheels.split_last().unwrap();
    for device in devices {
        let site = tree.path(device.extra.as_ref().unwrap());
        install(&host.path, &site);
        install(&device.path, &site);
        let said = said(&tree, &["verify", site.to_str().unwrap()]);
        assert!(said.contains(", 0 faults") && said.ends_with("\nexit code 0\n"), "{said}");
    }
    let manifest = members(&host.path).remove("vec/.kpack/vec_lib.kpm").unwrap().1;
    let manifest = Manifest::read(&manifest).unwrap();
    let hint = manifest.install_command("gfx942").unwrap();
    assert_eq!(hint, "pip install 'vec[device-gfx942]==1.0'");
}

/// Given a wheel with libraries that were copied from a split ROCm, when it is split with ROCm's archives, then the
/// host and device wheels load their code.
#[test]
fn archives_that_auditwheel_left_behind_are_added() {
    let tree = Tree::new();
    let fat = vendored(&tree).write(&tree.path("dist")).unwrap();
    let without = said(&tree, &["wheel", "split", shown(&fat), "--output-dir", "out"]);
    assert!(
        without.contains("member `vec.libs/libmore-1a2b3c4d.so`: split by another tool")
            && without.contains("`kpack wheel split --archives PREFIX`"),
        "{without}"
    );
    let mut options = Options::new([&fat], tree.path("out"));
    options.archives = vec![tree.path("rocm")];
    let report = split(&options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()));
    let wheels: Vec<&str> = report.wheels.iter().filter_map(|w| w.extra.as_deref()).collect();
    assert_eq!(wheels, ["device-gfx90a", "device-gfx942"]);
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &[]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    let site = tree.path("site");
    install(written[2], &site);
    install(written[1], &site);
    let said = self::said(&tree, &["verify", "site"]);
    assert!(said.contains(", 0 faults") && said.ends_with("\nexit code 0\n"), "{said}");
    let binary = site.join("vec.libs/libvec-1a2b3c4d.so");
    let marker = LinkedBinary::open(&binary).unwrap().markers().unwrap().remove(0).marker;
    assert_eq!(marker.kpack_search_paths, [".kpack/vec_lib_@GFXARCH@.kpack"]);
    let cache = Cache::new(Environment::default());
    for (target, loads) in [("gfx942", true), ("gfx90a:xnack+", false)] {
        let loaded = cache.load_code_object(&Request {
            marker: &marker,
            binary: &binary,
            co_index: 0,
            isas: &[target.parse().unwrap()],
        });
        assert_eq!(loaded.is_ok(), loads, "{target}");
    }
}

/// Archives of another build of a library would be loaded, and run wrong code.
#[test]
fn archives_of_another_build_are_not_added() {
    let tree = Tree::new();
    let fat = vendored(&tree).write(&tree.path("dist")).unwrap();
    let split = |rocm: &str| {
        let fat = shown(&fat);
        said(&tree, &["wheel", "split", fat, "--output-dir", "out", "--archives", rocm])
    };
    for (directory, targets, code, expected) in [
        ("other", Some(["gfx90a", "gfx942"]), 3, "another build of the library"),
        ("odd", Some(["gfx1030", "gfx1100"]), 3, "another build of the library"),
        ("empty", None, 2, "there is no archive (.kpack) below it"),
        ("dist", None, 2, "there is no archive (.kpack) below it"),
        ("nothing", None, 4, "nothing"),
    ] {
        if let Some(targets) = targets {
            use kpack_split::install::{InstallOptions, install};
            for name in ["vec", "more"] {
                let file = format!("lib/lib{name}.so");
                let library = add_and_mul(targets, targets);
                library.build(&tree.path(directory).join(&file)).unwrap();
                install(&InstallOptions::new(tree.path(directory), name, [&file]), &()).unwrap();
            }
        } else if directory == "empty" {
            fs::create_dir_all(tree.path(directory)).unwrap();
        }
        let said = split(directory);
        assert!(
            said.contains(expected) && said.ends_with(&format!("exit code {code}\n")),
            "{said}"
        );
        assert_eq!(names(&tree.path("out")), [""; 0], "{said}");
    }
}

/// A group that is called like a family has no files of that family.
#[test]
fn a_group_may_be_called_like_a_family_and_generic_code_is_taken() {
    let tree = Tree::new();
    let library = add_and_mul(["gfx1100", "gfx1101"], ["gfx1102", "gfx11-generic"]);
    let fat = Wheel::new(FAT).member("vec/_vec.so", library.bytes());
    let fat = fat.write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    options.groups = vec!["gfx11=gfx1100,gfx1101".parse().unwrap()];
    let report = split(&options, &()).unwrap();
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &["--against", shown(&fat)]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    // A GPU without its own extra, for which there is generic code.
    let said = verified(&tree, &written, &["--arch", "gfx1103"]);
    assert!(!said.contains("no extra"), "{said}");
    let said = verified(&tree, &written, &["--arch", "gfx942"]);
    assert!(said.contains("no extra for gfx942"), "{said}");
}

/// The device wheels of a wheel with this code, and what each extra of the host asks for.
fn grouped(targets: &[&str], groups: &[&str]) -> (Vec<String>, BTreeMap<String, Vec<String>>) {
    let tree = Tree::new();
    let library = targets.iter().fold(FatLibrary::new(), |library, target| {
        library.wrapper(Storage::Plain, [code(target, "add")])
    });
    let fat = Wheel::new(FAT).member("vec/_vec.so", library.bytes());
    let fat = fat.write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    options.groups = groups.iter().map(|group| group.parse().unwrap()).collect();
    let report = split(&options, &()).unwrap();
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    let said = verified(&tree, &written, &["--against", shown(&fat)]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
    let mut extras: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text(written.last().unwrap(), "vec-1.0.dist-info/METADATA").lines() {
        let required = line.strip_prefix("Requires-Dist: vec-device-");
        let required = required.and_then(|line| line.split_once("==1.0 ; extra == \"device-"));
        if let Some((wheel, extra)) = required {
            let extra = extra.trim_end_matches('"').to_owned();
            extras.entry(extra).or_default().push(wheel.to_owned());
        }
    }
    extras.remove("all");
    let devices = report.wheels.iter().filter_map(|wheel| wheel.extra.clone());
    (devices.collect(), extras)
}

#[test]
fn a_group_gets_the_generic_code_that_its_gpus_need() {
    let names = |names: &[&str]| Vec::from_iter(names.iter().map(|name| (*name).to_owned()));
    let extras = |extras: &[(&str, &[&str])]| {
        let extras = extras.iter();
        let extras = extras.map(|(extra, wheels)| ((*extra).to_owned(), names(wheels)));
        BTreeMap::from_iter(extras)
    };
    let (devices, asked) = grouped(&["gfx11-generic"], &["g=gfx1103"]);
    assert_eq!(devices, names(&["device-g"]));
    let one: &[&str] = &["g"];
    assert_eq!(asked, extras(&[("g", one), ("gfx11-generic", one), ("gfx1103", one)]));
    // Two groups need the generic code, and a GPU of its own does.
    let (devices, asked) =
        grouped(&["gfx11-generic", "gfx1100", "gfx1102"], &["g=gfx1102,gfx1103", "h=gfx1150"]);
    let expected = ["device-g", "device-gfx11-generic", "device-gfx1100", "device-h"];
    assert_eq!(devices, names(&expected));
    let with = |wheel: &'static str| [wheel, "gfx11-generic"];
    assert_eq!(
        asked,
        extras(&[
            ("g", &with("g")),
            ("gfx11-generic", &["gfx11-generic"]),
            ("gfx1100", &with("gfx1100")),
            ("gfx1102", &with("g")),
            ("gfx1103", &with("g")),
            ("gfx1150", &with("h")),
            ("h", &with("h")),
        ])
    );
}

/// ROCm's packages for gfx1250 contain the code for gfx1250-strict, so there are none of its own.
#[test]
fn code_that_belongs_to_another_target_s_packages_is_in_its_device_wheel() {
    let wheels = |names: &[&str]| Vec::from_iter(names.iter().map(|name| (*name).to_owned()));
    for targets in [&["gfx1250", "gfx1250-strict"][..], &["gfx1250-strict"]] {
        let (devices, asked) = grouped(targets, &[]);
        assert_eq!(devices, ["device-gfx1250"]);
        assert_eq!(asked, BTreeMap::from([("gfx1250".to_owned(), wheels(&["gfx1250"]))]));
        let (devices, asked) = grouped(targets, &["g=gfx1250"]);
        assert_eq!(devices, ["device-g"]);
        let [g, own] = ["g", "gfx1250"].map(|extra| (extra.to_owned(), wheels(&["g"])));
        assert_eq!(asked, BTreeMap::from([g, own]));
    }
    let tree = Tree::new();
    let targets = ["gfx1250-strict", "gfx1250"];
    let fat = Wheel::new(FAT)
        .member("vec/_vec.so", add_and_mul(targets, targets).bytes())
        .member("vec/lib/rocblas/library/TensileLibrary_gfx1250.co", code("gfx1250", "k").1)
        .member(
            "vec/lib/rocblas/library/TensileLibrary_gfx1250-strict.co",
            code("gfx1250-strict", "k").1,
        );
    let fat = fat.write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    options.device_requires = vec!["rocm-sdk-device-{target}==7.14".to_owned()];
    options.variant = true;
    let report = split(&options, &()).unwrap();
    let [device, ..] = &report.wheels[..] else { panic!("no wheel") };
    assert_eq!(device.targets, ["gfx1250", "gfx1250-strict"]);
    let files = Vec::from_iter(members(&device.path).into_keys());
    for file in [
        "vec/.kpack/vec_lib_gfx1250-strict.kpack",
        "vec/.kpack/vec_lib_gfx1250.kpack",
        "vec/lib/rocblas/library/TensileLibrary_gfx1250-strict.co",
        "vec/lib/rocblas/library/TensileLibrary_gfx1250.co",
    ] {
        assert!(files.iter().any(|found| found == file), "{file}: {files:?}");
    }
    let metadata = text(&device.path, "vec_device_gfx1250-1.0.dist-info/METADATA");
    let required = metadata.lines().filter(|line| line.contains("rocm-sdk"));
    assert_eq!(Vec::from_iter(required), ["Requires-Dist: rocm-sdk-device-gfx1250==7.14"]);
    let index = variants(&fs::read(tree.path("out/vec_device-1.0-variants.json")).unwrap());
    let expected = serde_json::json!({"amd": {"gfx_arch": ["gfx1250"]}});
    assert_eq!(index["variants"]["gfx1250"], expected);
    assert_eq!(index["variants"].as_object().unwrap().len(), 2);
    let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
    for arch in targets {
        let said = verified(&tree, &written, &["--arch", arch, "--against", shown(&fat)]);
        assert!(said.ends_with("exit code 0\n"), "{said}");
    }
    let manifest = &members(&report.wheels.last().unwrap().path)["vec/.kpack/vec_lib.kpm"].1;
    let hint = Manifest::read(manifest).unwrap().install_command("gfx1250-strict");
    assert_eq!(hint.unwrap(), "pip install 'vec[device-gfx1250]==1.0'");
}

/// Changes the lines of a wheel's METADATA, and its RECORD.
fn without_requirement(wheel: &Path, requirement: &str) {
    let script = r#"
import base64, hashlib, sys, zipfile
wheel, pin = sys.argv[1:]
with zipfile.ZipFile(wheel) as old:
    members = [(info, old.read(info)) for info in old.infolist()]
metadata = next(info.filename for info, _ in members if info.filename.endswith("/METADATA"))
with zipfile.ZipFile(wheel, "w") as new:
    for info, data in members:
        if info.filename == metadata:
            lines = data.decode().splitlines(keepends=True)
            data = "".join(line for line in lines if not line.startswith(pin)).encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            row = f"{metadata},sha256={digest},{len(data)}"
        if info.filename.endswith("/RECORD"):
            rows = data.decode().splitlines()
            data = "".join((row if line.startswith(metadata + ",") else line) + "\n" for line in rows).encode()
        new.writestr(info, data)
"#;
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(wheel);
    run(python.arg(format!("Requires-Dist: {requirement}")));
}

#[test]
fn wheels_that_do_not_ask_for_a_family_are_faults() {
    if !tool("python3") {
        return;
    }
    let pin = "vec-device-gfx11==1.0";
    let asked = format!("{pin} ; extra == \"device-gfx1100\"");
    for (extra, requirement, expected) in [
        (
            None,
            &*asked,
            "the extra device-gfx1100 does not ask for vec-device-gfx11==1.0, which has files for gfx11",
        ),
        (Some("device-gfx1100"), pin, "it does not require vec-device-gfx11==1.0"),
    ] {
        let tree = Tree::new();
        let fat = wheel_with_families(&tree);
        let report = run_split(&tree, [&fat]);
        let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
        let mut wheels = report.wheels.iter().rev();
        let wheel = &wheels.find(|wheel| wheel.extra.as_deref() == extra).unwrap().path;
        without_requirement(wheel, requirement);
        let said = verified(&tree, &written, &[]);
        assert!(said.contains(expected), "{said}");
        assert!(said.contains(ids::FAMILY_NOT_REQUIRED.as_str()), "{said}");
        assert!(said.ends_with("exit code 1\n"), "{said}");
    }
}

#[test]
fn groups_that_would_lose_a_gpu_are_refused() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    for (group, why) in [
        (
            "gfx9=gfx90a,gfx9999",
            "group `gfx9`: no wheel has code for gfx9999; there is code for gfx90a",
        ),
        ("gfx9=gfx90a,gfx9O8", "did you mean gfx908?"),
        ("gfx942=gfx90a,gfx1100", "it is named like gfx942, which is not in it"),
        ("gfx9=gfx90a:xnack+", "gfx90a:xnack+ is a variant; name gfx90a"),
        (
            "gfx12=gfx90a,gfx1250-strict",
            "group `gfx12`: the device wheel of gfx1250 contains the code for gfx1250-strict; name gfx1250",
        ),
    ] {
        let mut options = Options::new([&fat], tree.path("out"));
        let result = group.parse().and_then(|group| {
            options.groups = vec![group];
            split(&options, &())
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!tree.path("out").join(FAT).exists());
    }
}

#[test]
fn groups_and_names_of_device_wheels() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    options.device_name = "amd-{dist}-{target}".to_owned();
    options.groups = vec!["gfx9=gfx90a,gfx942".parse().unwrap()];
    split(&options, &()).unwrap();

    let mut wrong = options.clone();
    wrong.groups[0].name = "All".to_owned();
    let error = split(&wrong, &()).unwrap_err().to_string();
    assert!(error.contains("the extra device-all asks for all"), "{error}");
    wrong = options;
    wrong.device_name = "../{target}".to_owned();
    let error = split(&wrong, &()).unwrap_err().to_string();
    assert!(error.starts_with("device name `../{target}`"), "{error}");

    let device = "amd_vec_gfx9-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    assert_eq!(names(&tree.path("out")), [device, FAT]);
    let metadata = text(&tree.path("out").join(FAT), "vec-1.0.dist-info/METADATA");
    for extra in ["device-gfx9", "device-gfx90a", "device-gfx942", "device-all"] {
        let line = format!("Requires-Dist: amd-vec-gfx9==1.0 ; extra == \"{extra}\"\n");
        assert!(metadata.contains(&line), "{metadata}");
    }
}

#[test]
fn odd_wheels_that_installers_accept() {
    // Directories, no description, CRLF, binaries in a wheel for any platform and in its data.
    for (host, prefix) in [
        (wheel(FAT).directory("vec").without_description(), ""),
        (wheel(FAT).in_wheel("Purelib: false", "Purelib: true"), ""),
        (wheel(FAT).in_metadata("\n", "\r\n").without_description(), ""),
        (
            Wheel::new(FAT)
                .in_wheel("Purelib: false", "Purelib: true")
                .member("vec/__init__.py", "")
                .member("vec-1.0.data/platlib/vec/_vec.so", library().bytes()),
            "vec-1.0.data/platlib/",
        ),
    ] {
        let tree = Tree::new();
        let fat = host.write(&tree.path("dist")).unwrap();
        let report = run_split(&tree, [&fat]);
        let written: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
        let said = verified(&tree, &written, &["--against", shown(&fat)]);
        assert!(said.ends_with("exit code 0\n"), "{said}");
        let host = members(written.last().unwrap());
        let manifest = format!("{prefix}vec/.kpack/vec_lib.kpm");
        assert!(host.contains_key(&manifest), "{:?}", host.keys());
    }
}

#[test]
fn warnings() {
    let tree = Tree::new();
    let fat = wheel("vec-1.0-cp311-cp311-linux_x86_64.whl")
        .in_wheel("Tag: cp311-cp311", "Tag: cp39-cp39")
        .member("vec-1.0.data/scripts/vec", library().bytes())
        .member("vec-1.0.dist-info/RECORD.jws", "{}")
        .member("vec/kernels-gfx942.co", code("gfx942", "kernel").1)
        .member("vec/noise.bin", noise(1 << 20))
        .write(&tree.path("dist"))
        .unwrap();
    let report = run_split(&tree, [&fat]);
    let findings = report.findings.iter();
    let texts = findings.map(|finding| format!("{} [{}]", finding.text, finding.id));
    let texts: Vec<String> = texts.collect();
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+ bytes, \d+ before", "[sizes]");
    settings.add_filter(r"have \d+ %", "have [percent] %");
    settings.bind(|| insta::assert_snapshot!(texts.join("\n")));
}

/// Given a wheel for a ROCm that cannot load what is split, or with libraries of ROCm, then a note says so.
#[test]
fn a_wheel_for_an_older_rocm_and_one_with_libraries_of_rocm() {
    let notes = |wheel: Wheel| {
        let tree = Tree::new();
        let fat = wheel.member("vec/_vec.so", library().bytes()).write(&tree.path("dist")).unwrap();
        let found = run_split(&tree, [&fat]).findings.into_iter();
        let found =
            found.filter(|found| [ids::NEWER_ROCM_NEEDED, ids::VENDORED_ROCM].contains(&found.id));
        Vec::from_iter(found.map(|found| {
            assert_eq!(found.severity, Severity::Note);
            (found.id, found.text)
        }))
    };
    let tags = "cp311-cp311-manylinux_2_28_x86_64.whl";
    let older = Wheel::new(&format!("vec_rocm6_4-1.0+rocm6.4-{tags}"))
        .field("Requires-Dist", "rocm==7.10")
        .field("Requires-Dist", "rocm[libraries]==7.10 ; extra == 'a'")
        .field("Requires-Dist", "jax-rocm60-plugin @ https://user:s3cr3t@host.example/x.whl")
        .field("Requires-Dist", "torch>=2");
    let [(ids::NEWER_ROCM_NEEDED, text)] = &notes(older)[..] else { panic!("no note") };
    let expected = "the split wheel needs ROCm 7.13 or newer, but METADATA says it is for an older ROCm (name \
                    vec_rocm6_4, version 1.0+rocm6.4, requirement jax-rocm60-plugin …, requirement rocm==7.10, \
                    requirement rocm[libraries]==7.10); also publish the unsplit wheel";
    assert!(text.starts_with(expected), "{text}");
    let newer = Wheel::new(&format!("vec_rocm-1.0+rocm7.14.0-{tags}"))
        .field("Requires-Dist", "rocm>=6.4")
        .member("vec/librocblas.txt", "");
    assert_eq!(notes(newer), []);
    let copies = Wheel::new(&format!("vec-1.0-{tags}"))
        .member("vec.libs/libamdhip64-9bb0d6b1.so.7.2.53211", vec![0; 2048])
        .member("vec.libs/librocblas-0a1b2c3d.so.5.1", vec![0; 1024]);
    let [(ids::VENDORED_ROCM, text)] = &notes(copies)[..] else { panic!("no note") };
    assert_eq!(
        text,
        "contains copies of ROCm's libraries (2 files, 3.00 KiB): libamdhip64-9bb0d6b1.so.7.2.53211, \
         librocblas-0a1b2c3d.so.5.1; if your users have ROCm, leave each of them out with an option such as \
         `auditwheel repair --exclude 'libamdhip64.so*'`"
    );
    // In ROCm's own wheels, they are no copies.
    let own = Wheel::new(&format!("rocm_sdk_libraries-7.14.0-{tags}"))
        .member("_rocm_sdk_libraries/lib/librocblas.so.5", vec![0; 1024]);
    assert_eq!(notes(own), []);
}

/// Bytes that cannot be compressed.
pub(crate) fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
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
        assert!(said.contains(", 0 faults") && said.ends_with("\nexit code 0\n"), "{said}");
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
        &["wheel", "split", "-j1", "-q", fat.to_str().unwrap(), "--output-dir", "out"],
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

/// Given a module that clang compiles for two Pythons, whose headers are in other directories, when the wheels are
/// split, then they share device wheels only if clang gives compilation units no IDs.
#[test]
fn clang_makes_device_code_of_each_python_differ() {
    if !tool("clang++-19") || !tool("ld.lld-19") {
        return;
    }
    let tree = Tree::new();
    let source = "#include <hip/hip_runtime.h>\n\
        __global__ void scale(float *x, float a) { x[0] *= a; }\n\
        void run(float *x) { scale<<<1, 1>>>(x, 2.0f); }\n";
    fs::write(tree.path("vec.hip"), source).unwrap();
    for (option, devices) in [(None, 2), (Some("-fuse-cuid=none"), 1)] {
        let wheels = ["cp310", "cp311"].map(|python| {
            let mut clang = Command::new("clang++-19");
            clang.current_dir(tree.root());
            clang.args(["-x", "hip", "-nogpuinc", "-nogpulib", "-I"]);
            clang.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip"));
            clang.arg(format!("-Iinclude/{python}")).args(option);
            clang.args([
                "--offload-arch=gfx942",
                "-fPIC",
                "-shared",
                "-nostdlib",
                "-fuse-ld=lld-19",
            ]);
            run(clang.args(["vec.hip", "-o", "vec.so"]));
            let file = format!("vec-1.0-{python}-{python}-manylinux_2_28_x86_64.whl");
            let library = fs::read(tree.path("vec.so")).unwrap();
            let wheel = Wheel::new(&file).member("vec/_vec.so", library);
            wheel.write(&tree.path("dist")).unwrap()
        });
        let report = run_split(&tree, wheels);
        assert_eq!(report.wheels.len(), 2 + devices, "{option:?}");
        let ids = report.findings.iter().map(|finding| finding.id);
        let count = ids.filter(|id| *id == ids::OTHER_PYTHONS).count();
        assert_eq!(count, devices - 1, "{:?}", report.findings);
        fs::remove_dir_all(tree.path("out")).unwrap();
    }
}

/// cibuildwheel rejects a repair command that writes several wheels into its directory.
#[test]
fn device_wheels_have_a_directory_of_their_own() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    for (named, devices, expected) in [("devices", "devices", 1), ("out/../out", "out", 3)] {
        options.device_dir = Some(tree.path(named));
        let report = split(&options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()));
        assert_eq!(names(&tree.path("out")).len(), expected);
        let paths: Vec<&Path> = report.wheels.iter().map(|wheel| &*wheel.path).collect();
        assert_eq!(paths[2], tree.path("out").join(FAT));
        assert!(paths[..2].iter().all(|path| path.starts_with(tree.path(devices))));
        let said = verified(&tree, &paths, &["--against", shown(&fat)]);
        assert!(said.ends_with("exit code 0\n"), "{said}");
    }
    assert_eq!(names(&tree.path("devices")).len(), 2);
    // A run that fails leaves both directories as they are.
    let before = tree.snapshot();
    let other = Wheel::new(FAT).member("vec/__init__.py", "");
    options.wheels = vec![other.write(&tree.path("other")).unwrap()];
    options.device_dir = Some(tree.path("devices"));
    split(&options, &()).unwrap_err();
    fs::remove_dir_all(tree.path("other")).unwrap();
    assert_eq!(tree.snapshot(), before);
}

/// Both runs lock the same directory first, so neither waits for the other for ever.
#[test]
fn runs_with_swapped_directories_take_turns() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    for (output, devices) in [("a", "b"), ("b", "a")] {
        let first = Stage::lock(&tree.path("a"), "vec").unwrap();
        thread::scope(|scope| {
            let mut options = Options::new([&fat], tree.path(output));
            options.device_dir = Some(tree.path(devices));
            let run = scope.spawn(move || split(&options, &()).map(drop));
            thread::sleep(Duration::from_millis(500));
            assert!(!run.is_finished() && !tree.path("b/.vec.tmp").exists());
            drop(first);
            run.join().unwrap().unwrap();
        });
    }
}

/// One project's device wheels say nothing about another's download.
#[test]
fn sizes_are_compared_within_a_project() {
    let tree = Tree::new();
    let library = add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"]);
    let small = Wheel::new(FAT)
        .member("vec/_vec.so", library.bytes())
        .member("vec/kernels-gfx942.co", code("gfx942", "kernel").1);
    let small = small.member("vec/noise.bin", noise(1 << 16));
    let other = FAT.replace("vec-", "other-");
    let mut large = code("gfx942", "kernel").1;
    large.extend(noise(1 << 20));
    let large = Wheel::new(&other)
        .member("other/rocblas/library/Kernels.so-000-gfx942.hsaco", large)
        .member("other/_other.so", library.bytes());
    let wheels = [small, large].map(|wheel| wheel.write(&tree.path("dist")).unwrap());
    let gains = |wheels: &[PathBuf]| {
        let report = run_split(&tree, wheels);
        let of_gain = report.findings.into_iter();
        let of_gain = of_gain.filter(|finding| finding.id == ids::SMALL_GAIN);
        let texts = of_gain.map(|finding| finding.text);
        texts.collect::<Vec<_>>()
    };
    let alone = wheels.each_ref().map(|wheel| gains(std::slice::from_ref(wheel)));
    let mut alone = alone.concat();
    let mut together = gains(&wheels);
    alone.sort();
    together.sort();
    assert_eq!(together, alone);
}

#[test]
fn fat_wheels_are_not_overwritten() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("out")).unwrap();
    let other = wheel(FAT).write(&tree.path("dist")).unwrap();
    let before = tree.snapshot();
    let error = split(&Options::new([&other], tree.path("out")), &()).unwrap_err();
    assert_eq!(error.id(), ids::OUTPUT_IN_THE_WAY, "{error}");
    let error = split(&Options::new([&fat], tree.path("out")), &()).unwrap_err();
    assert_eq!(error.id(), ids::OUTPUT_IN_THE_WAY, "{error}");
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn a_limit_of_file_sizes_is_an_error_without_other_words() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let kpack = env!("CARGO_BIN_EXE_kpack");
    for blocks in [1, 4, 16, 64] {
        let script = format!("ulimit -f {blocks}; exec \"$0\" wheel split \"$1\" --output-dir out");
        let mut command = Command::new("sh");
        command.args(["-c", &script, kpack]).arg(&fat).current_dir(tree.root());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{blocks}: {said}");
        assert!(said.starts_with("kpack: error: cannot write"), "{blocks}: {said}");
        assert_eq!(names(&tree.path("out")), [""; 0]);
    }
}

#[test]
fn python_reads_the_wheels() {
    let tree = Tree::new();
    let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
    let report = run_split(&tree, [&fat]);
    for wheel in &report.wheels {
        let test = run(Command::new("python3").args(["-m", "zipfile", "-t"]).arg(&wheel.path));
        assert!(test.contains("Done testing"), "{test}");
    }
}

#[test]
fn little_memory_is_an_error() {
    with_little_memory(12 << 10);
}

mod faults {
    mod extra {
        #[test]
        #[ignore = "takes each size of memory"]
        fn little_memory_is_an_error() {
            super::super::with_little_memory(1 << 10);
        }
    }
}

/// Given little memory, up to 120 MB in steps of so many kilobytes, when a wheel is split, then that succeeds, is an error
/// or aborts, and never panics or hangs.
fn with_little_memory(step: usize) {
    let tree = Tree::new();
    let members = (0..64).fold(binary_wheel(), |wheel, n| {
        wheel.member(&format!("vec/{n}.py"), format!("x = {n}\n").repeat(2000))
    });
    members.write(tree.root()).unwrap();
    let mut codes = std::collections::BTreeSet::new();
    for kilobytes in (12 << 10..=120 << 10).step_by(step) {
        let script = format!(
            "ulimit -v {kilobytes}; exec timeout -s KILL 60 {} wheel split {FAT} --quiet --output-dir out",
            env!("CARGO_BIN_EXE_kpack")
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(tree.root());
        let run = shell.env("RUST_BACKTRACE", "0").output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        // 127: it was not loaded. 134, or none: it was aborted.
        let code = run.status.code();
        assert!(
            matches!(code, None | Some(0 | 4 | 127 | 134)),
            "{kilobytes} KB: {:?}: {said}",
            run.status
        );
        assert!(!said.contains("panicked"), "{kilobytes} KB: {said}");
        if code == Some(4) {
            assert!(said.contains("kpack: error: "), "{kilobytes} KB: {said}");
        }
        codes.insert(code);
        let _ = fs::remove_dir_all(tree.path("out"));
    }
    assert!(codes.contains(&Some(0)), "{codes:?}");
    eprintln!("exit codes: {codes:?}");
}

/// Given a wheel without a split library, and no place for scratch files, when it is described, then nothing is unpacked.
#[test]
fn describing_a_wheel_that_was_not_split_unpacks_nothing() {
    let tree = Tree::new();
    binary_wheel().write(tree.root()).unwrap();
    let mut show = Command::new(env!("CARGO_BIN_EXE_kpack"));
    show.args(["wheel", "show", FAT]).current_dir(tree.root());
    let shown = try_run(show.env("TMPDIR", "/nonexistent")).unwrap();
    assert!(shown.contains("vec 1.0"), "{shown}");
}
