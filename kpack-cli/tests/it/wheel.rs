//! Given Python wheels with device code, when they are split, then installers find a host wheel and device
//! wheels that fit together, and a wheel with something wrong in it leaves nothing behind.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::command::{kpack, said};
use crate::wheels::{FAT, binary_wheel, library, members, names, text, vendored};
use kpack::internal::{Cache, Environment, Request};
use kpack_core::ids;
use kpack_core::publish::Stage;
use kpack_split::input::LinkedBinary;
use kpack_tests::fixture::{FatLibrary, Wheel, add_and_mul, code, library_file};
use kpack_tests::process::{run, try_run};
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, WheelReport, split};
use tar::EntryType;

/// A wheel of a package with a fat binary, and something of everything else.
fn wheel(file: &str) -> Wheel {
    Wheel::with_library(file, library().bytes())
}

/// Splits the wheels in the tree into `out`.
fn run_split<W: Into<PathBuf>>(tree: &Tree, wheels: impl IntoIterator<Item = W>) -> WheelReport {
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
    // One cause is one fault, also for the host wheel alone.
    assert_eq!(said.matches("FAULT").count(), 1, "{said}");
    let alone = verified(&tree, &written[2..], &[]);
    assert!(alone.contains("vec-device-gfx942==1.0, which are not among these"), "{alone}");
    assert_eq!(alone.matches("FAULT").count(), 1, "{alone}");
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

/// The tests of the library have these options as fields.
#[test]
fn options_of_a_split_on_the_command_line() {
    let tree = Tree::new();
    let fat = binary_wheel().member("vec.libs/libmore.so", library().bytes());
    let fat = fat.write(&tree.path("dist")).unwrap();
    let split = |output: &str, more: &[&str]| {
        let arguments = ["wheel", "split", shown(&fat), "--output-dir", output];
        said(&tree, &[&arguments, more].concat())
    };
    let said = split(
        "out",
        &[
            "--overlay-root",
            "vec/",
            "--device-requires",
            "rocm-sdk-device-{target}==7.14",
            "--device-requires",
            "hip-helper",
            "--host-requires",
            "rocm-bootstrap>=1",
        ],
    );
    assert!(said.ends_with("exit code 0\n"), "{said}");
    let requirements = |wheel: &str, metadata: &str| {
        let metadata = text(&tree.path("out").join(wheel), metadata);
        let lines = metadata.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
        Vec::from_iter(lines.map(str::to_owned))
    };
    let device = "vec_device_gfx942-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let own = requirements(device, "vec_device_gfx942-1.0.dist-info/METADATA");
    assert_eq!(own, ["vec==1.0", "rocm-sdk-device-gfx942==7.14", "hip-helper"]);
    let of_host = requirements(FAT, "vec-1.0.dist-info/METADATA");
    assert!(of_host.contains(&"rocm-bootstrap>=1".to_owned()), "{of_host:?}");
    // Without the option, the archives of each binary are in its own top-level directory.
    let files = Vec::from_iter(members(&tree.path("out").join(device)).into_keys());
    assert!(files.iter().any(|file| file.starts_with("vec/.kpack/")), "{files:?}");
    assert!(!files.iter().any(|file| file.starts_with("vec.libs/")), "{files:?}");
    for (option, value, code) in [
        ("--overlay-root", "missing", 3),
        ("--overlay-root", "../vec", 2),
        ("--device-requires", "a b", 2),
        ("--host-requires", "a-{target}", 2),
    ] {
        let said = split("no", &[option, value]);
        // The command line, which has the option too, comes first.
        let (_, message) = said.split_once('\n').unwrap();
        assert!(message.contains(option), "{said}");
        assert!(said.ends_with(&format!("exit code {code}\n")), "{said}");
        assert!(!tree.path("no").exists(), "{said}");
    }
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

/// Its users ask which GPUs it is for, and whether it is sound.
#[test]
fn a_wheel_that_is_not_split_is_shown_with_its_targets_and_has_one_fault() {
    let tree = Tree::new();
    let database = "vec/lib/rocblas/library/TensileLibrary_Type_SS_gfx1030.hsaco";
    wheel(FAT).member(database, "code").write(tree.root()).unwrap();
    let show = said(&tree, &["wheel", "show", FAT]);
    assert!(show.contains("vec 1.0: not split, "), "{show}");
    let targets = "  targets: gfx1030, gfx90a:xnack+, gfx90a:xnack-, gfx942\n";
    assert!(show.contains(targets), "{show}");
    let verify = said(&tree, &["wheel", "verify", FAT]);
    let fault = "FAULT vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl: not split, so there is nothing to verify; \
                 `kpack wheel split` splits it [nothing-split]\n";
    assert!(verify.contains(fault) && !verify.contains("[missing-wheel]"), "{verify}");
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
            "ulimit -v {kilobytes}; exec timeout -s KILL 300 {} wheel split {FAT} --quiet --output-dir out",
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

/// Given a wheel without device code, and no place for scratch files, when it is described, then nothing is unpacked.
#[test]
fn describing_a_wheel_without_device_code_unpacks_nothing() {
    let tree = Tree::new();
    Wheel::with_library(FAT, FatLibrary::new().bytes()).write(tree.root()).unwrap();
    let mut show = Command::new(env!("CARGO_BIN_EXE_kpack"));
    show.args(["wheel", "show", FAT]).current_dir(tree.root());
    let shown = try_run(show.env("TMPDIR", "/nonexistent")).unwrap();
    assert!(shown.contains("vec 1.0"), "{shown}");
}
