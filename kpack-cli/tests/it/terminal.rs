//! Given names that contain what terminals obey, when any command prints them, then they are escaped.
//!
//! Names in archives, manifests, markers and wheels, and names of files, are chosen by whoever makes them.

use std::fs;
use std::io::Cursor;

use crate::command::{kpack, words};
use kpack_format::archive::{ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::blake3;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, Wheel, add_and_mul, code, code_object};
use kpack_tests::tree::{Tree, write};

/// Clears the screen, returns to the start of the line, begins a new line, writes backwards.
const TRICKS: &str = "x\u{1b}[2J\u{9b}2J\rforged\nforged: fine\u{202e}\u{2066}y";

fn library() -> FatLibrary {
    add_and_mul(["gfx1100", "gfx90a:xnack+"], ["gfx1100", "gfx90a:xnack+"])
}

/// Checks that a command prints the tricks, in a form that no terminal obeys.
fn escapes(tree: &Tree, arguments: &[&str]) {
    let output = kpack(tree, arguments);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let trick = |c: &char| *c != '\n' && c.is_control() || "\u{202e}\u{2066}".contains(*c);
    assert_eq!(said.chars().find(trick), None, "{arguments:?}: {said:?}");
    let mut lines = said.lines().map(str::trim_start);
    let forged = lines.find(|line| line.starts_with("forged"));
    assert_eq!(forged, None, "{arguments:?}: {said}");
    assert!(said.contains("\\u{1b}[2J"), "{arguments:?}: {said}");
}

#[test]
fn binaries_and_archives() {
    let tree = Tree::new();
    let binary = format!("lib/{TRICKS}.so");
    library().build(&tree.path(&binary)).unwrap();
    let target = "gfx1100".parse().unwrap();
    let spool = Cursor::new(Vec::new());
    let mut archive = ArchiveWriter::new(spool, TRICKS, &target, Scheme::None);
    let kernel = format!("{TRICKS}#0");
    let (_, code_object) = code("gfx1100", "add");
    let mut encoder = Encoder::new(Scheme::None, 3).unwrap();
    let encoded = encoder.encode(&code_object, blake3(&code_object)).unwrap();
    archive.add(&kernel, &encoded).unwrap();
    let file = fs::File::create_new(tree.path("evil.kpack")).unwrap();
    archive.finish(file).unwrap();
    let listed = KpackFile::new(TRICKS, TRICKS, 1, 1, None);
    let mut manifest = Manifest::new(TRICKS, TRICKS);
    manifest.kpack_files.insert(TRICKS.to_owned(), listed);
    manifest.install_hint = Some(TRICKS.to_owned());
    fs::write(tree.path("evil.kpm"), manifest.to_bytes()).unwrap();

    let install = ["split", "--prefix", ".", "--module", "vec", &binary];
    for arguments in [
        &["show", &binary][..],
        &words("split --prefix . --module vec lib/none\u{1b}[2J"),
        &install,
        &install,
        &["show", &binary],
        &["show", "evil.kpack"],
        &["show", "evil.kpm"],
        &["list", "evil.kpack"],
        &["list", &binary],
        &["extract", "evil.kpack", "--kernel", TRICKS, "--arch", "gfx1100", "-o", "out"],
        &["verify", "evil.kpack", "evil.kpm"],
        &words("verify --arch gfx942 ."),
        &words("report --by binary lib"),
        &words("doctor -v --arch gfx1100 ."),
        &["join", "--prefix", ".", "--arch", "gfx1100", &binary],
        &["doctor", "-v", "--arch", "gfx942", &binary],
    ] {
        escapes(&tree, arguments);
    }

    let list = kpack(&tree, &["list", "--json", "evil.kpack"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list["kernels"][0]["name"], kernel);
}

#[test]
fn objects_and_messages_of_a_build() {
    let tree = Tree::new();
    let object = format!("{TRICKS}.o");
    let fat = FatLibrary::new().kind(Kind::Object);
    let fat = fat.wrapper(Storage::Plain, [code("gfx1100", "add")]);
    fat.build(&tree.path(&object)).unwrap();
    let missing = format!("{TRICKS}.json");
    for arguments in [
        &["object", "--module", "vec", "--output-dir", "out", &object][..],
        &["object", "--module", TRICKS, "--output-dir", "out", &object],
        &["stage", "--output-dir", "staged", "--messages", &missing],
    ] {
        escapes(&tree, arguments);
    }
}

#[test]
fn arguments_that_are_wrong() {
    let tree = Tree::new();
    let option = format!("--{TRICKS}");
    for arguments in [
        &[TRICKS][..],
        &["verify", &option, "x"],
        &["verify", "--arch", TRICKS, "x"],
        &["split", "--jobs", TRICKS, "--prefix", "."],
        &["report", "--by", TRICKS, "x"],
    ] {
        escapes(&tree, arguments);
    }
}

/// JSON may be printed on a terminal as well. Programs read the name as it is.
#[test]
fn json() {
    let tree = Tree::new();
    let name = format!("{TRICKS}\u{7f}\u{61c}.so");
    library().build(&tree.path(&name)).unwrap();
    let output = kpack(&tree, &["show", "--json", &name]);
    let said = String::from_utf8(output.stdout).unwrap();
    let hidden = "\u{7f}\u{61c}\u{9b}\u{202e}\u{2066}\u{1b}\r";
    assert_eq!(said.chars().find(|c| hidden.contains(*c)), None, "{said:?}");
    let read: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(read.to_string().contains("\u{61c}"), "{read}");
}

#[test]
fn artifacts() {
    let tree = Tree::new();
    let artifact = tree.path("in/blas_lib");
    write(artifact.join("artifact_manifest.txt"), "blas/stage\n");
    write(artifact.join(TRICKS), "");
    let prefix = artifact.join("blas/stage");
    library().build(&prefix.join(format!("lib/{TRICKS}.so"))).unwrap();
    let code = code_object("gfx1100", b"add").unwrap();
    write(prefix.join(format!("share/{TRICKS}_gfx1100.co")), code);
    tree.write("in/fft_lib/artifact_manifest.txt", TRICKS);
    let configuration = |group: &str| {
        let group_of =
            |target| serde_json::json!({"display_name": TRICKS, "architectures": [target]});
        let groups =
            serde_json::json!({group: group_of("gfx1100"), "b": group_of("gfx90a:xnack+")});
        serde_json::json!({"primary_shard": "one", TRICKS: 1, "architecture_groups": groups})
    };
    for (file, group) in [("group", TRICKS), ("good", "a")] {
        let text = configuration(group).to_string();
        tree.write(&format!("{file}.json"), text);
    }
    for line in [
        "artifact split --batch-artifact-parent-dir in --output-dir shards/one",
        "verify --verbose shards/one",
        "verify --verbose shards/one --against in",
        "report --by binary shards/one",
        "artifact recombine --input-shards-dir shards --config group.json --output-dir out",
        "artifact recombine --input-shards-dir shards --config good.json --output-dir out",
    ] {
        escapes(&tree, &words(line));
    }
}

#[test]
fn wheels() {
    const NAME: &str = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let tree = library().in_tree("vec.so");
    let wheel = || {
        let binary = fs::read(tree.path("vec.so")).unwrap();
        Wheel::new(NAME).member("vec/_vec.so", binary)
    };
    let named = |name: &str| wheel().member(&format!("vec/{TRICKS}{name}"), "");
    for (directory, wheel) in [
        ("member", named("/../y")),
        ("requirement", wheel().field("Requires-Dist", "x\u{1b}[2J")),
        ("version", wheel().in_metadata("Version: 1.0", "Version: \u{1b}[2J")),
        ("format", wheel().in_wheel("Version: 1.0", "Version: \u{1b}[2J")),
    ] {
        let path = wheel.write(&tree.path(directory)).unwrap();
        let path = path.to_str().unwrap();
        escapes(&tree, &["wheel", "split", "--output-dir", "out", path]);
        escapes(&tree, &["wheel", "verify", path]);
        escapes(&tree, &["wheel", "show", path]);
    }
}
