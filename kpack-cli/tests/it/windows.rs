//! Given `kpack.exe`, when wine runs it, then it does what the command for Linux does, and writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use kpack_tests::fixture::{FatLibrary, Storage, Wheel, WindowsBuild, WindowsLinker, code};
use kpack_tests::tree::Tree;
use kpack_tests::windows;

use crate::command::{command, words};
use crate::wheel::{self, FAT, binary, members};

/// The command for Windows, in a tree.
fn exe(tree: &Tree, arguments: &[&str]) -> Command {
    static EXE: LazyLock<PathBuf> =
        LazyLock::new(|| windows::build(&["build", "-p", "kpack-cli"]).join("kpack.exe"));
    let mut command = windows::wine(&EXE, Path::new(env!("CARGO_TARGET_TMPDIR")));
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
        told.push_str(
            &line
                .replace("//?/Z:", "")
                .replace("Z:", "")
                .replace("-xnack", ":xnack"),
        );
        told.push('\n');
    }
    (told, output.status.code())
}

fn library(tree: &Tree, path: &str, code_of: &str) {
    let objects = ["gfx1100", "gfx90a:xnack+"].map(|target| code(target, code_of));
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, objects.clone())
        .wrapper(Storage::Plain, objects);
    library.build(&tree.path(path)).unwrap();
}

fn dll(tree: &Tree, path: &str, code_of: &str) {
    let objects = ["gfx1100", "gfx90a:xnack+"].map(|target| code(target, code_of));
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    let build = WindowsBuild {
        linker: WindowsLinker::Gnu,
        is_program: false,
        flags: &[],
    };
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
    for line in [
        "install --prefix prefix --module vec --all",
        "show prefix/lib/libvec.so",
    ] {
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
        let (on_linux, on_windows) = match line.contains("extract") {
            true => (
                (format!("{:?}", on_linux.stdout), on_linux.status.code()),
                (format!("{:?}", on_windows.stdout), on_windows.status.code()),
            ),
            false => (told(&on_linux), told(&on_windows)),
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
        fs::create_dir_all(other.path("bin")).unwrap();
        fs::copy(linux.path("bin/vec.dll"), other.path("bin/vec.dll")).unwrap();
        let install = words("install --prefix . --module vec --all");
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
fn commands_that_need_linux() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    for line in [
        "split --artifact-dir in --output-dir out --artifact-prefix vec_lib",
        "doctor .",
        "pack in --output-dir out",
    ] {
        let output = exe(&tree, &words(line)).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("does not run on Windows; run it on Linux"),
            "{said}"
        );
    }
    assert_eq!(tree.files(), [""; 0]);
}

#[test]
fn device_code_is_put_back_and_archives_are_made() {
    if !windows::available() {
        return;
    }
    let [linux, other] = [Tree::new(), Tree::new()];
    for (tree, run) in [
        (&linux, command as fn(&Tree, &[&str]) -> Command),
        (&other, exe),
    ] {
        library(tree, "lib/libvec.so", "add");
        for line in [
            "install --prefix . --module vec --all",
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
        let wheel = Wheel::new(FAT)
            .member("vec/__init__.py", "answer = 42\n")
            .member_with_mode("vec/_vec.so", 0o755, binary(&wheel::library()));
        wheel.write(tree.root()).unwrap();
    }
    let split = ["wheel", "split", "--output-dir", "out", FAT];
    for mut command in [command(&linux, &split), exe(&other, &split)] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    // Archives have the names of the system, which manifests and lists of files have, too.
    let content = |tree: &Tree, name: &str| {
        let members = members(&tree.path(name)).into_iter();
        let members = members.map(|(name, (mode, bytes))| {
            let lists = name.ends_with(".kpm") || name.ends_with("RECORD");
            (
                name.replace("-xnack", ":xnack"),
                (mode, if lists { Vec::new() } else { bytes }),
            )
        });
        Vec::from_iter(members)
    };
    assert_eq!(other.files(), linux.files());
    for name in linux.files() {
        let (on_windows, on_linux) = (content(&other, &name), content(&linux, &name));
        assert_eq!(on_windows.len(), on_linux.len(), "{name}");
        for (found, expected) in on_windows.into_iter().zip(on_linux) {
            let member = &expected.0;
            assert_eq!((&found.0, found.1.0), (member, expected.1.0), "{name}");
            assert!(found.1.1 == expected.1.1, "{name}: {member}");
        }
    }
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
        let line = format!("install --prefix . --module vec lib/lib{name}.so");
        exe(&tree, &words(&line)).spawn().unwrap()
    });
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let verified = exe(&tree, &["verify", "."]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let names = tree.files();
    assert_eq!(
        names.iter().filter(|name| name.ends_with(".kpack")).count(),
        2,
        "{names:?}"
    );
    assert!(
        !names.iter().any(|name| name.ends_with(".tmp")),
        "{names:?}"
    );
}
