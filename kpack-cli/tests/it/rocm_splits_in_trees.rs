//! Given libraries that ROCm's own tool split, when other commands than those for one file meet them, then these do with
//! them what they do with kpack's own.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_artifact::split::Layout;
use kpack_cli::stage::Options as StageOptions;
use kpack_core::{Severity, ids};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::bytes;
use kpack_tests::fixture::{
    FatLibrary, Kind, RocmScheme, Storage, Wheel, code, rocm_archive, rocm_split, rocm_split_with,
};
use kpack_tests::process::{self, try_run};
use kpack_tests::require;
use kpack_tests::tree::Tree;

use crate::blas::{HIPBLASLT, ROCBLAS, artifact, fat, options, overlay, run, warnings};
use crate::cargo_build::{artifact_of, messages, stage};
use crate::command::{said, words};
use crate::layouts::{AARCH64, Bench, expected_report, same_bytes};
use crate::packed::packed;
use crate::planned;
use crate::verified::{check, check_with, checks, faults};
use crate::wheels::{FAT, members, names};

const FILE: &str = "lib/libvec.so";
const TARGETS: [&str; 2] = ["gfx1100", "gfx942"];

fn two_wrappers() -> FatLibrary {
    let both = |name| TARGETS.map(|target| code(target, name));
    FatLibrary::new().wrapper(Storage::Plain, both("add")).wrapper(Storage::Plain, both("mul"))
}

/// A prefix with a library that ROCm's tool split, and the unsplit one as `fat`.
fn split(library: &FatLibrary, scheme: RocmScheme) -> Tree {
    let tree = library.in_prefix(FILE);
    rocm_split_with(library, &tree.path("prefix"), FILE, "vec_lib", scheme).unwrap();
    tree
}

fn against(tree: &Tree, targets: &[&str]) {
    let report = check_with(tree, "prefix/lib/libvec.so", Some("fat"), targets);
    assert_eq!(faults(&report), [""; 0]);
}

/// Runs a command line, which must end well.
fn succeeds(tree: &Tree, line: &str) -> String {
    let said = said(tree, &words(line));
    assert!(said.ends_with("exit code 0\n"), "{said}");
    said
}

const SPLIT: &str = "split --prefix prefix --module vec lib/libvec.so";
const JOIN: &str = "join --prefix prefix --arch gfx1100 --arch gfx942 --against fat lib/libvec.so";

#[test]
fn what_is_installed_is_joined() {
    let tree = split(&two_wrappers(), RocmScheme::None);
    let line = "join --prefix prefix --arch gfx1100 --installed";
    let archive = tree.path("prefix/lib/.kpack/vec_lib_gfx1100.kpack");
    fs::rename(&archive, tree.path("archive")).unwrap();
    let before = fs::read(tree.path("prefix").join(FILE)).unwrap();
    succeeds(&tree, line);
    assert!(fs::read(tree.path("prefix").join(FILE)).unwrap() == before);
    fs::rename(tree.path("archive"), &archive).unwrap();
    let said = succeeds(&tree, line);
    assert!(said.contains("2 wrappers, gfx1100"), "{said}");
    against(&tree, &["gfx1100"]);
}

/// ROCm's tool writes no `frame_offsets`, so readers walk over the frames.
#[test]
fn compressed_archives_are_read() {
    let tree = split(&two_wrappers(), RocmScheme::Zstd);
    against(&tree, &[]);
    succeeds(&tree, "verify prefix --arch gfx942");
    let line = "extract prefix/lib/.kpack/vec_lib_gfx942.kpack --kernel lib/libvec.so#1";
    succeeds(&tree, &format!("{line} --output code"));
    assert!(fs::read(tree.path("code")).unwrap() == code("gfx942", "mul").1);
    succeeds(&tree, JOIN);
    against(&tree, &[]);
}

/// What ROCm's loader reads and another one does not is no fault.
#[test]
fn what_is_beyond_the_bounds_of_other_readers_is_noted() {
    let tree = Tree::new();
    let name = format!("lib/{}/libvec.so", "directory/".repeat(102));
    fs::create_dir_all(tree.path("prefix/lib/.kpack")).unwrap();
    let (target, bytes) = code("gfx942", "add");
    let plain = rocm_archive("vec_lib", &target, &[(format!("{name}#0"), bytes)], RocmScheme::Zstd);
    let mut without_size = plain.unwrap();
    let key = bytes::position(&without_size, b"original_size");
    without_size[key] = b'_';
    fs::write(tree.path("prefix/lib/.kpack/vec_lib_gfx942.kpack"), without_size).unwrap();
    let report = check(&tree, "prefix");
    assert!(report.holds(), "{report:#?}");
    let notes =
        Vec::from_iter(report.findings.iter().filter(|f| f.id == ids::BEYOND_OTHER_READERS));
    assert_eq!(notes.len(), 2, "{report:#?}");
    assert!(notes[0].text.contains("has 1036 bytes; HRX reads at most 1024"), "{notes:#?}");
    assert!(notes[1].text.contains("no `original_size`"), "{notes:#?}");

    // kpack says so when it writes such an archive.
    let long = format!("lib/{}", "directory/".repeat(102));
    let file = tree.path("long").join(&long).join("libvec.so");
    two_wrappers().build(&file).unwrap();
    let relative = format!("{long}libvec.so");
    let report = install(&InstallOptions::new(tree.path("long"), "vec", [relative]), &()).unwrap();
    let notes = report.findings.iter().filter(|f| f.id == ids::BEYOND_OTHER_READERS);
    assert_eq!(notes.count(), TARGETS.len(), "{report:#?}");
}

/// What packagers run on libraries, and what repairs wheels.
const TOOLS: [&[&str]; 4] = [
    &["patchelf", "--set-rpath", "/a/directory/of/libraries/that/needs/room"],
    &["patchelf", "--add-needed", "libm.so.6"],
    &["strip"],
    &["llvm-strip-19"],
];

fn treat(tool: &[&str], file: &Path) -> anyhow::Result<()> {
    try_run(Command::new(tool[0]).args(&tool[1..]).arg(file)).map(drop)
}

/// What a tool leaves of a split or joined library is sound and has its code, as long as the system loads it.
#[test]
fn tools_change_them_after_the_split_or_the_join() {
    let bench = Bench::new().unwrap();
    for tool in TOOLS.into_iter().filter(|tool| require::tool(tool[0])) {
        for is_joined in [false, true] {
            let what = format!("{tool:?}, joined {is_joined}");
            let tree = split(&two_wrappers(), RocmScheme::None);
            let file = tree.path("prefix").join(FILE);
            let fat = bench.report(Kind::Shared, &tree.path("fat")).unwrap();
            if is_joined {
                succeeds(&tree, JOIN);
            }
            treat(tool, &file).unwrap();
            let expected = if is_joined { fat.clone() } else { expected_report(&fat) };
            let Ok(report) = bench.report(Kind::Shared, &file) else {
                // The tool broke it: it moved the program headers, or left them where nothing maps them.
                let found = check(&tree, "prefix");
                assert!(!found.holds(), "{what}");
                println!("{what}: the system does not load it: {:?}", faults(&found));
                continue;
            };
            assert_eq!(report, expected, "{what}");
            // The tool may have changed the loaded host memory, so only the code is compared.
            assert_eq!(faults(&check(&tree, "prefix")), [""; 0], "{what}");
            let before = fs::read(&file).unwrap();
            if is_joined {
                succeeds(&tree, SPLIT);
                assert_eq!(bench.report(Kind::Shared, &file).unwrap(), expected_report(&fat));
                succeeds(&tree, &JOIN.replace(" --against fat", ""));
                assert_eq!(bench.report(Kind::Shared, &file).unwrap(), fat, "{what}");
            } else {
                succeeds(&tree, &JOIN.replace(" --against fat", ""));
                assert_eq!(bench.report(Kind::Shared, &file).unwrap(), fat, "{what}");
                succeeds(&tree, SPLIT);
                fs::write(tree.path("before"), before).unwrap();
                same_bytes(&tree.path("before"), &file)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert_eq!(faults(&check(&tree, "prefix")), [""; 0], "{what}");
        }
    }
}

/// Pages have 64 KiB there, and the device code may begin within one.
#[test]
fn hosts_may_be_aarch64() {
    if !require::tool(AARCH64.compiler) || !require::tool(AARCH64.runner[0]) {
        return;
    }
    let bench = Bench::of(AARCH64).unwrap();
    let large = |target: &str| {
        let object = kpack_tests::fixture::code_object(target, &vec![7; 200_000]).unwrap();
        (target.to_owned(), object)
    };
    let library = FatLibrary::new().wrapper(Storage::Plain, TARGETS.map(large));
    let library = library.compiler(AARCH64.compiler);
    let tree = split(&library, RocmScheme::None);
    let file = tree.path("prefix").join(FILE);
    let fat = bench.report(Kind::Shared, &tree.path("fat")).unwrap();
    assert_eq!(bench.report(Kind::Shared, &file).unwrap(), expected_report(&fat));
    against(&tree, &[]);
    let host = fs::read(&file).unwrap();
    succeeds(&tree, JOIN);
    assert_eq!(bench.report(Kind::Shared, &file).unwrap(), fat);
    succeeds(&tree, SPLIT);
    fs::write(tree.path("host"), host).unwrap();
    same_bytes(&tree.path("host"), &file).unwrap_or_else(|error| panic!("{error}"));
}

/// An artifact as TheRock's build has it before it is split, but one of its libraries is split already: its archives go
/// to the artifacts of their targets. What is split and recombined holds.
#[test]
fn artifacts_are_split_recombined_and_verified() {
    let (input, output) = (artifact(), Tree::new());
    let prefix = input.path(ROCBLAS);
    fs::remove_file(prefix.join("bin/rocblas-bench")).unwrap();
    rocm_split(&fat("gemm"), &prefix, "lib/librocblas.so.5", "blas_lib").unwrap();
    let mut options = options(&input, &output);
    options.layout = Layout::Module;
    let report = run(&options);
    let errors = checks(&check(&output, ""), Severity::Fault);
    assert_eq!(errors, [""; 0], "{:#?}", warnings(&report));
    for target in ["gfx1100", "gfx942"] {
        let archive = format!("blas_lib_{target}/{ROCBLAS}/lib/.kpack/blas_lib_{target}.kpack");
        assert!(output.path(&archive).exists(), "{:#?}", output.files());
    }
    let all = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];
    let installed = overlay(&output, &all);
    assert_eq!(faults(&check(&installed, "")), [""; 0]);
    let original = Tree::new();
    let path = original.path("fat");
    fat("gemm").build(&path).unwrap();
    let mut options = kpack_artifact::verify::Options::default();
    options.against = Some(path);
    let binary = installed.path("lib/librocblas.so.5");
    let report = kpack_artifact::verify::verify(&[binary], &options, &()).unwrap();
    assert!(report.holds(), "{report:#?}");

    let shards = Tree::new();
    fs::create_dir_all(shards.path("shards/linux")).unwrap();
    for name in all {
        fs::rename(output.path(name), shards.path(&format!("shards/linux/{name}"))).unwrap();
    }
    let groups = planned::CONFIGURATION
        .replace("linux-a", "linux")
        .replace(r#", "gfx1101"]"#, "]")
        .replace(r#""gfx90a:xnack+", "#, "");
    let plan = planned::recombine(&shards, &groups);
    assert_eq!(plan.errors(), 0, "{:#?}", planned::said(&plan));
    assert_eq!(faults(&check(&shards, "out")), [""; 0]);
    assert!(shards.path(&format!("out/blas_lib_generic/{HIPBLASLT}/lib/.kpack")).is_dir());

    // What is packed, selected and unpacked for one GPU is the library with the archive for it.
    packed(&shards, "out", "store");
    let selected = succeeds(&shards, "artifact select store/index.json --arch gfx942");
    assert!(!selected.contains("gfx1100"), "{selected}");
    succeeds(&shards, "artifact unpack store --arch gfx942 --flatten --output-dir root");
    let file = |directory: &str| fs::read(shards.path(directory).join("lib/librocblas.so.5"));
    let generic = format!("out/blas_lib_generic/{ROCBLAS}");
    assert!(file("root").unwrap() == file(&generic).unwrap());
    let archives = names(&shards.path("root/lib/.kpack"));
    let archives = archives.iter().filter(|name| name.ends_with(".kpack"));
    assert_eq!(Vec::from_iter(archives), ["blas_lib_gfx942.kpack", "hipblaslt_lib_gfx942.kpack"]);
    assert_eq!(faults(&check(&shards, "root")), [""; 0]);
}

/// A wheel with libraries and their archives, as those of ROCm are.
#[test]
fn wheels_are_split_and_verified() {
    for scheme in [RocmScheme::None, RocmScheme::Zstd] {
        let tree = split(&two_wrappers(), scheme);
        let bytes = fs::read(tree.path("prefix").join(FILE)).unwrap();
        let mut wheel = Wheel::new(FAT).member_with_mode("vec/libvec.so", 0o755, bytes.clone());
        for name in names(&tree.path("prefix/lib/.kpack")) {
            let archive = fs::read(tree.path("prefix/lib/.kpack").join(&name)).unwrap();
            wheel = wheel.member(&format!("vec/.kpack/{name}"), archive);
        }
        wheel.write(&tree.path("dist")).unwrap();
        succeeds(&tree, &format!("wheel split dist/{FAT} --output-dir out"));
        let wheels = names(&tree.path("out"));
        assert_eq!(wheels.len(), 3, "{wheels:?}");
        let shown = wheels.iter().map(|name| format!("out/{name}"));
        succeeds(&tree, &format!("wheel verify {}", Vec::from_iter(shown).join(" ")));
        let host = members(&tree.path("out").join(FAT));
        assert!(host["vec/libvec.so"].1 == bytes);
        assert!(!host.keys().any(|name| name.ends_with(".kpack")), "{:?}", host.keys());
        // A device wheel that another build's archive is in, or none, is found.
        fs::remove_file(tree.path("out").join(&wheels[1])).unwrap();
        let said = said(&tree, &["wheel", "verify", &format!("out/{FAT}")]);
        assert!(!said.ends_with("exit code 0\n") || said.contains("gfx"), "{said}");
    }
}

/// Repair tools copy libraries from ROCm into wheels, without their archives.
#[test]
fn archives_are_added_to_wheels() {
    let tree = split(&two_wrappers(), RocmScheme::Zstd);
    let bytes = fs::read(tree.path("prefix").join(FILE)).unwrap();
    let wheel = Wheel::new(FAT).member_with_mode("vec.libs/libvec.so", 0o755, bytes);
    wheel.write(&tree.path("dist")).unwrap();
    let line = format!("wheel split dist/{FAT} --output-dir out");
    let without = said(&tree, &words(&line));
    assert!(without.contains("[split-by-another-tool]"), "{without}");
    succeeds(&tree, &format!("{line} --archives prefix"));
    let wheels = names(&tree.path("out"));
    assert_eq!(wheels.len(), 1 + TARGETS.len(), "{wheels:?}");
    let wheels = Vec::from_iter(wheels.iter().map(|name| format!("out/{name}"))).join(" ");
    succeeds(&tree, &format!("wheel verify {wheels}"));
}

/// These read objects, or nothing of the files that they store.
#[test]
fn commands_that_read_no_marker_leave_it_alone() {
    let tree = split(&two_wrappers(), RocmScheme::None);
    let before = tree.snapshot();
    let line = "object --module vec --output-dir out prefix/lib/libvec.so";
    let object = said(&tree, &words(line));
    assert!(object.contains("a linked binary") && object.contains("[unknown-file]"), "{object}");
    succeeds(&tree, "create made.kpack --arch gfx942 prefix/lib/libvec.so");
    let listed = succeeds(&tree, "list made.kpack");
    assert!(
        listed.contains("prefix/lib/libvec.so") && listed.contains("1 code object"),
        "{listed}"
    );
    fs::write(tree.path("main.c"), MAIN).unwrap();
    let compiler = "cc main.c -Lprefix/lib -lvec -Wl,-rpath,$ORIGIN/prefix/lib -o program";
    succeeds(&tree, &format!("launch --module vec -- {compiler}"));
    process::run(&mut Command::new(tree.path("program")));
    for name in before.keys() {
        assert!(tree.snapshot()[name] == before[name], "{name}");
    }
}

/// What the fixture's host code computes.
const MAIN: &str =
    "int fixture_host(int); int main(void) { return fixture_host(4) != 4 * 4 + 2 * 3 + 5; }";

/// A program of Cargo's that links a library of ROCm's wheels or packages, copied beside it.
#[test]
fn a_release_may_have_one() {
    let tree = split(&two_wrappers(), RocmScheme::None);
    let program = tree.path("target/release/app");
    let both = TARGETS.map(|target| code(target, "app"));
    let library = FatLibrary::new().kind(Kind::Pie).wrapper(Storage::Plain, both);
    library.build(&program).unwrap();
    rocm_split(&library, tree.root(), "target/release/app", "app").unwrap();
    let text = messages(&[artifact_of(&tree, &program, "bin")]);
    stage(&StageOptions::new(tree.path("dist")), text.as_bytes()).unwrap();
    assert_eq!(faults(&check(&tree, "dist")), [""; 0], "{:?}", tree.files());
    process::run(&mut Command::new(tree.path("dist/bin/app")));
}

/// Splitting a prefix with both kinds leaves ROCm's as it is.
#[test]
fn a_prefix_may_have_both_kinds() {
    let tree = split(&two_wrappers(), RocmScheme::Zstd);
    let before = fs::read(tree.path("prefix").join(FILE)).unwrap();
    two_wrappers().build(&tree.path("prefix/lib/libown.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "own", ["lib/libown.so"]), &()).unwrap();
    succeeds(&tree, "verify prefix");
    succeeds(&tree, "join --prefix prefix --arch gfx942 --installed");
    succeeds(&tree, "verify prefix");
    succeeds(&tree, "split --prefix prefix --module own lib/libown.so");
    succeeds(&tree, SPLIT);
    assert!(fs::read(tree.path("prefix").join(FILE)).unwrap() == before);
}
