//! Given `kpack.exe`, when wine runs it, then it does what the command for Linux does, and writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use kpack_core::ids;
use kpack_core::platform::set_mode_at;
use kpack_tests::bytes;
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, Wheel, WindowsBuild, WindowsLinker, code, code_object, library_file,
};
use kpack_tests::process;
use kpack_tests::tree::{Tree, copy_file};
use kpack_tests::windows;

use crate::blas::pair;
use crate::command::{command, words};
use crate::wheels::{self, FAT, members};

/// The command for Windows, in a tree.
pub(crate) fn exe(tree: &Tree, arguments: &[&str]) -> Command {
    static EXE: LazyLock<PathBuf> =
        LazyLock::new(|| windows::build(&["build", "-p", "kpack-cli"]).join("kpack.exe"));
    let mut command = windows::wine(&EXE);
    command.current_dir(tree.root()).args(arguments);
    command
}

/// Standard output and exit code, with the names and ends of lines of Linux.
fn told(output: &Output) -> (String, Option<i32>) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let mut told = String::new();
    for line in text.replace('\r', "").lines() {
        // Columns are as wide as the paths.
        let words = Vec::from_iter(line.split_whitespace());
        let line = words.join(" ").replace('\\', "/");
        told.push_str(&line.replace("//?/Z:", "").replace("Z:", "").replace("-xnack", ":xnack"));
        told.push('\n');
    }
    (told, output.status.code())
}

fn library(tree: &Tree, path: &str, code_of: &str) {
    let objects = ["gfx1100", "gfx90a:xnack+"].map(|target| code(target, code_of));
    let library =
        FatLibrary::new().wrapper(Storage::Plain, objects.clone()).wrapper(Storage::Plain, objects);
    library.build(&tree.path(path)).unwrap();
}

fn dll(tree: &Tree, path: &str, code_of: &str) {
    let objects = ["gfx1100", "gfx90a:xnack+"].map(|target| code(target, code_of));
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    let build = WindowsBuild { linker: WindowsLinker::Gnu, is_program: false, flags: &[] };
    fs::create_dir_all(tree.path(path).parent().unwrap()).unwrap();
    library.build_for_windows(build, &tree.path(path)).unwrap();
}

/// The files below a directory, by their names on Linux.
fn files(tree: &Tree) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let bytes = fs::read(tree.path(&name)).unwrap();
        (name.replace("-xnack", ":xnack"), bytes)
    };
    let mut files = Vec::from_iter(tree.files().into_iter().map(read));
    // It lists names of files.
    for (_, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with(".kpm")) {
        let text = String::from_utf8_lossy(bytes).replace("-xnack", ":xnack");
        *bytes = text.into_bytes();
    }
    files.sort();
    files
}

#[test]
fn commands_that_read() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    library(&tree, "prefix/lib/libvec.so", "add");
    for line in ["split --prefix prefix --module vec --all", "show prefix/lib/libvec.so"] {
        let output = command(&tree, &words(line)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    for line in [
        "show prefix/lib/libvec.so",
        "show --json prefix/lib/.kpack/vec_lib_gfx1100.kpack",
        "list prefix/lib/.kpack/vec_lib_gfx1100.kpack",
        "verify prefix",
        "extract prefix/lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#1 -o -",
        "targets gfx90a gfx11OO",
        "verify none",
    ] {
        let [on_linux, on_windows] = [command(&tree, &words(line)), exe(&tree, &words(line))]
            .map(|mut command| command.output().unwrap());
        let (on_linux, on_windows) = if line.contains("extract") {
            (
                (format!("{:?}", on_linux.stdout), on_linux.status.code()),
                (format!("{:?}", on_windows.stdout), on_windows.status.code()),
            )
        } else {
            (told(&on_linux), told(&on_windows))
        };
        assert_eq!(on_windows, on_linux, "{line}");
    }
}

#[test]
fn binaries_are_split_and_upgraded() {
    if !windows::available() {
        return;
    }
    let [linux, other] = [Tree::new(), Tree::new()];
    for (version, code_of) in ["add", "mul"].into_iter().enumerate() {
        for tree in [&linux, &other] {
            library(tree, "lib/libvec.so", code_of);
        }
        // No two links give the same bytes.
        dll(&linux, "bin/vec.dll", code_of);
        copy_file(linux.path("bin/vec.dll"), other.path("bin/vec.dll"));
        let install = words("split --prefix . --module vec --all");
        // The second run has nothing to do.
        for _ in 0..2 {
            for mut command in [command(&linux, &install), exe(&other, &install)] {
                let output = command.output().unwrap();
                assert!(output.status.success(), "{version}: {output:?}");
            }
            // All files, and no others.
            assert_eq!(files(&other), files(&linux), "{version}");
        }
    }
    let verified = exe(&other, &["verify", "."]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    // What Windows wrote is complete on Linux as well.
    let verified = command(&other, &["verify", "."]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn device_code_is_put_back_and_archives_are_made() {
    if !windows::available() {
        return;
    }
    let [linux, other] = [Tree::new(), Tree::new()];
    for (tree, run) in [(&linux, command as fn(&Tree, &[&str]) -> Command), (&other, exe)] {
        library(tree, "lib/libvec.so", "add");
        for line in [
            "split --prefix . --module vec --all",
            "join --arch gfx90a:xnack+ --prefix . lib/libvec.so",
            "extract lib/libvec.so --kernel libvec.so#0 --output code.hsaco",
            "create made.kpack --arch gfx90a:xnack+ code.hsaco",
        ] {
            let output = run(tree, &words(line)).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }
    }
    assert_eq!(files(&other), files(&linux));
}

#[test]
fn wheels() {
    if !windows::available() {
        return;
    }
    let [linux, other] = [Tree::new(), Tree::new()];
    for tree in [&linux, &other] {
        let wheel = Wheel::new(FAT).member("vec/__init__.py", "answer = 42\n").member_with_mode(
            "vec/_vec.so",
            0o755,
            wheels::library().bytes(),
        );
        wheel.write(tree.root()).unwrap();
    }
    let split = ["wheel", "split", "--output-dir", "out", FAT];
    for mut command in [command(&linux, &split), exe(&other, &split)] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(other.files(), linux.files());
    let mut names = Vec::new();
    for wheel in linux.files().into_iter().filter(|name| name.starts_with("out/")) {
        let [on_windows, on_linux] = [&other, &linux].map(|tree| members(&tree.path(&wheel)));
        assert!(on_windows.keys().eq(on_linux.keys()), "{wheel}: {on_windows:?}");
        for (name, content) in on_linux {
            assert!(on_windows[&name] == content, "{wheel}: {name}");
            names.push(name);
        }
    }
    // ROCm's loader looks for this name.
    let archive = "vec/.kpack/vec_lib_gfx90a:xnack+.kpack".to_owned();
    assert!(names.contains(&archive), "{names:?}");
}

#[test]
fn several_runs_at_once_take_turns() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    let names = ["one", "two", "three", "four"];
    for name in names {
        library(&tree, &format!("lib/lib{name}.so"), name);
    }
    let runs = names.map(|name| {
        let line = format!("split --prefix . --module vec lib/lib{name}.so");
        exe(&tree, &words(&line)).spawn().unwrap()
    });
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let verified = exe(&tree, &["verify", "."]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let names = tree.files();
    assert_eq!(names.iter().filter(|name| name.ends_with(".kpack")).count(), 2, "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with(".tmp")), "{names:?}");
}

/// Runs a line in both trees. Both say the same.
fn runs_alike(linux: &Tree, other: &Tree, line: &str) {
    let code = ends_alike(linux, other, line);
    assert_eq!(code, Some(0), "{line}");
}

/// As [`runs_alike`]; returns the exit code.
fn ends_alike(linux: &Tree, other: &Tree, line: &str) -> Option<i32> {
    let on_linux = command(linux, &words(line)).output().unwrap();
    let on_windows = exe(other, &words(line)).output().unwrap();
    let told = |output: &Output, tree: &Tree| {
        let said = Output { stdout: [&*output.stdout, &output.stderr].concat(), ..output.clone() };
        let (text, code) = told(&said);
        let text = text.replace(tree.root().to_str().unwrap(), "");
        // Each system has its own words.
        let lines = text.lines().map(|line| match line.split_once("(os error") {
            Some((said, _)) => said.rsplit_once(": ").map_or(said, |(said, _)| said),
            None => line,
        });
        (Vec::from_iter(lines).join("\n"), code)
    };
    let expected = told(&on_linux, linux);
    assert_eq!(told(&on_windows, other), expected, "{line}");
    let said = String::from_utf8(on_windows.stderr).unwrap();
    assert!(!said.contains(r"\\?\"), "{said}");
    expected.1
}

/// An unsplit artifact for some targets: two libraries, one of them for Windows, and a database.
fn artifact(tree: &Tree, directory: &str, targets: [&str; 2]) {
    let stage = format!("{directory}/math-libs/BLAS/rocBLAS/stage");
    let objects = |of: &'static str| targets.map(|target| code(target, of));
    let library = FatLibrary::new().wrapper(Storage::Zstd(2), objects("gemm"));
    library.build(&tree.path(&format!("{stage}/lib/librocblas.so.5"))).unwrap();
    let library = format!("{stage}/bin/rocblas/library");
    for target in targets {
        let stem = format!("TensileLibrary_Type_SS_{target}");
        pair(tree, &library, &stem, target);
    }
    let fallback = library_file("gfx000", &[]).unwrap();
    tree.write(&format!("{library}/TensileLibrary_fallback.dat"), fallback);
    tree.write(&format!("{directory}/artifact_manifest.txt"), "math-libs/BLAS/rocBLAS/stage\n");
}

/// The files are the same, but for what `kpack artifact recombine` notes about its own paths.
fn assert_same_files(other: &Tree, linux: &Tree) {
    let files = |tree: &Tree| {
        let mut files = files(tree);
        files.retain(|(name, _)| !name.ends_with(".kpack-merged"));
        files
    };
    let (found, expected) = (files(other), files(linux));
    let names = |files: &[(String, Vec<u8>)]| Vec::from_iter(files.iter().map(|f| f.0.clone()));
    assert_eq!(names(&found), names(&expected));
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.1 == expected.1, "{}", found.0);
    }
}

#[test]
fn artifacts_are_split_and_merged() {
    if !windows::available() {
        return;
    }
    let linux = Tree::new();
    artifact(&linux, "in/a", ["gfx1100", "gfx1101"]);
    artifact(&linux, "in/b", ["gfx90a", "gfx942"]);
    dll(&linux, "in/tools/tools/stage/bin/vec.dll", "trsm");
    linux.write("in/tools/artifact_manifest.txt", "tools/stage\n");
    linux.write(
        "packaging.json",
        r#"{"primary_shard": "a", "architecture_groups": {
            "radeon": {"architectures": ["gfx1100", "gfx1101"]},
            "instinct": {"architectures": ["gfx90a", "gfx942"]}}}"#,
    );
    let other = linux.copy();
    let blas = "--artifact-prefix blas_lib";
    for line in [
        format!("artifact split --artifact-dir in/a --output-dir shards/a {blas}"),
        // What is there is replaced.
        format!("artifact split --artifact-dir in/a --output-dir shards/a {blas}"),
        "verify shards/a --against in/a".into(),
        format!("artifact split --artifact-dir in/b --output-dir shards/b {blas}"),
        "artifact split --artifact-dir in/tools --output-dir shards/a --artifact-prefix tools_lib"
            .into(),
        "verify shards/a".into(),
    ] {
        runs_alike(&linux, &other, &line);
    }
    assert_same_files(&other, &linux);
    for tree in [&linux, &other] {
        // No two links give the same bytes.
        let library = "blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5";
        fs::copy(
            tree.path(&format!("shards/a/{library}")),
            tree.path(&format!("shards/b/{library}")),
        )
        .unwrap();
    }
    let recombine = "artifact recombine --input-shards-dir shards --config packaging.json --output-dir packages";
    for line in [
        recombine,
        // There is nothing to do.
        recombine,
        "verify packages",
        "report packages --before in --by target",
        "report packages --html page.html",
    ] {
        runs_alike(&linux, &other, line);
    }
    assert_same_files(&other, &linux);
    // What Windows wrote is complete on Linux as well.
    let verified = command(&other, &["verify", "packages"]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn artifacts_are_packed_and_unpacked() {
    if !windows::available() {
        return;
    }
    let linux = Tree::new();
    artifact(&linux, "in", ["gfx1100", "gfx942"]);
    let split = "artifact split --artifact-dir in --output-dir shard --artifact-prefix blas_lib";
    let output = command(&linux, &words(split)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Windows has no permission to execute.
    for file in linux.files() {
        set_mode_at(&linux.path(&file), 0o644).unwrap();
    }
    let other = linux.copy();
    for line in [
        "artifact pack shard --output-dir store --run 1 --shard a",
        "artifact select store/index.json --arch gfx1100",
        "artifact unpack store --output-dir unpacked",
        "artifact unpack store --arch gfx942 --flatten --output-dir prefix",
        "verify prefix --arch gfx942",
    ] {
        runs_alike(&linux, &other, line);
    }
    assert_same_files(&other, &linux);
    for tree in [&linux, &other] {
        fs::remove_file(tree.path("store/index.json")).unwrap();
    }
    runs_alike(&linux, &other, "artifact pack --archives store --run 1");
    assert_same_files(&other, &linux);
}

/// Code objects over 4 MiB stay in their file until a thread compresses them, while another reads those that follow.
#[test]
fn several_threads_read_one_file() {
    if !windows::available() {
        return;
    }
    let object = |index: usize, size: usize| {
        let payload = format!("{index:03} ").into_bytes().repeat(size / 4);
        code_object("gfx1100", &payload).unwrap()
    };
    let [small, large] = [3_900_000, 5 << 20];
    let sizes = [large; 10].into_iter().chain([small, small, large]);
    let wrappers = sizes.enumerate().map(|(index, size)| object(index, size));
    let library = wrappers.fold(FatLibrary::new(), |library, code| {
        library.wrapper(Storage::Plain, [("gfx1100", code)])
    });
    let linux = Tree::new();
    library.build(&linux.path("lib/libvec.so")).unwrap();
    let other = linux.copy();
    for jobs in [2, 8] {
        let other = other.copy();
        let linux = linux.copy();
        let line = format!("split --prefix . --module vec --all --jobs {jobs}");
        runs_alike(&linux, &other, &line);
        assert_same_files(&other, &linux);
    }
}

#[test]
fn archives_of_other_tools_are_added() {
    if !windows::available() {
        return;
    }
    let linux = Tree::new();
    let objects = ["gfx1100", "gfx942"].map(|target| code(target, "gemm"));
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    let path = "rocm/lib/libvec.so";
    library.build(&linux.path(path)).unwrap();
    let install = "split --prefix rocm --module vec --kpack-dir .kpack lib/libvec.so";
    let output = command(&linux, &words(install)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let split = fs::read(linux.path(path)).unwrap();
    let wheel = Wheel::new(FAT).member_with_mode("vec.libs/libvec-1a2b3c4d.so", 0o755, split);
    wheel.write(linux.root()).unwrap();
    let other = linux.copy();
    let line = format!("wheel split --archives rocm --output-dir out {FAT}");
    runs_alike(&linux, &other, &line);
    for wheel in linux.files() {
        if wheel.starts_with("out/") {
            let [on_linux, on_windows] = [&linux, &other].map(|tree| members(&tree.path(&wheel)));
            assert!(on_windows == on_linux, "{wheel}");
        }
    }
    assert_eq!(other.files(), linux.files());
}

/// Given names that are one name on Windows, that mean something else there, or that it does not have, when a command would
/// write them, then it is rejected, and nothing is written.
#[test]
fn names_that_windows_cannot_hold_are_rejected() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    let on_linux = |line: &str| {
        let output = command(&tree, &words(line)).current_dir(tree.path("in/here")).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    tree.write("in/here/code", code("gfx1100", "add").1);
    for (archive, kernels) in [
        ("case", &["add", "Add"][..]),
        ("parent", &[r"..\\..\\..\\evil.co"]),
        ("drive", &[r"C:\\evil2.co"]),
        ("stream", &["a:b"]),
        ("dot", &["x."]),
    ] {
        let kernels = kernels.iter();
        let kernels = kernels
            .map(|name| format!(r#"{{"name": "{name}", "target": "gfx1100", "file": "code"}}"#));
        let list = format!(
            r#"{{"group_name": "vec", "gfx_arch_family": "gfx1100", "gfx_arches": ["gfx1100"],
                "kernels": [{}]}}"#,
            Vec::from_iter(kernels).join(", ")
        );
        tree.write("in/here/list.json", list);
        on_linux(&format!("create {archive}.kpack --from list.json"));
    }
    for (directory, members) in [
        ("files", &["vec/a.txt", "vec/A.txt"][..]),
        ("directories", &["Vec/a.txt", "vec/b.txt"]),
        ("drive", &["C:evil3/a.txt"]),
        ("root", &["C:/made2/b.txt"]),
        ("device", &["vec/NUL"]),
        ("stream", &["vec/a:b"]),
    ] {
        let wheel = Wheel::new(FAT);
        let wheel = members.iter().fold(wheel, |wheel, name| wheel.member(name, *name));
        let wheel = wheel.member_with_mode("vec/_vec.so", 0o755, wheels::library().bytes());
        wheel.write(&tree.path(&format!("in/here/{directory}"))).unwrap();
    }
    let artifact_of = "in/here/in/blas_lib_generic";
    tree.write(&format!("{artifact_of}/artifact_manifest.txt"), "stage\n");
    tree.write(&format!("{artifact_of}/stage/a.txt"), "one");
    tree.write(&format!("{artifact_of}/stage/A.txt"), "two");
    on_linux("artifact pack in --output-dir store --run 1 --shard a");
    artifact(&tree, "in/here/unsplit", ["gfx1100", "gfx90a:xnack+"]);
    on_linux("artifact split --artifact-dir unsplit --output-dir shard --artifact-prefix blas_lib");
    on_linux("artifact pack shard --output-dir features --run 1 --shard a");
    dll(&tree, "prefix/bin/one.dll", "add");
    dll(&tree, "prefix/bin/two.dll", "mul");
    let line = "split --prefix ../../prefix --module vec bin/one.dll";
    let (said, code, before) = run_within(&tree, &words(line));
    assert_eq!(code, Some(0), "{said}");

    let mut all = String::new();
    for line in [
        "extract case.kpack --output-dir out".to_owned(),
        "extract parent.kpack --output-dir out".to_owned(),
        "extract drive.kpack --output-dir out".to_owned(),
        "extract stream.kpack --output-dir out".to_owned(),
        "extract dot.kpack --output-dir out".to_owned(),
        format!("wheel split --output-dir out files/{FAT}"),
        format!("wheel split --output-dir out directories/{FAT}"),
        format!("wheel split --output-dir out drive/{FAT}"),
        format!("wheel split --output-dir out root/{FAT}"),
        format!("wheel split --output-dir out device/{FAT}"),
        format!("wheel split --output-dir out stream/{FAT}"),
        "artifact unpack store --output-dir out".to_owned(),
        "artifact unpack store --flatten --output-dir out".to_owned(),
        "artifact unpack features --output-dir out".to_owned(),
        // A module whose archives have such names.
        "split --prefix ../../prefix --module Vec bin/two.dll".to_owned(),
    ] {
        let (said, code, after) = run_within(&tree, &words(&line));
        assert_eq!(code, Some(3), "{line}: {said}");
        assert_eq!(after, before, "{line}");
        let said = said.replace(&windows::path(tree.root()), "[root]").replace('\r', "");
        all.push_str(&format!("$ kpack {line}\n{said}\n"));
    }
    insta::assert_snapshot!(all.trim_end());
}

/// All entries, directories as well.
fn entries(tree: &Tree) -> Vec<String> {
    let walk = walkdir::WalkDir::new(tree.root()).sort_by_file_name();
    let paths = walk.into_iter().map(|entry| entry.unwrap().into_path());
    let paths = paths.map(|path| path.strip_prefix(tree.root()).unwrap().to_owned());
    paths.map(|path| path.display().to_string()).collect()
}

#[test]
fn failed_runs_leave_nothing() {
    if !windows::available() {
        return;
    }
    let linux = Tree::new();
    artifact(&linux, "in", ["gfx1100", "gfx942"]);
    let library = "in/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5";
    let mut bytes = fs::read(linux.path(library)).unwrap();
    let bundle = bytes::position(&bytes, b"CCOB");
    bytes[bundle + 64..bundle + 96].fill(0xff);
    linux.write(library, &bytes);
    linux.write("bad.o", &bytes);
    linux.write("vec-1.0-py3-none-any.whl", &bytes);
    linux.write("bad.kpack", &bytes);
    linux.write("messages.json", "{}\n");
    linux.write("store/index.json", "{}\n");
    linux.write("packaging.json", "{\"architecture_groups\": {}}");
    let other = linux.copy();
    let before = entries(&linux);
    for line in [
        "artifact split --artifact-dir in --output-dir new/out --artifact-prefix blas_lib",
        "split --prefix in/math-libs/BLAS/rocBLAS/stage --module vec --all",
        "object --module vec --output-dir new/host bad.o",
        "wheel split --output-dir new/wheels vec-1.0-py3-none-any.whl",
        "extract bad.kpack --output new/code",
        "create new/made.kpack --arch gfx1100 bad.o",
        "stage --output-dir new/dist --messages messages.json",
        "artifact unpack store --output-dir new/unpacked",
        "artifact recombine --input-shards-dir in --config packaging.json --output-dir new/packages",
        "artifact pack in --output-dir new/store",
        "doctor --arch gfx942 in/math-libs/BLAS/rocBLAS/stage",
    ] {
        let code = ends_alike(&linux, &other, line);
        assert_ne!(code, Some(0), "{line}");
        assert_eq!(entries(&other), entries(&linux), "{line}");
    }
    assert_eq!(entries(&other), before);
}

#[test]
fn objects_are_split_before_the_link() {
    if !windows::available() {
        return;
    }
    let linux = Tree::new();
    let library = FatLibrary::new().kind(Kind::Object);
    library.wrapper(Storage::Plain, [code("gfx1100", "add")]).build(&linux.path("fat.o")).unwrap();
    let other = linux.copy();
    for line in ["object --module vec --output-dir host fat.o", "show host/fat.o", "verify host"] {
        runs_alike(&linux, &other, line);
    }
    assert_same_files(&other, &linux);

    // A compiler that has compiled before.
    let compiler = "#include <windows.h>\n\
        int main(void) { return !CopyFileA(\"fat.o\", \"made.o\", 0); }\n";
    other.write("compiler.c", compiler);
    let mut gcc = Command::new(windows::COMPILER);
    process::run(gcc.current_dir(other.root()).args(["-o", "compiler.exe", "compiler.c"]));
    let line = "launch --module vec -- ./compiler.exe -c add.hip -o made.o";
    let launched = exe(&other, &words(line)).output().unwrap();
    assert!(launched.status.success(), "{launched:?}");
    let place = windows::path(&other.path("made.o.kpack"));
    let search_path = format!("{place}/.kpack/vec_lib_@GFXARCH@.kpack");
    let object = fs::read(other.path("made.o")).unwrap();
    let mut marker = object.windows(search_path.len());
    assert!(marker.any(|text| text == search_path.as_bytes()));
    let archive = "made.o.kpack/.kpack/vec_lib_gfx1100.kpack";
    assert!(other.path(archive).is_file());
}

/// Runs a line in a directory of the tree, and returns what it says and all files of the tree.
fn run_within(tree: &Tree, line: &[&str]) -> (String, Option<i32>, Vec<String>) {
    fs::create_dir_all(tree.path("in/here")).unwrap();
    let output = exe(tree, line).current_dir(tree.path("in/here")).output().unwrap();
    let said = String::from_utf8([&*output.stdout, &output.stderr].concat()).unwrap();
    (said, output.status.code(), entries(tree))
}

#[test]
fn archives_that_loaders_on_linux_do_not_find_are_noted() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    library(&tree, "in/here/prefix/lib/libvec.so", "add");
    dll(&tree, "in/here/other/bin/vec.dll", "add");
    let line = words("split --prefix prefix --module vec --all");
    let (said, code, after) = run_within(&tree, &line);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(ids::NAMES_WITHOUT_COLONS.as_str()), "{said}");
    let archive = "in/here/prefix/lib/.kpack/vec_lib_gfx90a-xnack+.kpack".to_owned();
    assert!(after.contains(&archive), "{after:?}");
    let line = words("split --prefix other --module vec --all");
    let (said, code, _) = run_within(&tree, &line);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(ids::NAMES_WITHOUT_COLONS.as_str()), "{said}");

    // Extracted files have no colons either.
    library(&tree, "in/here/libvec.so", "add");
    let (said, code, after) = run_within(&tree, &words("extract libvec.so --output-dir code"));
    assert_eq!(code, Some(0), "{said}");
    let file = "in/here/code/libvec.so-0-gfx90a-xnack+.hsaco".to_owned();
    assert!(after.contains(&file), "{after:?}");

    // Artifacts as well.
    artifact(&tree, "in/here/in", ["gfx1100", "gfx90a:xnack+"]);
    let line =
        words("artifact split --artifact-dir in --output-dir out --artifact-prefix blas_lib");
    let (said, code, _) = run_within(&tree, &line);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(ids::NAMES_WITHOUT_COLONS.as_str()), "{said}");
}

/// Given paths with the separators of Windows, then these are not mixed with others in what is printed, and lead to where they did.
#[test]
fn paths_have_one_separator() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    dll(&tree, "in/here/bin/vec.dll", "add");
    let line = ["split", "--prefix", ".", "--module", "vec", r"bin\vec.dll"];
    let (said, code, _) = run_within(&tree, &[&line[..], &["--dry-run"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r"would write vec_lib_TARGET.kpack to .\lib\.kpack, for"), "{said}");
    let (said, code, _) = run_within(&tree, &line);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r"the device code is in .\lib\.kpack"), "{said}");
    assert!(!said.contains(ids::RESOLVED_ELSEWHERE.as_str()), "{said}");
}

/// Given a display adapter of AMD, then its GPU is that of the machine, whatever the variable for Linux says. If kpack
/// does not know one of them, then it knows none.
#[test]
fn the_display_adapters_are_the_gpus() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    dll(&tree, "in/here/vec.dll", "add");
    let reg = |verb: &str, device: &str, more: &[&str]| {
        let mut reg = windows::wine(Path::new("reg"));
        let id = format!(r"PCI\VEN_1002&DEV_{device}&SUBSYS_00000000&REV_C8");
        let key = format!(r"HKLM\SYSTEM\CurrentControlSet\Enum\{id}");
        // The adapter is in the slot of its ID, under which is what Windows knows about it.
        let key = if verb == "add" { format!(r"{key}\0") } else { key };
        reg.args([verb, &key, "/f"]).args(more).output()
    };
    // Others use the same registry, and so does the next run.
    struct Removed<F: Fn()>(F);
    impl<F: Fn()> Drop for Removed<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let remove = || {
        for device in ["744C", "FFFF"] {
            let _ = reg("delete", device, &[]);
        }
    };
    let add = |device| {
        let class = ["/v", "ClassGUID", "/d", "{4d36e968-e325-11ce-bfc1-08002be10318}"];
        let output = reg("add", device, &class).unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let lines = ["doctor --print-arch", "doctor -v vec.dll"].map(|line| words(line));
    let say_unknown = || {
        for line in &lines {
            let (said, _, _) = run_within(&tree, line);
            assert!(said.contains("kpack does not know this machine's GPUs"), "{line:?}: {said}");
            assert!(!said.contains("amdgpu") && !said.contains("gfx1100"), "{line:?}: {said}");
        }
    };
    // Those of an earlier run that was killed.
    remove();
    let _removed = Removed(remove);
    say_unknown();
    add("744C");
    for variable in ["", "9.0.6"] {
        let mut exe = exe(&tree, &lines[0]);
        let output = exe.env("HSA_OVERRIDE_GFX_VERSION", variable).output().unwrap();
        assert_eq!(told(&output), ("gfx1100\n".to_owned(), Some(0)), "{output:?}");
    }
    let (said, code, _) = run_within(&tree, &lines[1]);
    assert!(said.contains("this machine has gfx1100") && code == Some(0), "{said}");
    add("FFFF");
    say_unknown();
}
