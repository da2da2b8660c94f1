//! Given rocFFT's kernel cache, an SQLite database with device code for several targets, when its artifact
//! is split, recombined, verified and reported, then messages name its targets, and the caches of several
//! machines are merged into one.

use std::fs;
use std::path::Path;

use crate::planned::{CONFIGURATION, assert_said, planned, recombine, said, with_validation};
use crate::shards::{PREFIX, three_shards};
use crate::verified::{check, check_with, checks, faults};
use kpack_artifact::sizes::measure;
use kpack_artifact::split::{Options, SplitReport, split};
use kpack_core::{Severity, ids};
use kpack_tests::tree::{Tree, copy_file, write};
use rusqlite::{Connection, params};

const CACHE: &str = "lib/rocfft/rocfft_kernel_cache.db";

/// A row: the kernel, its target, its code, and when it was used.
type Row = (&'static str, &'static str, &'static str, i64);

/// Writes a cache as rocFFT does.
fn cache(path: &Path, rows: &[Row]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = fs::remove_file(path);
    let database = Connection::open(path).unwrap();
    let table = "CREATE TABLE IF NOT EXISTS cache_v1 (\
                   kernel_name TEXT NOT NULL, arch TEXT NOT NULL, hip_version INTEGER NOT NULL, \
                   generator_sum BLOB NOT NULL, code BLOB NOT NULL, timestamp INTEGER NOT NULL, \
                   PRIMARY KEY (kernel_name, arch, hip_version, generator_sum))";
    database.execute(table, ()).unwrap();
    for (kernel, target, code, time) in rows {
        let code = code.repeat(1000).into_bytes();
        let row = params![kernel, target, 60_443_483, b"\x01\xab".as_slice(), code, time];
        let insert = "INSERT INTO cache_v1 VALUES (?, ?, ?, ?, ?, ?)";
        database.execute(insert, row).unwrap();
    }
}

/// The rows of a cache, without their times.
fn content(path: &Path) -> Vec<(String, String, i64)> {
    let database = Connection::open(path).unwrap();
    let query = "SELECT kernel_name, arch, length(code) FROM cache_v1 ORDER BY arch, kernel_name";
    let mut query = database.prepare(query).unwrap();
    let rows = query.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.unwrap().collect::<Result<_, _>>().unwrap()
}

/// The paths of a shard's file, before and after the split.
fn places(tree: &Tree, shard: &str) -> [std::path::PathBuf; 2] {
    [
        tree.path(&format!("in/{shard}/blas_lib/{PREFIX}/{CACHE}")),
        tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/{CACHE}")),
    ]
}

fn put(tree: &Tree, shard: &str, rows: &[Row]) {
    for path in places(tree, shard) {
        cache(&path, rows);
    }
}

/// The faults of `out`, compared with what linux-a built.
fn faults_against(tree: &Tree) -> Vec<String> {
    let targets = ["gfx1100", "gfx1101"];
    faults(&check_with(tree, "out", Some("in/linux-a"), &targets))
}

fn assert_one(lines: &[String], parts: &[&str]) {
    let has = |line: &&String| parts.iter().all(|part| line.contains(part));
    let found = lines.iter().filter(has).count();
    assert_eq!(found, 1, "{parts:?} in {lines:#?}");
}

/// An artifact and an install prefix with nothing but a cache.
fn artifact(write: impl FnOnce(&Path)) -> Tree {
    let tree = Tree::new();
    let cache = tree.path(&format!("in/{PREFIX}/{CACHE}"));
    write(&cache);
    copy_file(cache, tree.path(&format!("installed/{CACHE}")));
    fs::write(tree.path("in/artifact_manifest.txt"), PREFIX).unwrap();
    tree
}

fn split_it(tree: &Tree) -> SplitReport {
    split(&Options::new(tree.path("in"), tree.path("out"), "fft_lib"), &()).unwrap()
}

#[test]
fn it_is_device_code_for_its_targets() {
    let tree = artifact(|path| {
        let rows = [("fft_4", "gfx942", "A", 1), ("fft_4", "gfx1100", "B", 1)];
        cache(path, &rows);
        let database = Connection::open(path).unwrap();
        database.pragma_update(None, "journal_mode", "WAL").unwrap();
    });
    let before = fs::read(tree.path(&format!("in/{PREFIX}/{CACHE}"))).unwrap();
    let files = tree.files();
    let report = split_it(&tree);
    let said: Vec<String> = report.findings.iter().map(|n| n.text.clone()).collect();
    let text = "has device code for gfx1100, gfx942, in one file for all targets";
    assert!(report.device_code);
    assert_eq!(said, [text]);
    assert_eq!(report.findings[0].id, ids::FILE_FOR_ALL_TARGETS);
    let generic = tree.path(&format!("out/fft_lib_generic/{PREFIX}/{CACHE}"));
    assert_eq!(fs::read(generic).unwrap(), before);
    for place in ["out", "installed"] {
        assert_one(&checks(&check(&tree, place), Severity::Note), &[CACHE, text]);
        assert_eq!(checks(&check(&tree, place), Severity::Fault), [""; 0]);
    }
    let sizes = measure(&[tree.path("out")], &[tree.path("in")]).unwrap();
    let mut rows = sizes.rows.iter();
    let row = rows.find(|row| row.what == "kernel cache for gfx1100, gfx942");
    assert_eq!(row.unwrap().after, before.len() as u64);
    // Nothing was written beside the input, such as SQLite's log in this mode.
    let own = tree.files().into_iter().filter(|file| !file.starts_with("out/"));
    assert_eq!(own.collect::<Vec<_>>(), files);
}

#[test]
fn caches_of_several_shards_are_merged_row_by_row() {
    let tree = three_shards();
    put(&tree, "linux-a", &[("fft_4", "gfx1100", "A", 1), ("fft_8", "gfx1100", "B", 1)]);
    put(&tree, "linux-b", &[("fft_4", "gfx90a", "C", 2), ("fft_4", "gfx1100", "A", 2)]);
    put(&tree, "linux-c", &[("fft_4", "gfx942", "D", 3)]);
    let plan = recombine(&tree, CONFIGURATION);
    let text = "merged from the copies of linux-a, linux-b, linux-c";
    assert_said(&plan, Severity::Note, &[CACHE, text]);
    assert_eq!(said(&plan).len(), 1);
    let merged = tree.path(&format!("out/blas_lib_generic/{PREFIX}/{CACHE}"));
    let row = |kernel: &str, target: &str| (kernel.to_owned(), target.to_owned(), 1000);
    let all = [
        row("fft_4", "gfx1100"),
        row("fft_8", "gfx1100"),
        row("fft_4", "gfx90a"),
        row("fft_4", "gfx942"),
    ];
    assert_eq!(content(&merged), all);
    assert_eq!(checks(&check(&tree, "out"), Severity::Fault), [""; 0]);
    assert_eq!(faults_against(&tree), [""; 0]);
    // A second run gives the same bytes.
    let bytes = fs::read(&merged).unwrap();
    recombine(&tree, CONFIGURATION);
    assert_eq!(fs::read(&merged).unwrap(), bytes);

    cache(&merged, &[("fft_4", "gfx1100", "A", 1)]);
    let faults = faults_against(&tree);
    assert_one(&faults, &[CACHE, "lacks the entries for gfx1100 fft_8 (HIP"]);
}

#[test]
fn a_kernel_that_is_not_the_same_in_two_shards_is_named() {
    let tree = three_shards();
    put(&tree, "linux-a", &[("fft_4", "gfx1100", "A", 1)]);
    put(&tree, "linux-b", &[("fft_4", "gfx1100", "B", 1), ("fft_4", "gfx90a", "C", 1)]);
    let parts = [
        "linux-b",
        CACHE,
        "its entries for gfx1100 fft_4 (HIP 60443483, generator 01ab) differ between shards \
         linux-a and linux-b",
    ];
    assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    let lenient = with_validation("error_on_duplicate_device_code", false);
    assert_said(&planned(&tree, &lenient), Severity::Warning, &parts);

    // If all shards have the same cache, it is taken unchanged.
    for shard in ["linux-a", "linux-b", "linux-c"] {
        put(&tree, shard, &[("fft_4", "gfx1100", "A", 1), ("fft_4", "gfx942", "C", 1)]);
    }
    assert_eq!(said(&recombine(&tree, CONFIGURATION)), [""; 0]);
    let [_, own] = places(&tree, "linux-a");
    let out = tree.path(&format!("out/blas_lib_generic/{PREFIX}/{CACHE}"));
    assert_eq!(fs::read(out).unwrap(), fs::read(own).unwrap());
}

#[test]
fn a_damaged_one_is_named() {
    let truncated = |path: &Path| {
        cache(path, &[("fft_4", "gfx942", "A", 1), ("fft_8", "gfx942", "B", 1)]);
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let garbled = |path: &Path| {
        cache(path, &[("fft_4", "gfx942", "A", 1)]);
        let mut bytes = fs::read(path).unwrap();
        for byte in bytes.iter_mut().skip(4000) {
            *byte = !*byte;
        }
        fs::write(path, bytes).unwrap();
    };
    let text = |path: &Path| write(path, b"SQLite format 3\0, and no more");
    let reason = "cannot be read as a kernel cache of rocFFT: ";
    for damage in [&truncated as &dyn Fn(&Path), &garbled, &text] {
        let tree = artifact(damage);
        let report = split_it(&tree);
        let notice = &report.findings[0];
        assert!(notice.text.starts_with(reason), "{notice:?}");
        assert!(notice.file().ends_with(CACHE), "{notice:?}");
        assert!(!report.device_code);
        for place in ["out", "installed"] {
            let faults = checks(&check(&tree, place), Severity::Fault);
            assert_one(&faults, &[CACHE, reason]);
        }
        measure(&[tree.path("out")], &[]).unwrap();

        let tree = three_shards();
        let [_, path] = places(&tree, "linux-b");
        damage(&path);
        let parts = ["linux-b", CACHE, reason];
        assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    }
}

/// Another database, or that of a later rocFFT, is a host file like others.
#[test]
fn one_of_another_format_is_a_host_file() {
    let other = |path: &Path, table: &str| {
        write(path, b"");
        let database = Connection::open(path).unwrap();
        database.execute_batch(table).unwrap();
    };
    for (table, reason) in [
        ("CREATE TABLE cache_v2 (x)", "no table `cache_v1`"),
        ("CREATE VIEW cache_v1 AS SELECT 1 AS arch", "no table `cache_v1`"),
        ("CREATE TABLE cache_v1 (x)", "no such column"),
        (
            "CREATE TABLE cache_v1 (arch, kernel_name, hip_version, generator_sum, timestamp, code); \
             INSERT INTO cache_v1 VALUES (1, 2, 'x', 4, 5, 6)",
            "Invalid column type",
        ),
    ] {
        let tree = artifact(|path| other(path, table));
        let report = split_it(&tree);
        let said: Vec<String> = report.findings.iter().map(|n| n.text.clone()).collect();
        assert_one(&said, &[reason]);
        assert_eq!(report.findings[0].id, ids::UNREAD_DATABASE_FILE);
        assert_eq!(checks(&check(&tree, "out"), Severity::Fault), [""; 0]);

        let tree = three_shards();
        let [_, path] = places(&tree, "linux-b");
        other(&path, table);
        let [_, path] = places(&tree, "linux-a");
        cache(&path, &[("fft_4", "gfx1100", "A", 1)]);
        let [_, path] = places(&tree, "linux-c");
        cache(&path, &[("fft_4", "gfx1100", "A", 1)]);
        let parts = [CACHE, reason, "unmergeable-file", "differs"];
        assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    }
}
