//! Given the same input, when it is split in another way, place, order or time, or by another user, then the
//! result has the same bytes and directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::{Tree, entries_below};

use crate::command::for_every_user;

const BINARIES: [&str; 3] = ["bin/vec", "lib/libadd.so", "lib/libmul.so"];
const OBJECTS: [&str; 2] = ["in/add.o", "in/mul.o"];

fn build(tree: &Tree, path: &str, kind: Kind, kernel: &str) {
    let targets = ["gfx1100", "gfx90a:xnack+", "gfx942"];
    FatLibrary::new()
        .kind(kind)
        .wrapper(Storage::Plain, targets.map(|target| code(target, kernel)))
        .wrapper(Storage::Zstd(2), targets.map(|target| code(target, "same")))
        .build(&tree.path(path))
        .unwrap();
}

/// Installed binaries, objects, and artifacts.
fn input() -> Tree {
    let tree = Tree::new();
    for binary in BINARIES {
        let kind = if binary.starts_with("bin") { Kind::Pie } else { Kind::Shared };
        build(&tree, &format!("in/prefix/{binary}"), kind, binary);
        build(&tree, &format!("in/built/blas_lib/blas/stage/{binary}"), kind, binary);
        build(&tree, &format!("in/built/fft_lib/fft/stage/{binary}"), kind, binary);
    }
    for component in ["blas_lib", "fft_lib"] {
        let list = format!("in/built/{component}/artifact_manifest.txt");
        let module = component.trim_end_matches("_lib");
        fs::write(tree.path(&list), format!("{module}/stage\n")).unwrap();
    }
    for object in OBJECTS {
        build(&tree, object, Kind::Object, object);
    }
    tree
}

/// How the commands are run.
#[derive(Default, Clone, Copy)]
struct Way {
    /// A program that runs a command.
    runner: &'static [&'static str],
    jobs: Option<&'static str>,
    /// With the files in the other order.
    reversed: bool,
    /// When all of the input was changed last.
    time: Option<&'static str>,
    nobody: bool,
}

/// Every file and directory after all commands, with its mode.
fn result(input: &Tree, way: Way) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let tree = Tree::new();
    process::copy(input.path("in"), tree.path("in"));
    if let Some(time) = way.time {
        let mut touch = Command::new("find");
        touch.arg(tree.root()).args(["-exec", "touch", "-d", time, "{}", "+"]);
        process::run(&mut touch);
    }
    let (kpack, _directory) = for_every_user();
    if way.nobody {
        process::run(Command::new("chown").args(["-R", "65534:65534"]).arg(tree.root()));
    }
    let (mut binaries, mut objects) = (BINARIES, OBJECTS);
    if way.reversed {
        binaries.reverse();
        objects.reverse();
    }
    let install = ["split", "--quiet", "--prefix", "in/prefix", "--module", "vec"];
    let object = ["object", "--quiet", "--module", "vec", "--output-dir", "host"];
    let split = [
        "artifact",
        "split",
        "--quiet",
        "--batch-artifact-parent-dir",
        "in/built",
        "--output-dir",
        "out",
    ];
    for arguments in
        [[&install[..], &binaries].concat(), [&object[..], &objects].concat(), split.to_vec()]
    {
        let mut command = Command::new("env");
        command.args(way.runner).arg(&kpack);
        command.args(arguments).current_dir(tree.root());
        command.args(way.jobs.map(|jobs| format!("--jobs={jobs}")));
        process::run(&mut command);
    }
    entries_below(tree.root())
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let input = input();
    let plain = Way::default();
    let expected = result(&input, plain);
    let mut ways = vec![
        ("in another directory", plain),
        ("by one thread", Way { jobs: Some("1"), ..plain }),
        ("by three threads", Way { jobs: Some("3"), ..plain }),
        ("on one processor", Way { runner: &["taskset", "--cpu-list", "0"], ..plain }),
        ("in another order", Way { reversed: true, ..plain }),
        ("in another year", Way { time: Some("2001-02-03 04:05:06"), ..plain }),
        (
            "in another time zone and language",
            Way { runner: &["TZ=Asia/Tokyo", "LC_ALL=tr_TR.UTF-8"], ..plain },
        ),
        (
            "with another umask",
            Way { runner: &["sh", "-c", "umask 077; exec \"$0\" \"$@\""], ..plain },
        ),
    ];
    if require::root() {
        let runner = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let nobody = Way { runner, nobody: true, ..plain };
        ways.push(("by another user", nobody));
    }
    for (name, way) in ways {
        let found = result(&input, way);
        let differs = |path: &&PathBuf| found.get(*path) != expected.get(*path);
        let paths = Vec::from_iter(expected.keys().chain(found.keys()).filter(differs));
        assert!(paths.is_empty(), "{name}: {paths:?}");
    }
}
