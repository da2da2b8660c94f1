//! Given shards that several machines packed and published, when they are merged, then a machine that is missing, or
//! whose shard is not what it published, is an error; and a second run repeats nothing that is finished.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use kpack_artifact::recombine::plan;
use kpack_artifact::store::{PackOptions, UnpackOptions, pack, unpack};
use kpack_core::{Id, ids};
use kpack_tests::fixture::FatLibrary;
use kpack_tests::tree::Tree;
use serde_json::{Value, json};

use crate::command::{kpack, words};
use crate::planned::{CONFIGURATION, options, with_validation};
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

/// Inodes and bytes of the files of artifacts.
fn files(tree: &Tree, output: &str) -> BTreeMap<String, (u64, Vec<u8>)> {
    let start = format!("{output}/");
    let files = tree.files().into_iter();
    files
        .filter(|name| name.starts_with(&format!("{start}blas_lib_")))
        .map(|name| {
            let path = tree.path(&name);
            let inode = path.symlink_metadata().unwrap().ino();
            let bytes = if path.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            (name[start.len()..].to_owned(), (inode, bytes))
        })
        .collect()
}

fn bytes(files: BTreeMap<String, (u64, Vec<u8>)>) -> BTreeMap<String, Vec<u8>> {
    files.into_iter().map(|(name, (_, bytes))| (name, bytes)).collect()
}

#[test]
fn what_travelled_is_merged_as_if_it_had_not() {
    let tree = three_shards();
    fs::write(tree.path("packaging.json"), CONFIGURATION).unwrap();
    let direct = [
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
    assert_eq!(bytes(files(&tree, "out")), bytes(files(&tree, "direct")));
}

#[test]
fn a_second_run_repeats_nothing_that_is_finished() {
    let tree = published();
    let (code, first) = recombine(&tree, "out");
    assert_eq!((code, &first["finished"]), (Some(0), &Value::Null));
    let before = files(&tree, "out");
    let (code, second) = recombine(&tree, "out");
    assert_eq!(code, Some(0), "{second}");
    assert_eq!(second["finished"], json!(["blas_lib"]));
    assert_eq!(second["artifacts"], first["artifacts"]);
    assert_eq!(second["findings"][0]["id"], ids::UNCHANGED.as_str());
    assert_eq!(files(&tree, "out"), before);

    // Another configuration needs another run.
    let named = listing(&SHARDS).replace("Radeon RX 7000", "Radeon");
    fs::write(tree.path("packaging.json"), named).unwrap();
    let (code, again) = recombine(&tree, "out");
    assert_eq!((code, &again["finished"]), (Some(0), &Value::Null));
    // And so do other shards.
    publish(&tree, "linux-c", "1-linux");
    assert_eq!(recombine(&tree, "out").1["finished"], json!(["blas_lib"]));
    let extra = tree.path(&format!(
        "shards/linux-c/blas_lib_gfx942/{PREFIX}/lib/rocblas/library/extra_gfx942.co"
    ));
    let object = kpack_tests::fixture::code_object("gfx942", b"more").unwrap();
    fs::write(extra, object).unwrap();
    publish(&tree, "linux-c", "1-linux");
    let (code, again) = recombine(&tree, "out");
    assert_eq!((code, &again["finished"]), (Some(0), &Value::Null));
}

/// The database file of a target, of the same size whatever `payload` is.
fn put_database_file(tree: &Tree, directory: &str, payload: &[u8; 4]) {
    let name = "lib/rocblas/library/TensileLibrary_Type_SS_gfx942.co";
    let path = tree.path(&format!("{directory}/{PREFIX}/{name}"));
    let object = kpack_tests::fixture::code_object("gfx942", payload).unwrap();
    fs::write(path, object).unwrap();
}

#[test]
fn contents_that_changed_at_the_same_size_are_merged_again() {
    let tree = three_shards();
    put_database_file(&tree, "shards/linux-c/blas_lib_gfx942", b"one.");
    for shard in SHARDS {
        publish(&tree, shard, "1-linux");
    }
    fs::write(tree.path("packaging.json"), listing(&SHARDS)).unwrap();
    recombine(&tree, "out");
    let before = bytes(files(&tree, "out"));
    put_database_file(&tree, "shards/linux-c/blas_lib_gfx942", b"two.");
    let (code, again) = recombine(&tree, "out");
    assert_eq!((code, &again["finished"]), (Some(0), &Value::Null));
    let after = bytes(files(&tree, "out"));
    assert_ne!(after, before);
    recombine(&tree, "direct");
    assert_eq!(after, bytes(files(&tree, "direct")));
}

#[test]
fn an_output_that_changed_is_merged_again() {
    let library = format!("blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
    let changes: &[&dyn Fn(&Path)] = &[
        &|out| fs::remove_file(out.join(&library)).unwrap(),
        &|out| fs::remove_dir_all(out.join("blas_lib_generic/math-libs")).unwrap(),
        &|out| fs::remove_dir_all(out.join("blas_lib_gfx110X")).unwrap(),
        &|out| {
            let size = out.join(&library).metadata().unwrap().len();
            fs::write(out.join(&library), vec![0; size as usize]).unwrap();
        },
        &|out| {
            let mode = Permissions::from_mode(0o600);
            fs::set_permissions(out.join(&library), mode).unwrap();
        },
        &|out| {
            let link = out.join(&library).with_extension("");
            fs::remove_file(&link).unwrap();
            symlink("librocblas.so.6", link).unwrap();
        },
    ];
    let tree = published();
    recombine(&tree, "out");
    let mode = |tree: &Tree| {
        let metadata = tree.path(&format!("out/{library}")).metadata();
        metadata.unwrap().permissions().mode()
    };
    let before = (bytes(files(&tree, "out")), mode(&tree));
    for change in changes {
        change(&tree.path("out"));
        let (code, again) = recombine(&tree, "out");
        assert_eq!((code, &again["finished"]), (Some(0), &Value::Null));
        let after = (bytes(files(&tree, "out")), mode(&tree));
        assert_eq!(after, before);
        let (_, again) = recombine(&tree, "out");
        assert_eq!(again["finished"], json!(["blas_lib"]));
    }
}

#[test]
fn a_second_run_reports_what_the_first_one_found() {
    let tree = three_shards();
    let more = format!("shards/linux-b/blas_lib_generic/{PREFIX}/lib/libmore.so");
    FatLibrary::new().build(&tree.path(&more)).unwrap();
    for shard in SHARDS {
        publish(&tree, shard, "1-linux");
    }
    let lenient = with_validation("verify_generic_artifacts_match", false);
    fs::write(tree.path("packaging.json"), lenient).unwrap();
    let (code, first) = recombine(&tree, "out");
    assert_eq!(code, Some(0), "{first}");
    let found = first["findings"].as_array().unwrap();
    let differ = ids::SHARDS_DIFFER.as_str();
    assert!(found.iter().any(|one| one["id"] == differ), "{first}");
    let (_, second) = recombine(&tree, "out");
    assert_eq!(second["finished"], json!(["blas_lib"]));
    assert_eq!(second["findings"].as_array().unwrap()[1..], found[..]);
}

#[test]
fn what_another_run_finished_meanwhile_is_not_written_again() {
    let tree = published();
    let options = options(&tree, &listing(&SHARDS));
    let [one, other] = [(); 2].map(|()| plan(&options, &|_, _| {}).unwrap());
    assert!(one.apply(&options, &()).unwrap().is_empty());
    let before = files(&tree, "out");
    assert!(other.apply(&options, &()).unwrap().is_empty());
    assert_eq!(files(&tree, "out"), before);
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
    let line = "recombine --input-shards-dir shards --config packaging.json --output-dir out --json \
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
