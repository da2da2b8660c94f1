//! Given shards that several machines packed and published, when they are merged, then a machine that is missing, or
//! whose shard is not what it published, is an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kpack_core::{Id, ids};
use kpack_store::{PackOptions, UnpackOptions, pack, unpack};
use kpack_tests::tree::Tree;
use serde_json::Value;

use crate::command::{kpack, words};
use crate::planned::CONFIGURATION;
use crate::shards::{PREFIX, three_shards};

const SHARDS: [&str; 3] = ["linux-a", "linux-b", "linux-c"];

/// The configuration with a list of shards.
fn listing(shards: &[&str]) -> String {
    let list = serde_json::to_string(shards).unwrap();
    CONFIGURATION.replacen('{', &format!("{{\n  \"shards\": {list},"), 1)
}

/// Shards as they arrive: packed by each machine, and unpacked.
fn published() -> Tree {
    let tree = three_shards();
    for shard in SHARDS {
        publish(&tree, shard, "1-linux");
    }
    fs::write(tree.path("packaging.json"), listing(&SHARDS)).unwrap();
    tree
}

fn publish(tree: &Tree, shard: &str, run: &str) {
    let directory = tree.path(&format!("shards/{shard}"));
    let store = tree.path(&format!("fetched/{shard}"));
    let _ = fs::remove_dir_all(&store);
    let mut options = PackOptions::new(&directory, &store);
    options.index.run = Some(run.to_owned());
    options.index.shard = Some(shard.to_owned());
    pack(&options, &()).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    unpack(&UnpackOptions::new(store, directory), &()).unwrap();
}

/// Recombines with `--require-index`; the exit code, and what `--json` prints.
fn recombine(tree: &Tree, output: &str) -> (Option<i32>, Value) {
    let arguments = [
        "artifact",
        "recombine",
        "--input-shards-dir",
        "shards",
        "--config",
        "packaging.json",
        "--output-dir",
        output,
        "--require-index",
        "--report",
        "report.json",
        "--json",
    ];
    let done = kpack(tree, &arguments);
    let report = fs::read(tree.path("report.json")).unwrap();
    assert_eq!(report, done.stdout);
    (done.status.code(), serde_json::from_slice(&report).unwrap())
}

/// The bytes of the files of artifacts.
fn files(tree: &Tree, output: &str) -> BTreeMap<String, Vec<u8>> {
    let start = format!("{output}/");
    let files = tree.files().into_iter();
    files
        .filter(|name| name.starts_with(&format!("{start}blas_lib_")))
        .map(|name| {
            let path = tree.path(&name);
            let bytes = if path.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            (name[start.len()..].to_owned(), bytes)
        })
        .collect()
}

#[test]
fn what_travelled_is_merged_as_if_it_had_not() {
    let tree = three_shards();
    fs::write(tree.path("packaging.json"), CONFIGURATION).unwrap();
    let direct = [
        "artifact",
        "recombine",
        "--input-shards-dir",
        "shards",
        "--config",
        "packaging.json",
        "--output-dir",
        "direct",
    ];
    assert!(kpack(&tree, &direct).status.success());
    for shard in SHARDS {
        publish(&tree, shard, "1-linux");
    }
    assert_eq!(recombine(&tree, "out").0, Some(0));
    assert_eq!(files(&tree, "out"), files(&tree, "direct"));
}

/// The finding, and what causes it.
type Case<'a> = (Id, &'a dyn Fn(&Tree));

#[test]
fn shards_that_are_not_those_that_were_published_are_rejected() {
    let remove = |path: &Path| {
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    };
    let cases: &[Case<'_>] = &[
        (ids::MISSING_SHARD, &|tree| remove(&tree.path("shards/linux-c"))),
        (ids::MISSING_SHARD, &|tree| {
            remove(&tree.path("shards/linux-c"));
            fs::create_dir(tree.path("shards/linux-c")).unwrap();
        }),
        (ids::MISSING_SHARD, &|tree| {
            fs::write(tree.path("packaging.json"), listing(&SHARDS[..2])).unwrap();
        }),
        (ids::NOT_PUBLISHED, &|tree| remove(&tree.path("shards/linux-b/index.json"))),
        (ids::BAD_INDEX, &|tree| fs::write(tree.path("shards/linux-b/index.json"), "{").unwrap()),
        (ids::SHARDS_DIFFER, &|tree| publish(tree, "linux-b", "2-linux")),
        (ids::INDEX_DIFFERS, &|tree| {
            let index = |shard| tree.path(&format!("shards/{shard}/index.json"));
            fs::copy(index("linux-a"), index("linux-b")).unwrap();
        }),
        (ids::INDEX_DIFFERS, &|tree| remove(&tree.path("shards/linux-a/blas_lib_gfx1101"))),
        (ids::INDEX_DIFFERS, &|tree| {
            let shard = tree.path("shards/linux-a");
            fs::rename(shard.join("blas_lib_gfx1101"), shard.join("blas_lib_gfx1102")).unwrap();
        }),
        (ids::INDEX_DIFFERS, &|tree| {
            let file = format!("shards/linux-a/blas_lib_generic/{PREFIX}/more");
            fs::write(tree.path(&file), "more").unwrap();
        }),
        (ids::BAD_CONFIGURATION, &|tree| {
            fs::write(tree.path("packaging.json"), listing(&["linux-b"])).unwrap();
        }),
        (ids::BAD_CONFIGURATION, &|tree| {
            let twice = listing(&["linux-a", "linux-a"]);
            fs::write(tree.path("packaging.json"), twice).unwrap();
        }),
        (ids::BAD_CONFIGURATION, &|tree| {
            let path = listing(&["linux-a", "../linux-b"]);
            fs::write(tree.path("packaging.json"), path).unwrap();
        }),
    ];
    for (id, spoil) in cases {
        let tree = published();
        spoil(&tree);
        let (code, report) = recombine(&tree, "out");
        assert_eq!(report["id"], id.as_str(), "{report}");
        assert_eq!(code, Some(3), "{report}");
        assert!(!tree.path("out").exists(), "{report}");
    }
}

#[test]
fn a_report_that_cannot_be_written_hides_no_error() {
    let tree = published();
    fs::create_dir(tree.path("report.json")).unwrap();
    let line = "artifact recombine --input-shards-dir shards --config packaging.json --output-dir out --json \
                --report report.json";
    let run = || {
        let done = kpack(&tree, &words(line));
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(said.contains("report.json: "), "{said}");
        let printed: Value = serde_json::from_slice(&done.stdout).unwrap();
        (done.status.code(), printed, said)
    };
    let (code, printed, said) = run();
    assert_ne!(code, Some(0), "{said}");
    assert_eq!(printed["outcome"], "recombined");
    fs::write(tree.path("packaging.json"), "{").unwrap();
    let (code, printed, said) = run();
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(printed["id"], "bad-configuration");
    assert!(said.ends_with("[bad-configuration]\n"), "{said}");
}
