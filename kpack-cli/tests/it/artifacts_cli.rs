//! What packagers read: the output of `kpack artifact recombine`, `kpack verify` and `kpack report` about trees. Read
//! the snapshots as a packager would.

use crate::command;
use std::fs;
use std::os::unix::fs::symlink;

use crate::command::{Row, kpack, said_by, words};
use crate::shards::{DATABASE, PREFIX, shard, three_shards};
use insta::assert_snapshot;
use kpack_tests::tree::{Tree, unlistable, write};

const CONFIGURATION: &str = r#"{
  "primary_shard": "linux-a",
  "architecture_groups": {
    "gfx110X": {"architectures": ["gfx1100", "gfx1101"]},
    "instinct": {"architectures": ["gfx90a:xnack+", "gfx942", "gfx950"]}
  }
}"#;

fn tree() -> Tree {
    let tree = three_shards();
    tree.write("packaging.json", CONFIGURATION);
    tree
}

const RECOMBINE: &str =
    "artifact recombine --input-shards-dir shards --config packaging.json --output-dir packages";

/// Snapshots without sizes, which depend on the linker.
fn with_filters(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r" +[0-9.]+ [KM]?i?B", " [size]");
    settings.add_filter(r" +[+-][0-9.]+ %", " [change]");
    settings.add_filter(r"0x[0-9a-f]+", "[offset]");
    settings.add_filter(r"(/n{200}|/deeper)+", "/[long]");
    settings.bind(check);
}

fn said(tree: &Tree, arguments: &str) -> String {
    command::said(tree, &words(arguments))
}

/// Two components as a machine builds and splits them.
fn two_components() -> Tree {
    let tree = Tree::new();
    for name in ["one", "two"] {
        for artifact in [format!("in/{name}_lib"), format!("shards/a/{name}_lib_generic")] {
            tree.write(&format!("{artifact}/artifact_manifest.txt"), "stage\n");
            tree.write(&format!("{artifact}/stage/share/{name}.txt"), "text");
        }
    }
    let groups = r#"{"all": {"architectures": ["gfx942"]}}"#;
    let configuration = format!(r#"{{"primary_shard": "a", "architecture_groups": {groups}}}"#);
    tree.write("packaging.json", configuration);
    tree
}

/// An artifact with a directory that cannot be listed.
fn closed(tree: &Tree, artifact: &str) {
    tree.write(&format!("{artifact}/artifact_manifest.txt"), "stage\n");
    unlistable(&tree.path(artifact).join("stage"));
}

/// A directory that may be an artifact: its list cannot be read.
fn unknown(tree: &Tree, directory: &str) {
    fs::create_dir_all(tree.path(directory)).unwrap();
    symlink("artifact_manifest.txt", tree.path(directory).join("artifact_manifest.txt")).unwrap();
}

/// An artifact of a group with a truncated archive.
fn truncated(tree: &Tree, artifact: &str) {
    tree.write(&format!("{artifact}/artifact_manifest.txt"), "stage\n");
    tree.write(&format!("{artifact}/stage/lib/.kpack/two_lib_gfx942.kpack"), "KPAK");
}

#[test]
fn a_neighbour_that_cannot_be_read() {
    const RECOMBINE: &str = "kpack artifact recombine --input-shards-dir shards --config packaging.json --output-dir out";
    const VERIFY: &str = "kpack verify shards/a";
    const PACK: &str = "kpack artifact pack shards/a --output-dir store --jobs 1";
    const SPLIT: &str = "kpack artifact split --batch-artifact-parent-dir in --output-dir out";
    let rows: &[Row] = &[
        (
            "recombine: the artifact of a target",
            |tree| closed(tree, "shards/a/two_lib_gfx942"),
            &[RECOMBINE],
        ),
        (
            "recombine: the artifact of a group",
            |tree| closed(tree, "shards/a/two_lib_all"),
            &[RECOMBINE],
        ),
        (
            "recombine: a damaged archive of a group",
            |tree| truncated(tree, "shards/a/two_lib_all"),
            &[RECOMBINE],
        ),
        (
            "recombine: the list of an artifact",
            |tree| unknown(tree, "shards/a/two_lib_gfx942"),
            &[RECOMBINE],
        ),
        ("recombine: beside artifacts", |tree| unknown(tree, "shards/a/mnt"), &[RECOMBINE]),
        ("verify: an artifact", |tree| closed(tree, "shards/a/two_lib_gfx942"), &[VERIFY]),
        ("verify: beside artifacts", |tree| unknown(tree, "shards/a/mnt"), &[VERIFY]),
        ("pack: an artifact", |tree| closed(tree, "shards/a/two_lib_gfx942"), &[PACK]),
        ("pack: the list of an artifact", |tree| unknown(tree, "shards/a/two_lib_gfx942"), &[PACK]),
        ("pack: beside artifacts", |tree| unknown(tree, "shards/a/mnt"), &[PACK]),
        ("split: an artifact", |tree| closed(tree, "in/two_lib"), &[SPLIT]),
        ("split: beside artifacts", |tree| unknown(tree, "in/mnt"), &[SPLIT]),
    ];
    with_filters(|| assert_snapshot!(said_by(rows, &two_components())));
}

#[test]
fn recombined_verified_and_measured() {
    let tree = tree();
    let recombined = said(&tree, RECOMBINE);
    let verified = said(&tree, "verify packages");
    fs::rename(tree.path("in"), tree.path("built")).unwrap();
    let measured = said(&tree, "report packages --before built --by target");
    with_filters(|| {
        assert_snapshot!(format!("{recombined}\n{verified}\n{measured}"));
    });
}

#[test]
fn shards_that_do_not_fit_together() {
    let tree = tree();
    shard(&tree, "linux-d", &["gfx906"]);
    let library = format!("blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
    let [from, to] =
        ["linux-a", "linux-d"].map(|name| tree.path(&format!("shards/{name}/{library}")));
    fs::copy(from, to).unwrap();
    let host = format!("blas_lib_generic/{PREFIX}/share/doc/stamp");
    tree.write(&format!("shards/linux-a/{host}"), b"on 2026-11-21 07:45:12");
    tree.write(&format!("shards/linux-b/{host}"), b"on 2026-11-21 08:01:59");
    let database = format!("{DATABASE}/TensileLibrary_Type_SS_gfx942.dat");
    let of_gfx942 = format!("blas_lib_gfx942/{PREFIX}");
    fs::remove_file(tree.path(&format!("shards/linux-c/{of_gfx942}/{database}"))).unwrap();
    tree.write(&format!("shards/linux-c/{of_gfx942}/lib/host.txt"), b"");
    let refused = said(&tree, RECOMBINE);
    assert!(!tree.path("packages").exists());
    let faults = said(&tree, "verify --quiet shards/linux-c");
    with_filters(|| assert_snapshot!(format!("{refused}\n{faults}")));
}

/// Given three components, one with different host files and one whose output is in the way, when they are
/// recombined, then the third is written, and messages name the two.
#[test]
fn a_component_that_fails_stops_no_other() {
    let tree = tree();
    for shard in ["linux-a", "linux-b"] {
        for (name, text) in [("bad_lib", shard), ("good_lib", ""), ("taken_lib", "")] {
            let artifact = tree.path(&format!("shards/{shard}/{name}_generic"));
            write(artifact.join("artifact_manifest.txt"), name);
            write(artifact.join(name).join(name), text);
        }
    }
    tree.write("packages/bad_lib_generic/.kpack-artifact", b"");
    tree.write("packages/taken_lib_generic/mine", b"");
    let planned = said(&tree, &format!("{RECOMBINE} --dry-run"));
    let recombined = said(&tree, RECOMBINE);
    with_filters(|| assert_snapshot!(format!("{planned}\n{recombined}")));
    let written = tree.files();
    let written: Vec<&str> = written
        .iter()
        .filter_map(|path| path.strip_prefix("packages/"))
        .filter(|path| !path.starts_with("blas_lib"))
        .collect();
    assert_eq!(
        written,
        [
            "bad_lib_generic/.kpack-artifact",
            "good_lib_generic/.kpack-artifact",
            "good_lib_generic/artifact_manifest.txt",
            "good_lib_generic/good_lib/good_lib",
            "taken_lib_generic/mine",
        ]
    );
    let output = kpack(&tree, &words(&format!("{RECOMBINE} --json")));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["outcome"], "failed");
    assert_eq!(said["failed"], serde_json::json!(["bad_lib", "taken_lib"]));
}

#[test]
fn json_whatever_happens() {
    let tree = tree();
    let recombine = |more: &str, configuration: &str| {
        tree.write("packaging.json", configuration);
        let output = kpack(&tree, &words(&format!("{RECOMBINE} --json{more}")));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
        let lists = ["artifacts", "findings"].map(|key| said[key].as_array().unwrap().len());
        let code = output.status.code().unwrap();
        let error = text("error").replace(&format!(" [{}]", text("id")), "");
        (code, text("outcome"), error, lists)
    };
    let failed = |code, error: &str, lists| (code, "failed".to_owned(), error.to_owned(), lists);
    let (code, outcome, _, lists) = recombine(" --dry-run", CONFIGURATION);
    assert_eq!((code, &*outcome, lists), (0, "planned", [3, 1]));
    // An invalid configuration, a missing primary shard, an unknown component.
    let error = "packaging.json: line 1, column 1: EOF while parsing an object";
    assert_eq!(recombine("", "{"), failed(3, error, [0, 0]));
    let other = CONFIGURATION.replace("linux-a", "linux-z");
    let error = "packaging.json: line 2, column 20: there is no shard `linux-z` in shards, only linux-a, linux-b, linux-c";
    assert_eq!(recombine("", &other), failed(3, error, [0, 0]));
    let error = "no shard has the component `x`; there are blas_lib";
    assert_eq!(recombine(" --component x", CONFIGURATION), failed(2, error, [0, 0]));
    // Shards that do not fit together.
    let strict = CONFIGURATION.trim_end().strip_suffix('}').unwrap().to_owned();
    let strict = strict + r#", "validation": {"error_on_missing_architecture": true}}"#;
    let error = "shards: 1 error; nothing was written";
    assert_eq!(recombine("", &strict), failed(3, error, [3, 1]));
    // Output that cannot be written.
    tree.write("packages/blas_lib_generic/mine", b"");
    let (code, outcome, error, lists) = recombine("", CONFIGURATION);
    assert_eq!((code, &*outcome, lists), (3, "failed", [3, 1]));
    assert!(error.contains("is in the way"), "{error}");
    fs::remove_dir_all(tree.path("packages")).unwrap();
    let (code, outcome, _, lists) = recombine("", CONFIGURATION);
    assert_eq!((code, &*outcome, lists), (0, "recombined", [3, 1]));
}

#[test]
fn errors() {
    let tree = tree();
    let with = |configuration: &str, arguments: &str| {
        tree.write("packaging.json", configuration);
        said(&tree, arguments)
    };
    let said = [
        with(&CONFIGURATION.replace("primary_shard", "primary"), RECOMBINE),
        with(&CONFIGURATION.replace("linux-a", "linux-z"), RECOMBINE),
        with(&CONFIGURATION.replace("gfx1101", "gfx110X"), RECOMBINE),
        with(CONFIGURATION, &format!("{RECOMBINE} --component blas")),
        with(CONFIGURATION, &RECOMBINE.replace("packages", "shards/packages")),
        with(CONFIGURATION, &RECOMBINE.replace("dir shards", "dir in/linux-a/blas_lib")),
        with(CONFIGURATION, "verify shards --against packaging.json"),
        with(CONFIGURATION, "report nothing"),
    ];
    assert_snapshot!(said.join("\n"));
}
